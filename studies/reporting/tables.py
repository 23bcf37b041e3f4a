"""The tables of a report as plain cells, to be drawn in the terminal or in HTML."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from studies.reporting.shown.trials import FEWEST, Shown, listed
from studies.reporting.shown.values import last, state_text, value_text
from studies.spec.common_values import seed_name
from studies.spec.study import Study
from studies.statistics.change import Change, effect_text, interval_text
from studies.trials.records import Record, records_of
from studies.trials.winners import counting, winners

if TYPE_CHECKING:
    from studies.analysis.comparisons import Comparison
    from studies.analysis.results import ArmResult, Results

WORDS = {
    *("against", "arm", "comparison", "component", "effect", "fault", "outcome", "parameter"),
    *("reason", "searched", "searched over", "stage", "state", "status", "trial"),
}
MOST_REFERENCES = 3  # columns of changes in the table of arms; beyond, comparisons are listed
_TRIAL_COLUMNS = ("trial", "state", "reason", "last step", "eval PPL")

_TRIED = ("search", "added")  # stages whose trials a user or a sampler has chosen
_ADDED = "Trials named ARM-added-N were added by a user; they can't become winners."


@dataclass(frozen=True)
class Sheet:
    """A table before it is drawn.

    Attributes:
        columns: Titles; columns named in ``WORDS`` hold words, the others numbers.
        rows: Cells as text.
        caption: Text below the table.
        strong: Indices of rows to emphasize.
        faint: Indices of rows to de-emphasize.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    strong: frozenset[int] = frozenset()
    faint: frozenset[int] = frozenset()

    def used(self) -> list[int]:
        """Return the indices of the columns that are not empty."""
        return [i for i in range(len(self.columns)) if any(row[i] for row in self.rows)]

    def mapped(self, change: Callable[[str], str]) -> "Sheet":
        """Return the sheet with ``change`` applied to every title and cell."""
        rows = tuple(tuple(map(change, row)) for row in self.rows)
        return replace(self, columns=tuple(map(change, self.columns)), rows=rows)


def best_trials(records: Mapping[str, Record], study: Study) -> frozenset[str]:
    """Return the names of the winning search trials, one for each search and arm."""
    return frozenset(w.record.name for w in winners(study, records).values())


def _ppl(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.3f}" if value < 1000 else f"{value:,.0f}"


def change_text(c: "Comparison | Change | None") -> str:
    """Return a change with its interval; empty text for None."""
    return interval_text(c.change, c.low, c.high, " %") if c else ""


def many_references(results: "Results") -> bool:
    """Return whether the arms have too many references for a column of changes each."""
    return len({c.reference for c in results.comparisons}) > MOST_REFERENCES


def arms_sheet(results: "Results") -> Sheet:
    """Return one row per arm and one column of changes per reference, the bare base first.

    With more references than fit beside each other, the changes are left to the comparisons.
    """
    compared = {c.reference for c in results.comparisons}
    references = (
        [] if many_references(results) else [a.arm for a in results.arms if a.arm in compared]
    )
    level = next((c.level for c in results.comparisons), 0.05)
    changes = [f"vs {r} [{100 * (1 - level):.3g} %]" for r in references]
    rows = [_arm_row(results, arm, references) for arm in results.arms]
    has_base = results.base_ppl is not None
    if has_base:
        rows.insert(
            0, ("base alone", _ppl(results.base_ppl), "", *("" for _ in references), "0", "")
        )
    return Sheet(
        columns=("arm", "test PPL", "median", *changes, "parameters", "s/trial"),
        rows=tuple(rows),
        caption=_arms_caption(results),
        faint=frozenset({0}) if has_base else frozenset(),
    )


def _arm_row(results: "Results", arm: "ArmResult", references: Sequence[str]) -> tuple[str, ...]:
    changes = [
        "-" if r == arm.arm else change_text(results.comparison(arm.arm, r)) for r in references
    ]
    return (
        arm.arm,
        _ppl(arm.ppl),
        _ppl(arm.ppl_median),
        *changes,
        f"{arm.parameters:,}",
        f"{arm.trial_seconds:.1f}",
    )


