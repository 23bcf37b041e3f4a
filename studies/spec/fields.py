"""Declarations of a study's fields, and the checks that need one field alone."""

import dataclasses
import math
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from hylorada import field_problems, nearest

T = TypeVar("T")
_KEY = "study field"  # in the metadata of a dataclass field
_PLAIN_TYPES = {bool, int, float, str, type(None)}
_MOST_FACTORS, _MOST_LOOKS, _MOST_CELLS = 9, 10, 100
_MOST_SEEDS, _LARGEST_SEED = 10**4, 2**32 - 1
LIST_LIMITS = {"profile": _MOST_FACTORS, "looks": _MOST_LOOKS, "seed_list": _MOST_SEEDS}
GRID_AXES: Mapping[str, type] = {"block_size": int, "data": str, "model": str}


@dataclass(frozen=True, kw_only=True)
class FieldInfo:
    """What a field of a study is, beyond its name, type and default.

    Attributes:
        text: what the field means; ``--help`` shows it where the field has an option.
        option: placeholder for the value of the command-line option; None where there is no option.
        at_least: smallest allowed number.
        at_most: largest allowed number.
        one_of: allowed texts; empty allows any.
        check: function that takes the field's name and value and returns a problem or None. It
            replaces ``one_of`` and the limits.
        grows: whether a study that has been run may be extended by a larger value.
        free: whether a study that has been run may get another value, because no result depends on
            it.
    """

    text: str
    option: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    one_of: tuple[str, ...] = ()
    check: Callable[[str, Any], str | None] | None = None
    grows: bool = False
    free: bool = False

    def problem(self, name: str, value: Any) -> str | None:
        """Return what is wrong with a value of the right type; None if it is allowed."""
        if self.check is not None:
            return self.check(name, value)
        if self.one_of and value not in self.one_of:
            return f"{name} {value!r} is unknown; {nearest(value, self.one_of)}"
        if isinstance(value, str) and (odd := re.search("[\0\ud800-\udfff]", value)):
            return f"{name} {value!r} has a character that can't be stored, {odd[0]!r}"
        if value is None:
            return None
        if self.at_least is not None and value < self.at_least:
            return f"{name} must be at least {self.at_least}, got {value}"
        if self.at_most is not None and value > self.at_most:
            return f"{name} must be at most {self.at_most}, got {value}"
        return None


def about(text: str, **details: Any) -> dict[str, FieldInfo]:
    """Return the metadata of a dataclass field; see :class:`FieldInfo` for the details."""
    return {_KEY: FieldInfo(text=text, **details)}


def declare(default: T, text: str, **details: Any) -> T:
    """Declare a dataclass field with a default; see :class:`FieldInfo` for the details."""
    declared: Any = dataclasses.field(default=default, metadata=about(text, **details))
    return cast("T", declared)  # type checkers take the default, as for `dataclasses.field`


def field_infos(cls: type[Any]) -> dict[str, FieldInfo]:
    """Return the declarations of a dataclass's fields by name."""
    return {f.name: f.metadata[_KEY] for f in dataclasses.fields(cls)}


def field_types(cls: type[Any]) -> dict[str, tuple[Any, ...]]:
    """Return the alternatives of each plain field's type, such as ``(int, NoneType)``, by name."""
    hints = {n: h for n, h in get_type_hints(cls).items() if get_origin(h) is not Mapping}
    types = {name: get_args(hint) or (hint,) for name, hint in hints.items()}
    return {name: options for name, options in types.items() if _PLAIN_TYPES.issuperset(options)}


def plain_problems(cls: type[Any], values: Mapping[str, Any]) -> tuple[list[str], set[str]]:
    """Check the plain fields, each by itself, and that no field without a default is missing.

    Args:
        cls: dataclass whose fields are declared with :func:`about`.
        values: by field; those of unknown and of structured fields are left alone.

    Returns:
        The problems, in the order of the values, and the names of the wrong fields.
    """
    infos, types = field_infos(cls), field_types(cls)
    by_name: dict[str, str] = {}
    for name, value in values.items():
        if name in types and (problem := _plain_problem(cls, infos[name], name, value)):
            by_name[name] = problem
    for name in _required(cls):
        if name not in values:
            by_name[name] = f"{name} is missing"
    return list(by_name.values()), set(by_name)


def _required(cls: type[Any]) -> list[str]:
    missing = dataclasses.MISSING
    fields = dataclasses.fields(cls)
    return [f.name for f in fields if f.default is missing and f.default_factory is missing]


def _plain_problem(cls: type[Any], info: FieldInfo, name: str, value: Any) -> str | None:
    if isinstance(value, int) and value >= 2**63:
        return f"{name} must be below 2^63, got {value}"
    wrong_type = field_problems(cls, {name: value})
    return wrong_type[0] if wrong_type else info.problem(name, value)


