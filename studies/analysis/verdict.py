"""The verdict in words: the outcome of each comparison, its scope, its limits and what it needs."""

from collections.abc import Sequence

from studies.analysis.comparisons import Comparison, stays_within
from studies.spec.study import Study
from studies.statistics.change import Change, effect_text, interval_text

_SUBJECT = {
    "better": "{subject} helps.",
    "worse": "{subject} makes perplexity worse.",
    "equivalent": "{subject} makes no practical difference.",
    "undecided": "It is undecided whether {subject} helps.",
}
_MOST_SENTENCES = 4  # more comparisons are summed up by outcome
_GROUP = {
    "better": "better",
    "worse": "worse",
    "equivalent": "within {margin:g} %",
    "undecided": "undecided",
}
_OUTCOME = {
    "better": "{arm} is better than {reference}",
    "worse": "{arm} is worse than {reference}",
    "equivalent": "{arm} and {reference} differ by less than {margin:g} %",
    "undecided": "{arm} vs {reference} is undecided",
}
_SCOPE = {
    "method": "These intervals hold for the arms as methods: {searches} independent searches with "
    "{seeds} each.",
    "configurations": "These intervals hold for the confirmed configurations only, not for the "
    "arms: 1 search with {seeds}.",
    "runs": "These intervals hold for the confirmed runs only: with 1 search and 1 seed, they "
    "reflect the noise of the test text alone.",
}