def _arms_caption(results: "Results") -> str:
    if not results.arms:
        return "No arm has finished the confirm stage."
    tokens = f"{results.tokens:,} test tokens"
    if not results.comparisons:
        runs = max(len(arm.seeds) for arm in results.arms)
        return f"test PPL: mean over runs. {tokens}, {runs} run{'s' * (runs > 1)} of an arm."
    from studies.analysis.verdict import replicates  # slow to import

    searches, seeds = max((c.searches, c.seeds) for c in results.comparisons)
    noise = replicates(searches, seeds)
    if (searches, seeds) == (1, 1):
        noise += ", so intervals exclude seed noise"
    changes = "" if many_references(results) else "; changes: in %, negative is better"
    return f"test PPL: mean over runs{changes}. {tokens}, {noise}."


def comparisons_sheet(results: "Results") -> Sheet:
    """Return one row per comparison, with the change of every search or seed."""
    rows = [
        (
            f"{c.arm} vs {c.reference}",
            change_text(c),
            c.outcome,
            f"{c.median:+z.2f}",
            ", ".join(f"{x:+z.2f}" for x in (c.by_search if c.searches > 1 else c.by_seed)),
            "" if c.replicate_sd is None else f"{c.replicate_sd:.2f}",
            change_text(c.hodges_lehmann),
            change_text(c.own_best),
            f"{c.p_value:.2g}",
            f"{c.p_holm:.2g}",
            effect_text(c.smallest_visible),
            "" if c.parameters_per_percent is None else f"{c.parameters_per_percent:,.0f}",
            c.decision,
        )
        for c in results.comparisons
    ]
    several = any(c.searches > 1 for c in results.comparisons)
    each = "each search, %" if several else "each seed, %"
    titles = (
        "change [interval]",
        "outcome",
        "median, %",
        each,
        "SD, %",
        "Hodges-Lehmann",
        "at own best rate",
    )
    last_titles = ("p", "Holm p", "smallest visible, %", "parameters per 1 %")
    caption = (
        "p: two-sided, for no change; Holm p: adjusted over these comparisons; smallest visible: "
        "with 80 % power; effect: class of the interval on the published scale of improvements."
    )
    columns = ("comparison", *titles, *last_titles, "effect")
    return Sheet(columns, tuple(rows), caption if rows else "")


def rates_sheet(results: "Results") -> Sheet:
    """Return one row per comparison and one column per factor: the matched change there."""
    factors = list(dict.fromkeys(r.factor for c in results.comparisons for r in c.profile))
    rows = []
    for c in results.comparisons:
        changes = {r.factor: r.change for r in c.profile}
        rows.append((f"{c.arm} vs {c.reference}", *(change_text(changes.get(f)) for f in factors)))
    return Sheet(
        ("comparison", *(f"{f:g} x the rate" for f in factors)), tuple(rows) if factors else ()
    )


def positions_sheet(results: "Results") -> Sheet:
    """Return one row per comparison: LIM-PPL and each tenth of the positions."""
    names = list(dict.fromkeys(n for c in results.comparisons for n in c.positions))
    rows = []
    for c in results.comparisons:
        cells = [c.positions.get(n) for n in names]
        rows.append((f"{c.arm} vs {c.reference}", *(_marked(x) for x in cells)))
    caption = (
        "Changes in %; *: better or worse after Holm's adjustment within the row." if names else ""
    )
    titles = [
        "LIM-PPL" if n == "lim_ppl" else f"tenth {int(n.rpartition('_')[2]) + 1}" for n in names
    ]
    return Sheet(("comparison", *titles), tuple(rows) if names else (), caption=caption)


def _marked(c: Change | None) -> str:
    return "" if c is None else change_text(c) + (" *" if c.outcome in ("better", "worse") else "")


def winning_sheet(study: Study, records: Mapping[str, Record]) -> Sheet:
    """Return one row per parameter and one column per winner."""
    values = {
        (arm, search): w.params(study) for (search, arm), w in winners(study, records).items()
    }
    places = sorted(values, key=lambda place: (list(study.arms).index(place[0]), place[1]))
    names = dict.fromkeys(
        n for arm, search in places for n in [*study.space(arm).parameters, *values[arm, search]]
    )
    rows = [
        (
            n,
            *(value_text(values[p][n]) if n in values[p] else "" for p in places),
            _searched_over(n, study),
        )
        for n in names
    ]
    titles = [f"{arm} s{search}" if study.searches > 1 else arm for arm, search in places]
    return Sheet(("parameter", *titles, "searched over"), tuple(rows))


