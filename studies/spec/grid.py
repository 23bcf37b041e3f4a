"""The cells of a grid: one study for each combination of the values that it spans."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hylorada import InputError
from studies.files.paths import without_folder
from studies.spec.study import Study

_LONGEST = 24  # characters of one value in a cell's name


@dataclass(frozen=True)
class Cell:
    """One cell of a grid.

    Attributes:
        values: Its value on each axis.
        study: The study that the cell is, without a grid.
    """

    values: Mapping[str, Any]
    study: Study

    @property
    def label(self) -> str:
        """Its values as messages and tables show them, such as "block_size 128, data pydocs"."""
        return ", ".join(f"{axis} {without_folder(str(v))}" for axis, v in self.values.items())


def cells(study: Study) -> tuple[Cell, ...]:
    """Return the cells of a grid, the last axis changing fastest.

    A cell is named after the grid and its own values: ``context_length.256``. The name is that of
    an ordinary study, so that every command takes it.

    Raises:
        InputError: Values of some cells don't fit the study; each problem names its cell.

    Example:
        >>> values = {"definition": "mine", "name": "try", "arms": {"one": {}}}
        >>> grid = {"block_size": [64, 128], "data": ["pydocs", "books/"]}
        >>> [c.study.name for c in cells(Study.from_dict({**values, "grid": grid}))]
        ['try.64-pydocs', 'try.64-books', 'try.128-pydocs', 'try.128-books']
    """
    shared, problems, made = study.to_dict(), [], []
    for values, name in zip(_combinations(study.grid), _names(study), strict=True):
        changed = {**shared, **values, "name": name, "grid": {}}
        try:
            made.append(Cell(values, Study.from_dict(changed)))
        except InputError as error:
            place = ", ".join(f"{axis} {v!r}" for axis, v in values.items())
            problems += [f"cell with {place}: {problem}" for problem in error.problems]
    if problems:
        raise InputError(problems)
    return tuple(made)


def _combinations(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _names(study: Study) -> list[str]:
    """Return the name of each cell's study, in the order of the cells."""
    words = [_words(values) for values in study.grid.values()]
    return [f"{study.name}.{'-'.join(chosen)}" for chosen in itertools.product(*words)]


def _words(values: Sequence[Any]) -> list[str]:
    """Return a word for each value of an axis that a file name may hold; no two are equal.

    Values appended later leave the words of those before them as they are.
    """
    words: list[str] = []
    for value in values:
        word = re.sub(r"[^\w.]+", "_", without_folder(str(value).rstrip("/"))).strip("._")
        word = word[:_LONGEST].strip("._") or "value"
        taken = {w.casefold() for w in words}  # some file systems ignore case
        names = itertools.chain([word], (f"{word}_{n}" for n in itertools.count(2)))
        words.append(next(name for name in names if name.casefold() not in taken))
    return words