def name_problem(what: str, name: Any) -> str | None:
    """Return why a name can't be a folder and an MLflow experiment; None if it can."""
    if not isinstance(name, str):
        return f"{what} must be text, got {name!r}"
    odd = [c for c in name if not (c.isalnum() or unicodedata.category(c)[0] == "M" or c in " _-.")]
    if (
        odd
        or name in (".", "..")
        or name != name.strip()
        or not 0 < len(name) <= 100
        or len(name.encode()) > 240
    ):
        shown = name if len(name) <= 100 else name[:40] + "…"
        return (
            f"{what} must be 1 to 100 letters, digits, spaces, '_', '-' or '.', "
            f"and not '.' or '..'; got {shown!r}"
        )
    return None


def profile_problems(factors: Any) -> list[str]:
    """Return what is wrong with the factors of the learning rate at which a study confirms."""
    numbers = (
        [f for f in factors if isinstance(f, int | float) and not isinstance(f, bool)]
        if _is_list(factors)
        else []
    )
    if not numbers or len(numbers) != len(factors) or not all(0 < f < math.inf for f in numbers):
        return [f"profile must be a list of positive factors of the learning rate, got {factors!r}"]
    distinct = {f"{f:g}" for f in numbers}
    if 1 not in numbers or len(distinct) != len(numbers) or len(numbers) > _MOST_FACTORS:
        return [
            f"profile must hold 1, no factor twice and at most {_MOST_FACTORS} factors, "
            f"got {factors!r}"
        ]
    return []


def look_problems(looks: Any) -> list[str]:
    """Return what is wrong with the numbers of replicates at which the test split may be read."""
    whole = _is_list(looks) and all(
        isinstance(n, int) and not isinstance(n, bool) and n >= 2 for n in looks
    )
    if not whole or sorted(set(looks)) != list(looks) or len(looks) > _MOST_LOOKS:
        return [
            f"looks must be at most {_MOST_LOOKS} ascending numbers of replicates, "
            f"each at least 2, got {looks!r}"
        ]
    return []


def seed_list_problems(listed: Any, count: Any) -> list[str]:
    """Return what is wrong with the seeds that a study names, and with their number.

    Args:
        listed: the seeds; empty where none are named.
        count: the study's number of seeds; None where it is left to the list.
    """
    sound = _is_list(listed) and all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= _LARGEST_SEED for n in listed
    )
    if not sound or len(set(listed)) != len(listed) or len(listed) > _MOST_SEEDS:
        return [
            f"seed_list must hold at most {_MOST_SEEDS} distinct whole numbers from 0 to "
            f"{_LARGEST_SEED}, got {listed!r}"
        ]
    if listed and count is not None and count != len(listed):
        return [
            f"seeds is {count!r}, but seed_list names {len(listed)} ({', '.join(map(str, listed))})"
            "; leave seeds out, or name as many"
        ]
    return []


def grid_problems(grid: Any) -> list[str]:
    """Return what is wrong with the values that a study spans."""
    if not isinstance(grid, Mapping):
        return [f"grid must map {', '.join(GRID_AXES)} to lists of values, got {grid!r}"]
    by_axis = [
        _axis_problem(axis, values)
        if axis in GRID_AXES
        else f"grid: unknown field {axis!r}; {nearest(str(axis), GRID_AXES)}"
        for axis, values in grid.items()
    ]
    problems = [p for p in by_axis if p is not None]
    if not problems and (count := math.prod(map(len, grid.values()))) > _MOST_CELLS:
        problems.append(f"grid has {count} cells, at most {_MOST_CELLS}")
    return problems


def _axis_problem(axis: str, values: Any) -> str | None:
    kind = GRID_AXES[axis]
    if not _is_list(values) or not values or any(type(v) is not kind for v in values):
        what = "whole numbers" if kind is int else "texts"
        return f"grid.{axis} must be a list of one or more {what}, got {values!r}"
    if len(set(values)) < len(values):
        return f"grid.{axis} must not hold a value twice, got {list(values)!r}"
    return None


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def comparison_problems(pairs: Any, arms: Any) -> list[str]:
    """Return what is wrong with the pairs of arms that a study compares."""
    if not _is_list(pairs):
        return [f"comparisons must be a list of pairs [arm, reference], got {pairs!r}"]
    problems = []
    known = [str(a) for a in arms] if isinstance(arms, Mapping) else []
    for i, pair in enumerate(pairs):
        if not _is_list(pair) or len(pair) != 2 or pair[0] == pair[1]:
            problems.append(
                f"comparisons: each must be a pair of arms [arm, reference], got {pair!r}"
            )
        elif pair in pairs[:i]:
            problems.append(f"comparisons: {pair!r} appears twice")
        elif known:  # a study without arms is reported elsewhere
            problems += [
                f"comparisons: unknown arm {a!r}; {nearest(str(a), known)}"
                for a in pair
                if a not in known
            ]
    return problems
