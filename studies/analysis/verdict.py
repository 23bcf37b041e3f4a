"""The verdict in words: what was found about the arms, how sure it is, what it depends on, what more would take."""

from collections.abc import Sequence

from studies.analysis.comparisons import Comparison
from studies.spec.study import Study
from studies.statistics.change import Change

_SUBJECT = {
    "better": "{subject} helps.",
    "worse": "{subject} makes it worse.",
    "equivalent": "{subject} makes no difference that matters.",
    "undecided": "Whether {subject} helps is undecided.",
}
_FINDING = {
    "better": "{arm} is better than {reference}",
    "worse": "{arm} is worse than {reference}",
    "equivalent": "{arm} and {reference} differ by less than {margin:g} %",
    "undecided": "{arm} against {reference} is undecided",
}
_SCOPE = {
    "method": "These intervals speak of the arms as methods: {searches} independent searches, {seeds} in each.",
    "configurations": "These intervals speak of the confirmed configurations alone, not of the arms: there was one "
    "search, with {seeds}.",
    "runs": "These intervals speak of the confirmed runs alone: one search and one seed, so test-text noise only.",
}


def verdict(study: Study, comparisons: Sequence[Comparison]) -> str:
    """Say in plain sentences what the comparisons show.

    Args:
        study: the study.
        comparisons: those that could be made, in the study's order.
    """
    if not comparisons:
        return "No verdict: no pair of arms has finished the confirm stage."
    first = comparisons[0]
    opening = _opening(study, first)
    findings = "; ".join(_finding(c) for c in comparisons)
    parts = [
        opening,
        f"{findings}.",
        _scope(study, first),
        _levels(comparisons),
        _rates(comparisons),
    ]
    return " ".join(p for p in [*parts, _limits(comparisons)] if p)


def _opening(study: Study, first: Comparison) -> str:
    if (first.arm, first.reference) != study.comparisons[0]:
        return f"The main comparison, {' vs '.join(study.comparisons[0])}, could not be made."
    if not study.subject:
        return ""
    subject = study.subject
    if first.outcome == "undecided":
        subject = subject[0].lower() + subject[1:]
    return _SUBJECT[first.outcome].format(subject=subject)


def _finding(c: Comparison) -> str:
    text = _FINDING[c.outcome].format(arm=c.arm, reference=c.reference, margin=c.margin)
    small = c.outcome in ("better", "worse") and -c.margin < c.low and c.high < c.margin
    less = f", by less than the {c.margin:g} % that matters" if small else ""
    nearly = (
        f" (Holm-adjusted p = {c.p_holm:.3f})"
        if c.outcome == "undecided" and c.low * c.high > 0
        else ""
    )
    return f"{text}{less}: {numbers(c)}{nearly}"


def numbers(c: Comparison | Change) -> str:
    """Return a change with its interval, such as "−1.26 % PPL [−1.70, −0.83]"."""
    return _minus(f"{c.change:+z.2f} % PPL [{c.low:+z.2f}, {c.high:+z.2f}]")


def _scope(study: Study, c: Comparison) -> str:
    seeds = "1 seed" if c.seeds == 1 else f"{c.seeds} paired seeds"
    text = _SCOPE[c.scope].format(searches=c.searches, seeds=seeds)
    if study.blocks:
        return f"{text} Within each pair, both arms train at the same {listed(list(study.common.parameters))}."
    apart = _searched_apart(study)
    if not apart:
        return text
    luck = (
        "these intervals, which are wider than a matched study's"
        if c.scope == "method"
        else "none of its intervals"
    )
    return (
        f"{text} Each arm searched {listed(apart)} by itself (matched: false), so the luck of its search is in the "
        f"difference and in {luck}."
    )


def _searched_apart(study: Study) -> list[str]:
    """Return the parameters that more than one arm searches, each by itself."""
    spaces = [set(study.space(arm).parameters) for arm in study.arms]
    names = dict.fromkeys(n for arm in study.arms for n in study.space(arm).parameters)
    return [n for n in names if sum(n in space for space in spaces) == len(spaces) > 1]


def _levels(comparisons: Sequence[Comparison]) -> str:
    level = comparisons[0].level
    looks = (
        ""
        if level == 0.05
        else f" at the {100 * level:.2g} % level of this look, which keeps 5 % over all looks"
    )
    if len(comparisons) == 1:
        return f"The interval is{looks}." if looks else ""
    return (
        "Intervals are not adjusted for multiple comparisons; 'better' and 'worse' also require a Holm-adjusted "
        f"p < {level:.2g}{looks and ' (the level of this look, which keeps 5 % over all looks)'}."
    )


def _rates(comparisons: Sequence[Comparison]) -> str:
    """Say where the answer would be another with each arm at its own best learning rate."""
    said = [
        f"{c.arm} against {c.reference} depends on the learning rate: with each arm at its own best rate it is "
        f"{numbers(c.own_best)}"
        for c in comparisons
        if c.depends_on_rate and c.own_best
    ]
    return f"{'; '.join(said)}." if said else ""


def _limits(comparisons: Sequence[Comparison]) -> str:
    visible = ", ".join(
        f"{c.smallest_visible:.2f} % for {c.arm} vs {c.reference}" for c in comparisons
    )
    text = f"The smallest effect this study could have seen (power 80 %, before Holm's adjustment) is {visible}."
    plans = [c.needed for c in comparisons if c.needed and c.smallest_visible > c.needed.effect]
    if not plans:
        return text
    largest = max(plans, key=lambda p: (not p.reachable, p.searches * p.seeds * p.blocks))
    counts = (("searches", largest.searches), ("seeds", largest.seeds))
    what = " x ".join(f"{count} {name}" for name, count in counts if count > 1) or "1 seed"
    if not largest.reachable:
        return (
            f"{text} To see {largest.effect:g} % in all of them, even {what} would not be enough."
        )
    return f"{text} To see {largest.effect:g} % in all of them, about {what} on {largest.blocks} test blocks are needed."


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence lists them: "a, b and c"."""
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names)


def _minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")
