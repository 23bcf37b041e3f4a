"""Why the arms came out as they did: findings of the report, each a sentence with the figure that supports it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from studies.analysis.boundaries import DRAWS, Placement, Together, placement
from studies.analysis.gates import Gates, read_gates
from studies.analysis.importance import FEWEST, MOST, Importance, importance, rung_step
from studies.analysis.verdict import listed
from studies.reporting import finding_plots as plots
from studies.spec.study import Study
from studies.statistics.agreement import Agreement
from studies.statistics.gating import STANDS_OUT, entropy_bits, information_bits, leanings
from studies.statistics.tuning import TuningCurve, tuning_curve
from studies.trials.records import Record, is_finite, records_of
from studies.trials.winners import winners

_LEVEL = 0.05
_LEAST_BITS = 0.01  # that a sentence gives as a number
_ENDED = ("complete", "pruned", "diverged", "failed")


@dataclass(frozen=True)
class Finding:
    """One finding of the report.

    Attributes:
        title: what it is about.
        says: what was found.
        figure: the ``<svg>`` that shows it; None where there is nothing to draw.
        reading: how to read the figure.
    """

    title: str
    says: str
    figure: str | None = None
    reading: str = ""


def findings(
    records: Mapping[str, Record], study: Study, folder: Path, colors: Mapping[str, str]
) -> list[Finding]:
    """Return all findings that a study's records allow.

    Args:
        records: all trials and runs, by name.
        study: the study.
        folder: of the study, with the adapters of its confirm runs.
        colors: of the arms.

    Raises:
        InputError: a record does not fit the study.
    """
    confirmed = {arm: _confirmed(arm, records, study) for arm in study.arms}
    found = [_tuning(records, study, colors), _importance(records, study, folder, colors)]
    found += [_boundaries(arm, runs, study, colors[arm]) for arm, runs in confirmed.items()]
    found += [_landmarks(arm, runs, folder, colors[arm]) for arm, runs in confirmed.items()]
    return [f for f in found if f is not None]


def _confirmed(arm: str, records: Mapping[str, Record], study: Study) -> list[Record]:
    """Return the arm's complete confirm runs at the winning common values, by search and seed."""
    found = [w for (_, name), w in winners(study, records).items() if name == arm]
    return [
        r
        for w in found
        for r in w.runs(records, "confirm")
        if r.state == "complete" and r.factor == 1
    ]


def _tuning(
    records: Mapping[str, Record], study: Study, colors: Mapping[str, str]
) -> Finding | None:
    curves = {
        arm: curve for arm in study.arms if (curve := _curve(records, study, arm)) is not None
    }
    figure = plots.tuning(curves, colors)
    if figure is None:
        return None
    searches = max(c.searches for c in curves.values())
    mean = f", averaged over {searches} searches" if searches > 1 else ""
    reading = (
        "The lowest validation PPL to expect after so many of a search's trials: the exact mean over all orders of "
        f"the trials{mean}. Trials that were stopped early, diverged or failed count, but are never the best, and "
        "orders that begin with them alone are left out. A sampler that learns from earlier trials can do better."
    )
    return Finding("Tuning", _flattened(curves, study.margin), figure, reading)


def _curve(records: Mapping[str, Record], study: Study, arm: str) -> TuningCurve | None:
    searches = []
    for search in range(study.searches):
        ended = [r for r in records_of(records, "search", arm, search) if r.state in _ENDED]
        losses = [
            r.nll for r in ended if r.state == "complete" and r.nll is not None and is_finite(r.nll)
        ]
        searches.append((losses, len(ended)))
    return tuning_curve(searches)


