"""The tables of a report as plain cells, before they are drawn in the terminal or in HTML."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from studies.analysis.comparisons import Comparison
from studies.analysis.results import ArmResult, Results
from studies.reporting.plots import last, value_text
from studies.spec.study import Study
from studies.statistics.change import Change
from studies.trials.records import Record, records_of
from studies.trials.winners import counting, winners

WORDS = {
    *("arm", "comparison", "effect", "outcome", "parameter", "reason"),
    *("searched", "searched over", "stage", "state", "trial"),
}
_TRIAL_COLUMNS = ("trial", "state", "reason", "last step", "eval PPL")


@dataclass(frozen=True)
class Sheet:
    """A table before it is drawn.

    Attributes:
        columns: titles; those in ``WORDS`` hold words, the others numbers.
        rows: cells as text.
        caption: below it.
        strong: rows to stress.
        faint: rows to step back.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    strong: frozenset[int] = frozenset()
    faint: frozenset[int] = frozenset()

    def used(self) -> list[int]:
        """Columns with anything in them."""
        return [i for i in range(len(self.columns)) if any(row[i] for row in self.rows)]

    def mapped(self, change: Callable[[str], str]) -> "Sheet":
        """Return the sheet with every title and cell changed."""
        rows = tuple(tuple(map(change, row)) for row in self.rows)
        return replace(self, columns=tuple(map(change, self.columns)), rows=rows)


def best_trials(records: Mapping[str, Record], study: Study) -> frozenset[str]:
    """Return the names of the search trials that have won, one for each search and arm."""
    return frozenset(w.record.name for w in winners(study, records).values())


def _ppl(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.3f}" if value < 1000 else f"{value:,.0f}"


def _change(c: Comparison | None) -> str:
    return f"{c.change:+z.2f} % [{c.low:+z.2f}, {c.high:+z.2f}]" if c else ""


def arms_sheet(results: Results) -> Sheet:
    """One row an arm, one column of changes a reference; the base without adapter first."""
    compared = {c.reference for c in results.comparisons}
    references = [a.arm for a in results.arms if a.arm in compared]
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


def _arm_row(results: Results, arm: ArmResult, references: Sequence[str]) -> tuple[str, ...]:
    changes = ["-" if r == arm.arm else _change(results.comparison(arm.arm, r)) for r in references]
    return (
        arm.arm,
        _ppl(arm.ppl),
        _ppl(arm.ppl_median),
        *changes,
        f"{arm.parameters:,}",
        f"{arm.trial_seconds:.1f}",
    )


def _arms_caption(results: Results) -> str:
    if not results.arms:
        return "No arm has finished the confirm stage."
    first = next(iter(results.comparisons), None)
    seeds = first.seeds if first else max(len(a.seeds) for a in results.arms)
    searches = first.searches if first else 1
    if searches > 1:
        noise = f"{searches} searches x {seeds} paired seed{'s' * (seeds > 1)}"
    else:
        noise = (
            "1 paired seed, so intervals hold no seed noise"
            if seeds == 1
            else f"{seeds} paired seeds"
        )
    return f"test PPL: mean over runs; change in %, negative = better. {results.tokens:,} test tokens, {noise}."