def verdict(study: Study, comparisons: Sequence[Comparison]) -> str:
    """Return the verdict on the comparisons, in sentences.

    Args:
        study: The study.
        comparisons: The comparisons that could be made, in the study's order.
    """
    if not study.comparisons:
        return "No verdict: the study compares no arms."
    if not comparisons:
        return "No verdict: no pair of arms has finished the confirm stage."
    first = comparisons[0]
    opening = _opening(study, first)
    several = len(comparisons) > _MOST_SENTENCES
    outcomes = "; ".join(_outcome(c) for c in comparisons)
    parts = [
        opening,
        _summary(comparisons) if several else f"{outcomes}.",
        _scope(study, comparisons),
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
        first_word = subject.split()[0]
        if first_word[1:] == first_word[1:].lower():  # a name such as DoRA keeps its capital
            subject = subject[0].lower() + subject[1:]
    return _SUBJECT[first.outcome].format(subject=subject)


def _outcome(c: Comparison) -> str:
    text = _OUTCOME[c.outcome].format(arm=c.arm, reference=c.reference, margin=c.margin)
    small = c.outcome in ("better", "worse") and stays_within(c, c.margin)
    less = f", but by less than the margin of {c.margin:g} %" if small else ""
    nearly = (
        f" (Holm-adjusted p = {c.p_holm:.3f})"
        if c.outcome == "undecided" and c.low * c.high > 0
        else ""
    )
    return f"{text}{less}: {numbers(c)}{nearly}"


def _summary(comparisons: Sequence[Comparison]) -> str:
    """Count the comparisons by outcome and name those of each; only certain changes get figures."""
    references = list(dict.fromkeys(c.reference for c in comparisons))
    shared = f" with {references[0]}" if len(references) == 1 else ""
    counts, named = [], []
    for outcome, words in _GROUP.items():
        members = [c for c in comparisons if c.outcome == outcome]
        if members:
            title = words.format(margin=members[0].margin)
            counts.append(f"{len(members)} {title}")
            names = [_short(c, alone=bool(shared)) for c in members]
            named.append(f"{title[0].upper()}{title[1:]}: {', '.join(names)}.")
    return " ".join([f"{len(comparisons)} comparisons{shared}: {', '.join(counts)}.", *named])


def _short(c: Comparison, *, alone: bool) -> str:
    """Return an arm, with its reference unless it stands alone, and a change that is certain."""
    name = c.arm if alone else f"{c.arm} vs {c.reference}"
    if c.outcome not in ("better", "worse"):
        return name
    small = ", less than the margin" if stays_within(c, c.margin) else ""
    return f"{name} ({numbers(c)}{small})"


def numbers(c: Comparison | Change) -> str:
    """Return a change with its interval, for example "−1.26 % PPL [−1.70, −0.83]"."""
    return _minus(interval_text(c.change, c.low, c.high, " % PPL"))


def _scope(study: Study, comparisons: Sequence[Comparison]) -> str:
    c = comparisons[0]
    seeds = "1 seed" if c.seeds == 1 else f"{c.seeds} paired seeds"
    text = _SCOPE[c.scope].format(searches=c.searches, seeds=seeds) + _exceptions(comparisons)
    if study.blocks:
        shared = listed(list(study.common.parameters))
        return f"{text} Within each pair, both arms train at the same {shared}."
    apart = _searched_apart(study)
    if not apart:
        return text
    intervals = (
        "and so do these intervals, which are wider than a matched study's"
        if c.scope == "method"
        else "but the intervals don't"
    )
    return (
        f"{text} Each arm searched {listed(apart)} separately (matched: false), so the difference "
        f"includes the luck of each search, {intervals}."
    )


def replicates(searches: int, seeds: int) -> str:
    """Return how often arms were compared, such as "5 searches x 1 paired seed"."""
    paired = f"{seeds} paired seed{'s' * (seeds > 1)}"
    return f"{searches} searches x {paired}" if searches > 1 else paired


def _exceptions(comparisons: Sequence[Comparison]) -> str:
    """Name the comparisons whose numbers of searches or seeds differ from the first one's."""
    first = comparisons[0]
    usual = (first.searches, first.seeds)
    rest = [
        f"{c.arm} vs {c.reference} rests on {replicates(c.searches, c.seeds)}"
        for c in comparisons
        if (c.searches, c.seeds) != usual
    ]
    return f" But {listed(rest)}." if rest else ""


def _searched_apart(study: Study) -> list[str]:
    """Return the parameters that all arms search, if there is more than one arm."""
    spaces = [set(study.space(arm).parameters) for arm in study.arms]
    names = dict.fromkeys(n for arm in study.arms for n in study.space(arm).parameters)
    return [n for n in names if sum(n in space for space in spaces) == len(spaces) > 1]


def _levels(comparisons: Sequence[Comparison]) -> str:
    level = comparisons[0].level
    of_look = "level of this look, which keeps the error rate over all looks at 5 %"
    if len(comparisons) == 1:
        return "" if level == 0.05 else f"The interval is at the {100 * level:.2g} % {of_look}."
    why = "" if level == 0.05 else f" (the {of_look})"
    return (
        "Intervals are not adjusted for multiple comparisons; 'better' and 'worse' also require "
        f"a Holm-adjusted p < {level:.2g}{why}."
    )


def _rates(comparisons: Sequence[Comparison]) -> str:
    """Name the comparisons that depend on the learning rate, with the change at own best rates."""
    dependent = [
        f"{c.arm} vs {c.reference} depends on the learning rate: with each arm at its own best "
        f"rate, the change is {numbers(c.own_best)}"
        for c in comparisons
        if c.depends_on_rate and c.own_best
    ]
    return f"{'; '.join(dependent)}." if dependent else ""


def _limits(comparisons: Sequence[Comparison]) -> str:
    shown = comparisons
    if len(comparisons) > _MOST_SENTENCES:
        ordered = sorted(comparisons, key=lambda c: c.smallest_visible)
        shown = [ordered[0], ordered[-1]]
    each = [f"{effect_text(c.smallest_visible)} % for {c.arm} vs {c.reference}" for c in shown]
    visible = (
        f"is {', '.join(each)}" if shown is comparisons else f"ranges from {' to '.join(each)}"
    )
    text = (
        "The smallest effect that this study could have detected (80 % power, before Holm's "
        f"adjustment) {visible}."
    )
    plans = [c.needed for c in comparisons if c.needed and c.smallest_visible > c.needed.effect]
    if not plans:
        return text
    # One design is to do for all, so it takes the most of each that any of them needs.
    most = {name: max(getattr(p, name) for p in plans) for name in ("searches", "seeds", "blocks")}
    counts = [f"{most[name]} {name}" for name in ("searches", "seeds") if most[name] > 1]
    design = " x ".join(counts) or "1 seed"
    effect = f"{max(p.effect for p in plans):g} % in every comparison"
    if not all(p.reachable for p in plans):
        return f"{text} Even {design} would not be enough to detect {effect}."
    return f"{text} About {design} on {most['blocks']} test blocks would detect {effect}."


def listed(names: Sequence[str]) -> str:
    """Return names as in a sentence: "a, b and c"."""
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names)


def _minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")
