"""The explanation of a winner as tables and as sentences."""

from collections.abc import Sequence

from studies.analysis.comparisons import stays_within
from studies.analysis.verdict import listed, numbers
from studies.reporting.shown.values import value_text
from studies.reporting.tables import Sheet
from studies.statistics.change import interval_text
from studies.trials.explanations import Effect, Explanation

_CHANGE = "change, % [95 %]"


def sentences(e: Explanation) -> list[str]:
    """Say which parameters matter and which don't, on the path to the winner and around it."""
    return [s for s in (_whole(e), _path(e), _neighbours(e), _unchanged(e)) if s]


def path_sheet(e: Explanation) -> Sheet:
    """Return one row per step from the defaults to the winner; each adds to those above it."""
    rows = [row for x in e.path for row in _rows(e, x)]
    strong: frozenset[int] = frozenset()
    if e.whole is not None and len(e.path) > 1:
        strong = frozenset({len(rows)})
        rows.append(("all of them", "", "", *_cells(e, e.whole)))
    return Sheet(
        ("parameter", "default", "winner", _CHANGE, "outcome"), tuple(rows), _caption(e), strong
    )


def neighbours_sheet(e: Explanation) -> Sheet:
    """Return one row per neighbour of the winner."""
    rows = tuple(row for x in e.neighbours for row in _rows(e, x))
    return Sheet(("parameter", "winner", "instead", _CHANGE, "outcome"), rows)


def step_text(x: Effect) -> str:
    """Return a step as text, such as "num_buckets 32 → 8"."""
    also = ", ".join(f"{n} {value_text(v)}" for n, v in x.also.items())
    change = f"{x.parameter} {value_text(x.before)} \N{RIGHTWARDS ARROW} {value_text(x.after)}"
    return f"{change} ({also})" if also else change


def matters(e: Explanation, x: Effect) -> bool:
    """Return whether a change is certainly better or worse, and may exceed the margin."""
    return x.change is not None and x.change.outcome in ("better", "worse") and not _small(e, x)


def outcome(e: Explanation, x: Effect) -> str:
    """Return the outcome of a change, or why it has none."""
    if x.change is None:
        return x.note
    small = (
        f" (under {e.margin:g} %)"
        if x.change.outcome in ("better", "worse") and _small(e, x)
        else ""
    )
    return f"{x.change.outcome}{small}" + (f" ({x.note})" if x.note else "")


def _rows(e: Explanation, x: Effect) -> list[tuple[str, ...]]:
    """Return the row of a change and one row for each conditional parameter that comes with it."""
    row = (x.parameter, value_text(x.before), value_text(x.after), *_cells(e, x))
    return [row, *((f"+ {name}", "", value_text(value), "", "") for name, value in x.also.items())]


def _cells(e: Explanation, x: Effect) -> tuple[str, str]:
    c = x.change
    change = "" if c is None else interval_text(c.change, c.low, c.high)
    return change, outcome(e, x)


def _small(e: Explanation, x: Effect) -> bool:
    return x.change is not None and stays_within(x.change, e.margin)


def _caption(e: Explanation) -> str:
    seen = "that the search did not see" if e.unseen else "that the search also used to choose it"
    seeds = (
        f"{e.seeds} fresh paired seeds"
        if e.seeds > 1
        else "1 fresh seed, so intervals exclude seed noise"
    )
    return (
        "Changes in validation PPL, negative is better; equivalent: certainly under "
        f"{e.margin:g} %. {seeds}, {e.blocks} validation blocks {seen} ({e.tokens:,} tokens). "
        "The test split was not read."
    )


def _whole(e: Explanation) -> str:
    if e.whole is None:
        return f"The winner {e.trial} has the default value of every parameter its arm searches."
    if e.whole.change is None:
        return f"The winner {e.trial} can't be compared with the defaults: {e.whole.note}."
    comparison = {
        "better": "is better than the defaults",
        "worse": "is worse than the defaults",
        "equivalent": f"differs from the defaults by less than {e.margin:g} %",
        "undecided": "may be better or worse than the defaults",
    }[e.whole.change.outcome]
    return f"The winner {e.trial} {comparison}: {numbers(e.whole.change)}."


def _path(e: Explanation) -> str:
    parts = []
    if large := [x for x in e.path if matters(e, x)]:
        parts.append(f"{_signed(large)} {_plural(large, 'matters', 'matter')}")
    if small := [x for x in e.path if _small(e, x)]:
        verb = _plural(small, "does", "do")
        parts.append(f"{_names(small)} {verb} not matter (under {e.margin:g} %)")
    if unsure := [x for x in e.path if x.change and x.change.outcome == "undecided"]:
        parts.append(f"{_names(unsure)} {_plural(unsure, 'is', 'are')} undecided")
    return f"On the path from the defaults, {'; '.join(parts)}." if parts else ""


def _neighbours(e: Explanation) -> str:
    large = [x for x in e.neighbours if matters(e, x) and x.change]
    better = [x for x in large if x.change and x.change.outcome == "better"]
    worse = [x for x in large if x not in better]
    if not e.neighbours:
        return ""
    none = (
        f"no neighbour is certainly better by more than {e.margin:g} %"
        if not better
        else f"better: {_steps(better)}"
    )
    unsure = [x for x in e.neighbours if x.change and x.change.outcome == "undecided"]
    parts = [
        none,
        f"worse: {_steps(worse)}" if worse else "",
        f"undecided: {_steps(unsure)}" if unsure else "",
    ]
    return f"One step away from the winner, {'; '.join(p for p in parts if p)}."


def _unchanged(e: Explanation) -> str:
    if not (e.unchanged and e.path):
        return ""
    return f"The winner keeps the default of {listed(list(e.unchanged))}."


def _steps(effects: Sequence[Effect]) -> str:
    return listed([f"{step_text(x)} ({_percent(x)})" for x in effects])


def _signed(effects: Sequence[Effect]) -> str:
    return listed([f"{x.parameter} ({_percent(x)})" for x in effects])


def _names(effects: Sequence[Effect]) -> str:
    return listed([x.parameter for x in effects])


def _percent(x: Effect) -> str:
    assert x.change is not None
    return f"{x.change.change:+z.2f} %".replace("-", "\N{MINUS SIGN}")


def _plural(effects: Sequence[Effect], one: str, many: str) -> str:
    return one if len(effects) == 1 else many