def comparisons_sheet(results: Results) -> Sheet:
    """One row a comparison, with every search or seed."""
    rows = [
        (
            f"{c.arm} vs {c.reference}",
            _change(c),
            c.outcome,
            f"{c.median:+z.2f}",
            ", ".join(f"{x:+z.2f}" for x in (c.by_search if c.searches > 1 else c.by_seed)),
            "" if c.replicate_sd is None else f"{c.replicate_sd:.2f}",
            _range(c.hodges_lehmann),
            _range(c.own_best),
            f"{c.p_value:.2g}",
            f"{c.p_holm:.2g}",
            f"{c.smallest_visible:.2f}",
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
    return Sheet(("comparison", *titles, *last_titles, "effect"), tuple(rows))


def _range(c: Change | None) -> str:
    return f"{c.change:+z.2f} % [{c.low:+z.2f}, {c.high:+z.2f}]" if c else ""


def rates_sheet(results: Results) -> Sheet:
    """One row a comparison, one column a factor of the learning rate: the matched change there."""
    factors = list(dict.fromkeys(r.factor for c in results.comparisons for r in c.profile))
    rows = []
    for c in results.comparisons:
        found = {r.factor: r.change for r in c.profile}
        rows.append((f"{c.arm} vs {c.reference}", *(_range(found.get(f)) for f in factors)))
    return Sheet(
        ("comparison", *(f"{f:g} x the rate" for f in factors)), tuple(rows) if factors else ()
    )


def positions_sheet(results: Results) -> Sheet:
    """One row a comparison: LIM-PPL and each tenth of the positions."""
    names = list(dict.fromkeys(n for c in results.comparisons for n in c.positions))
    rows = []
    for c in results.comparisons:
        cells = [c.positions.get(n) for n in names]
        rows.append((f"{c.arm} vs {c.reference}", *(_marked(x) for x in cells)))
    caption = (
        "Change in %; * better or worse after Holm's adjustment within the row." if names else ""
    )
    titles = [
        "LIM-PPL" if n == "lim_ppl" else f"tenth {int(n.rpartition('_')[2]) + 1}" for n in names
    ]
    return Sheet(("comparison", *titles), tuple(rows) if names else (), caption=caption)


def _marked(c: Change | None) -> str:
    return "" if c is None else _range(c) + (" *" if c.outcome in ("better", "worse") else "")


def winning_sheet(study: Study, records: Mapping[str, Record]) -> Sheet:
    """One row a parameter, one column a winner."""
    found = {(arm, search): w.params(study) for (search, arm), w in winners(study, records).items()}
    places = sorted(found, key=lambda place: (list(study.arms).index(place[0]), place[1]))
    names = dict.fromkeys(
        n for arm, search in places for n in [*study.space(arm).parameters, *found[arm, search]]
    )
    rows = [
        (
            n,
            *(value_text(found[p][n]) if n in found[p] else "" for p in places),
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
    """One row a run on fresh seeds; runs of a trial that a longer search has overtaken step back."""
    stages = ("select", "confirm")
    runs = [r for stage in stages for arm in study.arms for r in records_of(records, stage, arm)]
    counted = {r.name for stage in stages for r in counting(study, records, stage)}
    rows = [
        (
            r.arm,
            r.stage if study.finalists > 1 else "",
            str(r.search) if study.searches > 1 else "",
            f"{r.factor:g}" if len(study.factors) > 1 else "",
            str(r.number),
            _ppl(last(r, "test/ppl")),
            _ppl(last(r, "eval/ppl")),
            r.state,
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
    caption = "Grey: runs of an earlier best trial; they don't count." if faint else ""
    return Sheet(columns, tuple(rows), caption=caption, faint=faint)


def _trial_cells(r: Record) -> tuple[str, ...]:
    return (r.name, r.state, r.reason or "", str(r.step), _ppl(last(r, "eval/ppl")))


def trials_sheet(
    arm: str, records: Mapping[str, Record], study: Study, best: Collection[str]
) -> Sheet:
    """The search trials of one arm, one column a parameter."""
    found = records_of(records, "search", arm)
    names = list(
        dict.fromkeys([*study.space(arm).parameters, *(n for r in found for n in r.params)])
    )
    rows = [
        (*_trial_cells(r), *(value_text(r.params[n]) if n in r.params else "" for n in names))
        for r in found
    ]
    return Sheet(
        columns=(*_TRIAL_COLUMNS, *names),
        rows=tuple(rows),
        strong=frozenset(i for i, r in enumerate(found) if r.name in best),
        faint=frozenset(i for i, r in enumerate(found) if r.state != "complete"),
    )


def searched_sheet(records: Mapping[str, Record], study: Study) -> Sheet:
    """The search trials of all arms, what each searched in one column."""
    best = best_trials(records, study)
    found = [r for arm in study.arms for r in records_of(records, "search", arm)]
    rows = [
        (*_trial_cells(r), " ".join(f"{k}={value_text(v)}" for k, v in r.params.items()))
        for r in found
    ]
    strong = frozenset(i for i, r in enumerate(found) if r.name in best)
    return Sheet((*_TRIAL_COLUMNS, "searched"), tuple(rows), strong=strong)