def _flattened(curves: Mapping[str, TuningCurve], margin: float) -> str:
    """Say which arms would hardly have gained from more trials."""
    gains = {arm: gain for arm, c in curves.items() if (gain := c.last_gain) is not None}
    if not gains:
        return "No arm has 4 finished trials in every search: too few to say whether more would still help."
    spans = {arm: f"from {curves[arm].half} to {curves[arm].trials}" for arm in gains}
    same = len(set(spans.values())) == 1
    each = [
        f"{gain:.2f} % for {arm}" + ("" if same else f" ({spans[arm]})")
        for arm, gain in gains.items()
    ]
    span = f" ({next(iter(spans.values()))})" if same else ""
    flat, steep = (
        [a for a, g in gains.items() if (g < margin) == is_flat] for is_flat in (True, False)
    )
    ends = []
    if flat:
        ends.append(f"{listed(flat)} {'has' if len(flat) == 1 else 'have'} flattened")
    if steep:
        which = f"{listed(steep)} {'has' if len(steep) == 1 else 'have'} not{'' if flat else ' flattened'}"
        ends.append(f"{which}, so more trials may still help")
    few = [arm for arm in curves if arm not in gains]
    too_few = (
        f" {listed(few)} {'has' if len(few) == 1 else 'have'} too few finished trials to say."
        if few
        else ""
    )
    return (
        f"The second half of the trials{span} lowered the expected best validation PPL by {listed(each)}. "
        f"Measured against the margin of {margin:g} %, {', '.join(ends)}.{too_few}"
    )


def _importance(
    records: Mapping[str, Record], study: Study, folder: Path, colors: Mapping[str, str]
) -> Finding | None:
    measured = {arm: importance(records, study, arm, folder) for arm in study.arms}
    found = {arm: i for arm, i in measured.items() if i is not None}
    if not found:
        return None
    says = " ".join(_important(arm, i) for arm, i in found.items() if i.shares)
    few = [f"{arm} has {i.trials}" for arm, i in found.items() if not i.shares]
    if few:
        says += f" Too few trials to measure the importance of parameters: {listed(few)}, and {FEWEST} are needed."
    most = (
        f" (of more than {MOST} trials, {MOST} drawn at random)"
        if any(i.trials > MOST for i in found.values())
        else ""
    )
    reading = (
        f"Conditional PED-ANOVA (Optuna) of the validation losses at step {rung_step(study)}, which trials that ASHA "
        f"stopped have too; diverged trials rank last, and all searches are pooled{most}. Bars: how much of the "
        "importance each parameter has for being among the best trials (a tenth of them, and at least 5). Marks: the "
        "share that shuffled losses exceed in 5 % of cases, over all parameters of an arm together. Strong colour: "
        "beyond its mark. Arms that search fewer than two parameters are left out."
    )
    return Finding(
        "Which parameters matter", says.strip(), plots.importances(found, colors), reading
    )


def _important(arm: str, found: Importance) -> str:
    strong = [f"{name} ({100 * s.share:.0f} %)" for name, s in found.shares.items() if s.stands_out]
    if not strong:
        return (
            f"Among {found.trials} trials of {arm}, no parameter mattered more than chance allows."
        )
    verb = "matters" if len(strong) == 1 else "matter"
    rest = len(found.shares) - len(strong)
    others = f"; the other {rest} can't be told from chance" if rest else ""
    return f"Among {found.trials} trials of {arm}, {listed(strong)} {verb}{others}."


def _boundaries(arm: str, runs: Sequence[Record], study: Study, color: str) -> Finding | None:
    learned = [r for r in runs if _has_boundaries(r)]
    if not learned:
        return None
    found = placement(learned, study.block_size, study.seed)
    says = " ".join([_placed(arm, found), *_together(found)])
    reading = (
        "In which bucket each position lies at the end of every confirm run (a line each), over the fixed spacings "
        "with as many buckets. Distances: the mean over boundaries of equal rank; between different numbers of "
        "buckets, the area between the lines with buckets counted from 0 to 1. Consistency: 1 - mean distance between "
        f"runs / mean distance between boundaries drawn as boundary_init: random draws them ({DRAWS} draws)."
    )
    return Finding(
        f"Boundaries of {arm}",
        says,
        plots.boundary_steps(learned, study.block_size, color),
        reading,
    )