def _searched_over(name: str, study: Study) -> str:
    spaces = [study.space(arm).parameters for arm in study.arms]
    declared = [parameters[name] for parameters in spaces if name in parameters]
    return " or ".join(dict.fromkeys(map(str, declared)))


def confirm_sheet(records: Mapping[str, Record], study: Study) -> Sheet:
    """Return one row per run on fresh seeds; runs of an earlier best trial are faint."""
    stages = ("select", "confirm")
    runs = [r for stage in stages for arm in study.arms for r in records_of(records, stage, arm)]
    counted = {r.name for stage in stages for r in counting(study, records, stage)}
    rows = [
        (
            r.arm,
            r.stage if study.finalists > 1 else "",
            str(r.search) if study.searches > 1 else "",
            f"{r.factor:g}" if len(study.factors) > 1 else "",
            str(seed_name(study.seed_list if r.stage == "confirm" else (), r.number)),
            _ppl(last(r, "test/ppl")),
            _ppl(last(r, "eval/ppl")),
            state_text(r.state, running=False),  # a report is written when nothing runs
            r.reason or "",
        )
        for r in runs
    ]
    columns = (
        "arm",
        "stage",
        "search",
        "x learning rate",
        "seed",
        "test PPL",
        "validation PPL",
        "state",
        "reason",
    )
    faint = frozenset(i for i, r in enumerate(runs) if r.name not in counted)
    caption = "Gray: runs of an earlier best trial, which don't count." if faint else ""
    return Sheet(columns, tuple(rows), caption=caption, faint=faint)


def _trial_cells(r: Record, *, running: bool) -> tuple[str, ...]:
    state = state_text(r.state, running=running)
    return (r.name, state, r.reason or "", str(r.step), _ppl(last(r, "eval/ppl")))


def trials_sheet(
    arm: str, records: Mapping[str, Record], study: Study, best: Collection[str]
) -> Sheet:
    """Return the search trials of an arm, the best of many, with one column per parameter."""
    shown = listed([r for s in _TRIED for r in records_of(records, s, arm)], study, best)
    names = list(
        dict.fromkeys([*study.space(arm).parameters, *(n for r in shown.trials for n in r.params)])
    )
    rows = [
        (
            *_trial_cells(r, running=False),
            *(value_text(r.params[n]) if n in r.params else "" for n in names),
        )
        for r in shown.trials
    ]
    return Sheet(
        columns=(*_TRIAL_COLUMNS, *names),
        rows=tuple(rows),
        strong=frozenset(i for i, r in enumerate(shown.trials) if r.name in best),
        faint=frozenset(i for i, r in enumerate(shown.trials) if r.state != "complete"),
        caption=_trials_caption(shown, "data/trials.csv of `hylorada export --figures` has all"),
    )


def searched_sheet(records: Mapping[str, Record], study: Study, *, running: bool) -> Sheet:
    """Return the search trials of all arms, the best of many, with all parameters in one column.

    Args:
        records: The records of the study.
        study: The study.
        running: Whether the study is running; otherwise its open trials are paused.
    """
    best = best_trials(records, study)
    trials = [r for s in _TRIED for arm in study.arms for r in records_of(records, s, arm)]
    shown = listed(trials, study, best, FEWEST)  # a longer list would not fit a terminal either
    rows = [
        (
            *_trial_cells(r, running=running),
            " ".join(f"{k}={value_text(v)}" for k, v in r.params.items()),
        )
        for r in shown.trials
    ]
    strong = frozenset(i for i, r in enumerate(shown.trials) if r.name in best)
    caption = _trials_caption(shown, "`hylorada status --json` prints all")
    return Sheet((*_TRIAL_COLUMNS, "searched"), tuple(rows), caption, strong)


def _trials_caption(shown: Shown, rest: str) -> str:
    """Return what to know about listed trials: whose they are, and where the others are."""
    added = _ADDED if any(r.stage == "added" for r in shown.trials) else ""
    chosen = shown.says(f"the best of each arm by validation PPL; {rest}")
    return f"{chosen} {added}".strip()
