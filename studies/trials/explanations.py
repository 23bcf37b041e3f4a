"""The explanations of winners that a study folder holds in ``explain.json``."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from studies.files.folder_files import read_json, write_json
from studies.statistics.change import Change
from studies.trials.records import owner_of, read_id

EXPLAIN_FILE = "explain.json"


@dataclass(frozen=True)
class Effect:
    """What one change of a configuration does to validation PPL, on paired seeds.

    Attributes:
        parameter: The changed parameter; empty for all changes from the defaults to the winner.
        before: Its value before; None where there is no single value.
        after: Its value after.
        also: Conditional parameters that come with it, and their values.
        change: In %, negative is better; None where no seed has a finished run on both sides.
        by_seed: The same for each seed.
        smallest_visible: Smallest change in % that is detected with 80 % power.
        note: How many runs have not finished, and why.
    """

    parameter: str
    before: Any
    after: Any
    also: Mapping[str, Any]
    change: Change | None = None
    by_seed: tuple[float, ...] = ()
    smallest_visible: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Explanation:
    """Why the winner of an arm in one search differs from the defaults, and from its neighbours.

    Attributes:
        arm: Its arm.
        search: The search that it won.
        trial: The search trial that won.
        block: The matched block whose common values all these runs have; None in a study that is
            not matched.
        seeds: Number of paired seeds; they are fresh, so neither the search nor any other stage has
            used them.
        blocks: Number of validation blocks of each run.
        tokens: Number of tokens predicted in these blocks.
        unseen: Whether the search has not been evaluated on these blocks.
        margin: Largest change in % that does not matter.
        default_ppl: PPL of the defaults, exp of the mean loss over seeds; None where none has
            finished.
        winner_ppl: PPL of the winner.
        unchanged: Parameters in which the winner has the default.
        whole: The step from the defaults to the winner; None where the two are the same.
        path: Its parts, each on top of those before it.
        neighbours: The configurations one step away from the winner in one parameter.
        provenance: Commit, versions, model and data fingerprints of the process that measured last.
    """

    arm: str
    search: int
    trial: str
    block: int | None
    seeds: int
    blocks: int
    tokens: int
    unseen: bool
    margin: float
    default_ppl: float | None
    winner_ppl: float | None
    unchanged: tuple[str, ...]
    whole: Effect | None
    path: tuple[Effect, ...]
    neighbours: tuple[Effect, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as plain values, as ``--json`` prints it."""
        return asdict(self)


@dataclass(frozen=True)
class _Stored:
    explanations: tuple[Explanation, ...]


def read_explanations(folder: Path) -> tuple[Explanation, ...]:
    """Return the explanations in a study folder, by arm and search; none if no winner has one.

    Raises:
        InputError: The file is damaged, or belongs to another study.
    """
    path = folder / EXPLAIN_FILE
    if not path.exists():
        return ()
    stored: _Stored = read_json(path, _Stored, _owner(folder))
    return stored.explanations


def write_explanation(folder: Path, explanation: Explanation) -> None:
    """Store an explanation, replacing an earlier one of the same arm and search."""
    place = (explanation.arm, explanation.search)
    others = [e for e in read_explanations(folder) if (e.arm, e.search) != place]
    kept = sorted([*others, explanation], key=lambda e: (e.arm, e.search))
    write_json(folder / EXPLAIN_FILE, asdict(_Stored(tuple(kept))), _owner(folder))


def _owner(folder: Path) -> str:
    """Return the name that the file's checksum is bound to."""
    return owner_of(read_id(folder), "explain")
