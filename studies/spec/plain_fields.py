"""The plain fields of a study, each checked by itself."""

import dataclasses
import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hylorada import field_problems, nearest
from hylorada.data.separators import DOCUMENT_SEPARATORS


@dataclass
class _Plain:
    """Types of the plain fields, for :func:`field_problems`."""

    definition: str
    name: str
    subject: str
    model: str
    data: str
    text_column: str | None
    document_separator: str
    block_size: int
    dtype: str
    trials: int
    eval_every: int
    eval_blocks: int | None
    test_blocks: int | None
    grace_steps: int
    reduction_factor: int
    matched: bool
    searches: int
    finalists: int
    selection_seeds: int
    seeds: int
    seed: int
    margin: float
    spread_test: bool


_PLAIN = {f.name for f in dataclasses.fields(_Plain)}
_AT_LEAST = {
    "block_size": 2,
    "trials": 1,
    "eval_every": 1,
    "eval_blocks": 2,
    "test_blocks": 2,
    "grace_steps": 0,
    "reduction_factor": 2,
    "searches": 1,
    "finalists": 1,
    "selection_seeds": 1,
    "seeds": 1,
    "seed": 0,
    "margin": 0.0,
}
_AT_MOST = {
    "trials": 10**6,
    "searches": 100,
    "finalists": 100,
    "selection_seeds": 100,
    "seeds": 10**4,
}
_AT_MOST_FACTORS, _AT_MOST_LOOKS = 9, 10
_ONE_OF = {"dtype": ("float32", "bfloat16", "float64"), "document_separator": DOCUMENT_SEPARATORS}


def name_problem(what: str, name: Any) -> str | None:
    """Why a name can't be a folder and an MLflow experiment; None where it can."""
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
        return f"{what} must be 1 to 100 letters, digits, spaces, '_', '-' or '.', and not '.' or '..'; got {shown!r}"
    return None


def plain_problems(values: Mapping[str, Any]) -> tuple[list[str], set[str]]:
    """Problems of the plain fields, each by itself, and the names of those fields."""
    by_name = {k: _plain_problem(k, values[k]) for k in _PLAIN if k in values}
    by_name |= {k: [f"{k} is missing"] for k in ("definition", "name") if k not in values}
    order = [k for k in (*values, "definition", "name") if by_name.get(k)]
    return [p for k in dict.fromkeys(order) for p in by_name[k]], set(order)


def _plain_problem(name: str, value: Any) -> list[str]:
    if isinstance(value, int) and value >= 2**63:
        return [f"{name} must be below 2^63, got {value}"]
    if problems := field_problems(_Plain, {name: value}):
        return problems
    if name == "name":
        return [p] if (p := name_problem("name", value)) else []
    if name in _ONE_OF and value not in _ONE_OF[name]:
        return [f"{name} {value!r} is unknown; {nearest(value, _ONE_OF[name])}"]
    if isinstance(value, str) and (odd := re.search("[\0\ud800-\udfff]", value)):
        return [f"{name} {value!r} has a character that can't be stored, {odd[0]!r}"]
    if name in _AT_LEAST and value is not None and value < _AT_LEAST[name]:
        return [f"{name} must be at least {_AT_LEAST[name]}, got {value}"]
    if name in _AT_MOST and value > _AT_MOST[name]:
        return [f"{name} must be at most {_AT_MOST[name]}, got {value}"]
    return []


def profile_problems(factors: Any) -> list[str]:
    numbers = (
        [f for f in factors if isinstance(f, int | float) and not isinstance(f, bool)]
        if _is_list(factors)
        else []
    )
    if not numbers or len(numbers) != len(factors) or not all(0 < f < math.inf for f in numbers):
        return [f"profile must be a list of positive factors of the learning rate, got {factors!r}"]
    if (
        1 not in numbers
        or len({f"{f:g}" for f in numbers}) != len(numbers)
        or len(numbers) > _AT_MOST_FACTORS
    ):
        return [
            f"profile must hold 1 and no factor twice, at most {_AT_MOST_FACTORS} in all, got {factors!r}"
        ]
    return []


def look_problems(looks: Any) -> list[str]:
    whole = _is_list(looks) and all(
        isinstance(n, int) and not isinstance(n, bool) and n >= 2 for n in looks
    )
    if not whole or sorted(set(looks)) != list(looks) or len(looks) > _AT_MOST_LOOKS:
        return [
            f"looks must be at most {_AT_MOST_LOOKS} ascending numbers of replicates from 2, got {looks!r}"
        ]
    return []


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def comparison_problems(pairs: Any, arms: Any) -> list[str]:
    if not isinstance(pairs, list | tuple):
        return [f"comparisons must be a list of pairs [arm, reference], got {pairs!r}"]
    problems = []
    known = [str(a) for a in arms] if isinstance(arms, Mapping) else []
    for i, pair in enumerate(pairs):
        if not isinstance(pair, list | tuple) or len(pair) != 2 or pair[0] == pair[1]:
            problems.append(
                f"comparisons: each must be a pair of arms [arm, reference], got {pair!r}"
            )
        elif pair in pairs[:i]:
            problems.append(f"comparisons: {pair!r} stands twice")
        elif known:  # without any, that is the problem
            problems += [
                f"comparisons: unknown arm {a!r}; {nearest(str(a), known)}"
                for a in pair
                if a not in known
            ]
    return problems
