"""Findings of the report on why the arms differ, each with the figure that supports it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from studies.analysis.boundaries import DRAWS, Placement, Together, placement
from studies.analysis.gates import Gates, read_gates
from studies.analysis.importance import FEWEST, MOST, Importance, importance, rung_step
from studies.analysis.verdict import listed
from studies.reporting.figures import finding_plots as plots
from studies.spec.study import Study
from studies.statistics.agreement import Agreement
from studies.statistics.gating import STANDS_OUT, entropy_bits, information_bits, leanings
from studies.statistics.tuning import TuningCurve, tuning_curve
from studies.trials.records import Record, is_finite, records_of
from studies.trials.winners import confirm_runs

_LEVEL = 0.05
_LEAST_BITS = 0.01  # the least information that is given as a number
_ENDED = ("complete", "pruned", "diverged", "failed")


@dataclass(frozen=True)
class Finding:
    """One finding of the report.

    Attributes:
        title: Its subject.
        says: The finding in sentences.
        figure: The figure that shows it; None if there is nothing to draw.
        reading: How to read the figure.
    """

    title: str
    says: str
    figure: Figure | None = None
    reading: str = ""


def findings(
    records: Mapping[str, Record], study: Study, folder: Path, colors: Mapping[str, str]
) -> list[Finding]:
    """Return all findings that a study's records support.

    Args:
        records: All trials and runs, by name.
        study: The study.
        folder: Folder of the study, with the adapters of its confirm runs.
        colors: Color of each arm.

    Raises:
        InputError: A record does not fit the study.
    """
    confirmed = {arm: _confirmed(arm, records, study) for arm in study.arms}
    made = [_tuning(records, study, colors), _importance(records, study, folder, colors)]
    made += [_boundaries(arm, runs, study, colors[arm]) for arm, runs in confirmed.items()]
    made += [_landmarks(arm, runs, folder, colors[arm]) for arm, runs in confirmed.items()]
    return [f for f in made if f is not None]


def _confirmed(arm: str, records: Mapping[str, Record], study: Study) -> list[Record]:
    """Return the arm's complete confirm runs at the winning common values, by search and seed."""
    return [r for r in confirm_runs(study, records, arm) if r.state == "complete"]


def _tuning(
    records: Mapping[str, Record], study: Study, colors: Mapping[str, str]
) -> Finding | None:
    curves = tuning_curves(records, study)
    figure = plots.tuning(curves, colors)
    if figure is None:
        return None
    searches = max(c.searches for c in curves.values())
    mean = f", averaged over {searches} searches" if searches > 1 else ""
    reading = (
        "The lowest validation PPL to expect after this many trials of a search: the exact mean "
        f"over all orders of the trials{mean}. Trials that were stopped early, diverged or failed "
        "count but are never the best; orders that begin with nothing else are left out. A sampler "
        "that learns from earlier trials can do better."
    )
    return Finding("Tuning", _flattened(curves, study.margin), figure, reading)


def tuning_curves(records: Mapping[str, Record], study: Study) -> dict[str, TuningCurve]:
    """Return the tuning curve of each arm that has one."""
    curves = ((arm, _curve(records, study, arm)) for arm in study.arms)
    return {arm: curve for arm, curve in curves if curve is not None}


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
    """Say which arms would hardly gain from more trials."""
    gains = {arm: gain for arm, c in curves.items() if (gain := c.last_gain) is not None}
    if not gains:
        return (
            "Whether more trials would help can't be said: that takes 4 finished trials in every "
            "search, and no arm has them."
        )
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
        ends.append(f"{listed(flat)} {_plural(flat, 'has', 'have')} flattened")
    if steep:
        verb = f"{_plural(steep, 'has', 'have')} not{'' if flat else ' flattened'}"
        ends.append(f"{listed(steep)} {verb}, so more trials may still help")
    few = [arm for arm in curves if arm not in gains]
    verb = _plural(few, "has", "have")
    too_few = f" {listed(few)} {verb} too few finished trials to say." if few else ""
    return (
        f"The second half of the trials{span} lowered the expected best validation PPL by "
        f"{listed(each)}. "
        f"Measured against the margin of {margin:g} %, {', '.join(ends)}.{too_few}"
    )


def _plural(names: Sequence[str], one: str, many: str) -> str:
    return one if len(names) == 1 else many


def _importance(
    records: Mapping[str, Record], study: Study, folder: Path, colors: Mapping[str, str]
) -> Finding | None:
    measured = {arm: importance(records, study, arm, folder) for arm in study.arms}
    by_arm = {arm: i for arm, i in measured.items() if i is not None}
    if not by_arm:
        return None
    says = " ".join(_important(arm, i) for arm, i in by_arm.items() if i.shares)
    few = [f"{arm} has {i.trials}" for arm, i in by_arm.items() if not i.shares]
    if few:
        says += (
            " Too few trials to measure the importance of parameters: "
            f"{listed(few)}, and {FEWEST} are needed."
        )
    most = (
        f" (of more than {MOST} trials, {MOST} drawn at random)"
        if any(i.trials > MOST for i in by_arm.values())
        else ""
    )
    reading = (
        "Optuna's conditional PED-ANOVA of the validation losses at step "
        f"{rung_step(study)}, including trials that ASHA stopped later; diverged trials rank last, "
        f"and all searches are pooled{most}. Bars: each parameter's share of the importance for "
        "being among the best trials (a tenth of them, at least 5). Marks: the share that shuffled "
        "losses exceed in 5 % of cases, over all parameters of an arm together. Strong color: "
        "beyond its mark. Arms that search fewer than two parameters are left out."
    )
    return Finding(
        "Which parameters matter", says.strip(), plots.importances(by_arm, colors), reading
    )