def _has_boundaries(run: Record) -> bool:
    start, end = run.reports[-1].start_boundaries, run.reports[-1].boundaries
    return 0 < len(end) == len(start) and all(map(math.isfinite, (*start, *end)))


def _placed(arm: str, found: Placement) -> str:
    log, uniform = found.distances["log"], found.distances["uniform"]
    runs = f"{found.runs} confirm runs" if found.runs > 1 else "the only confirm run"
    return (
        f"The boundaries of {arm} end {log.end:.2f} tokens from the log spacing and {uniform.end:.2f} tokens from the "
        f"uniform one (mean over {runs}); they start {log.start:.2f} and {uniform.start:.2f} tokens from them."
    )


def _together(found: Placement) -> list[str]:
    """Say whether the boundaries of different runs agree, over seeds and over searches."""
    if found.seeds is None and found.searches is None:
        return ["With a single run nothing can be said about agreement."]
    pairs = (("Seeds of one search", found.seeds), ("Different searches", found.searches))
    return [_agreed(who, together) for who, together in pairs if together is not None]


def _agreed(who: str, found: Together) -> str:
    numbers = (
        f"{_number(found.end)}, p = {found.end.p_value:.2g}; at the start {_number(found.start)}"
    )
    if found.end.p_value >= 1 - _LEVEL:
        return f"{who} lie further apart than random boundaries would (consistency {numbers})."
    if found.end.p_value > _LEVEL:
        return f"{who} agree no more than random boundaries would (consistency {numbers})."
    why = (
        "training has brought them together"
        if found.start.p_value > _LEVEL
        else "their starts agreed already"
    )
    return f"{who} agree more than random boundaries would (consistency {numbers}): {why}."


def _number(found: Agreement) -> str:
    return f"{found.consistency:.2f}"


def _landmarks(arm: str, runs: Sequence[Record], folder: Path, color: str) -> Finding | None:
    firsts = {r.search: r for r in reversed(runs)}  # the lowest seed of each search
    shown = [firsts[search] for search in sorted(firsts)]
    found = [g for r in shown if (g := read_gates(folder, r)) is not None]
    if not found:
        return None
    says = " ".join(_leaned(g, several=len(found) > 1) for g in found)
    reading = (
        "Weight of each landmark (rows) at the positions that lie mostly in one bucket (columns), for one confirm run "
        "of each search; the stronger the colour, the larger. A position leans on a landmark that has at least "
        f"{STANDS_OUT:g} times its even share. Computed from the trained adapter as the softmax of the position's "
        "logits: the part of the gate that depends on the text is left out. Landmarks have other numbers in every run."
    )
    return Finding(f"Landmarks of {arm}", says, plots.gates(found, color), reading)


def _leaned(found: Gates, *, several: bool) -> str:
    """Say at which positions of one run a landmark stands out, and how much the position decides."""
    positions, landmarks = found.weights.shape
    stretches = leanings(found.weights)
    if stretches:
        longest = max(stretches, key=lambda s: (s.last - s.first, s.weight))
        leaning = sum(s.last - s.first + 1 for s in stretches)
        where = (
            f"{longest.first} to {longest.last}"
            if longest.last > longest.first
            else f"{longest.first}"
        )
        lean = f"{leaning} of {positions} positions lean on one landmark, {where} on landmark {longest.landmark} with "
        lean += f"{100 * longest.weight:.0f} % of the weight"
    else:
        lean = "no position leans on one landmark"
    bits = f"the weights have {entropy_bits(found.weights):.2f} of {math.log2(landmarks):.2f} bits of entropy"
    told = information_bits(found.weights)
    amount = f"{told:.2f}" if told >= _LEAST_BITS else f"less than {_LEAST_BITS:g}"
    says = f"{lean}; {bits}, and the position tells {amount} bits about the landmark."
    return f"Search {found.run.search}: {says}" if several else says[0].upper() + says[1:]