def _important(arm: str, measured: Importance) -> str:
    shares = measured.shares
    strong = [f"{name} ({100 * s.share:.0f} %)" for name, s in shares.items() if s.stands_out]
    if not strong:
        return f"Among {measured.trials} trials of {arm}, no parameter matters more than by chance."
    verb = _plural(strong, "matters", "matter")
    rest = len(shares) - len(strong)
    others = f"; the other {rest} can't be told from chance" if rest else ""
    return f"Among {measured.trials} trials of {arm}, {listed(strong)} {verb}{others}."


def _boundaries(arm: str, runs: Sequence[Record], study: Study, color: str) -> Finding | None:
    learned = [r for r in runs if _has_boundaries(r)]
    if not learned:
        return None
    placed = placement(learned, study.block_size, study.seed)
    says = " ".join([_distances(arm, placed), *_agreements(placed)])
    reading = (
        "The bucket of each position at the end of every confirm run (one line each), with the "
        "fixed spacings of as many buckets. Distance: the mean over boundaries of equal rank; "
        "between different numbers of buckets, the area between the lines with buckets scaled to "
        "0 to 1. Consistency: 1 - mean distance between runs / mean distance between boundaries "
        f"drawn as boundary_init: random draws them ({DRAWS} draws)."
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


def _distances(arm: str, placed: Placement) -> str:
    log, uniform = placed.distances["log"], placed.distances["uniform"]
    runs = f"{placed.runs} confirm runs" if placed.runs > 1 else "the only confirm run"
    return (
        f"The boundaries of {arm} end {log.end:.2f} tokens from the log spacing and "
        f"{uniform.end:.2f} tokens from the uniform one (mean over {runs}); they start "
        f"{log.start:.2f} and {uniform.start:.2f} tokens from them."
    )


def _agreements(placed: Placement) -> list[str]:
    """Say whether the boundaries of different runs agree, over seeds and over searches."""
    if placed.seeds is None and placed.searches is None:
        return ["A single run says nothing about agreement."]
    pairs = (("Seeds of one search", placed.seeds), ("Different searches", placed.searches))
    return [_agreed(who, together) for who, together in pairs if together is not None]


def _agreed(who: str, together: Together) -> str:
    start, end = together.start, together.end
    numbers = f"{_number(end)}, p = {end.p_value:.2g}; at the start {_number(start)}"
    if end.p_value >= 1 - _LEVEL:
        return f"{who} lie further apart than random boundaries would (consistency {numbers})."
    if end.p_value > _LEVEL:
        return f"{who} agree no more than random boundaries would (consistency {numbers})."
    why = (
        "training brought them together"
        if start.p_value > _LEVEL
        else "they already agreed at the start"
    )
    return f"{who} agree more than random boundaries would (consistency {numbers}): {why}."


def _number(agreement: Agreement) -> str:
    return f"{agreement.consistency:.2f}"


def _landmarks(arm: str, runs: Sequence[Record], folder: Path, color: str) -> Finding | None:
    firsts = {r.search: r for r in reversed(runs)}  # the lowest seed of each search
    shown = [firsts[search] for search in sorted(firsts)]
    gates = [g for r in shown if (g := read_gates(folder, r)) is not None]
    if not gates:
        return None
    says = " ".join(_leaned(g, several=len(gates) > 1) for g in gates)
    reading = (
        "Weight of each landmark (rows) at the positions that lie mostly in one bucket (columns), "
        "for one confirm run of each search; a stronger color means a larger weight. A position "
        f"leans on a landmark that has at least {STANDS_OUT:g} times its even share. Computed from "
        "the trained adapter as the softmax of the position's logits, without the part of the gate "
        "that depends on the text. Landmark numbers don't correspond between runs."
    )
    return Finding(f"Landmarks of {arm}", says, plots.gates(gates, color), reading)


def _leaned(gates: Gates, *, several: bool) -> str:
    """Say where a landmark of one run stands out, and how much the position decides."""
    positions, landmarks = gates.weights.shape
    stretches = leanings(gates.weights)
    if stretches:
        longest = max(stretches, key=lambda s: (s.last - s.first, s.weight))
        leaning = sum(s.last - s.first + 1 for s in stretches)
        where = (
            f"{longest.first} to {longest.last}"
            if longest.last > longest.first
            else f"{longest.first}"
        )
        lean = (
            f"{leaning} of {positions} positions lean on one landmark, {where} on landmark "
            f"{longest.landmark} with {100 * longest.weight:.0f} % of the weight"
        )
    else:
        lean = "no position leans on one landmark"
    entropy = f"{entropy_bits(gates.weights):.2f} of {math.log2(landmarks):.2f} bits of entropy"
    information = information_bits(gates.weights)
    amount = f"{information:.2f}" if information >= _LEAST_BITS else f"less than {_LEAST_BITS:g}"
    says = (
        f"{lean}; the weights have {entropy}, and the position carries {amount} bits of "
        "information about the landmark."
    )
    return f"Search {gates.run.search}: {says}" if several else says[0].upper() + says[1:]
