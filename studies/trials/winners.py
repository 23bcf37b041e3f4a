"""The configurations that a study confirms: each arm's best at a search's best common values."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from studies.spec.common_values import common_values
from studies.spec.study import Study
from studies.trials.records import Record, is_finite, ranked, records_of


@dataclass(frozen=True)
class Winner:
    """A configuration to be trained on fresh seeds.

    Attributes:
        record: The search trial whose own parameters it has.
        block: The matched block whose common values it has; None if the study is not matched.
    """

    record: Record
    block: int | None

    def name(self, stage: str, seed: int, factor: float = 1.0) -> str:
        """Return the name of its run in a stage on one seed."""
        place = "" if self.block is None else f"-at-{self.block:04d}"
        scaled = "" if factor == 1 else f"-x{factor:g}"
        return f"{self.record.name}{place}{scaled}-{stage}-{seed:02d}"

    def params(self, study: Study) -> dict[str, Any]:
        """Return all searched parameters: its own, with the block's common values."""
        if self.block is None:
            return dict(self.record.params)
        common = common_values(study, self.record.search, self.block)
        return study.point(self.record.arm, {**self.record.params, **common})

    def runs(self, records: Mapping[str, Record], stage: str) -> list[Record]:
        """Return its runs in a stage, by factor and seed."""
        runs = [
            r
            for r in records_of(records, stage, self.record.arm, self.record.search)
            if (r.winner, r.block) == (self.record.name, self.block)
        ]
        return sorted(runs, key=lambda r: (r.factor, r.number))


def best_block(study: Study, records: Mapping[str, Record], search: int) -> int | None:
    """Return the block with the lowest mean validation NLL over arms; None if there is none yet.

    Each block is judged at the last step that all its trials have reported. Blocks that reached a
    later step come first, because their losses are lower for that alone. Arms without a finished
    trial are left out.
    """
    by_arm: dict[str, dict[int, Record]] = {}
    for arm in study.arms:
        if ranked(records, arm, search):
            by_arm[arm] = {r.number: r for r in records_of(records, "search", arm, search)}
    if not by_arm:
        return None
    common = set.intersection(*(set(trials) for trials in by_arm.values()))
    blocks = {n: [trials[n] for trials in by_arm.values()] for n in sorted(common)}
    steps = {n: _common_step(trials) for n, trials in blocks.items()}
    last = max(steps.values(), default=0)
    scores = {n: _mean_loss(blocks[n], last) for n, step in steps.items() if step == last > 0}
    return min(scores, key=lambda n: scores[n], default=None)


def _common_step(trials: Sequence[Record]) -> int:
    """Return the last step that all trials have reported; 0 if one ended without a finite loss."""
    if any(r.state in ("diverged", "failed") or not is_finite(r.nll) for r in trials):
        return 0
    return min(r.step for r in trials)


def _mean_loss(trials: Sequence[Record], step: int) -> float:
    """Return the mean validation NLL of trials at a step."""
    reports = [x for r in trials for x in (r.reports[-1:] if r.step == step else r.reports)]
    return float(np.mean([x.metrics["eval/nll"] for x in reports if x.step == step]))


def finalists(study: Study, records: Mapping[str, Record]) -> dict[tuple[int, str], list[Winner]]:
    """Return the best trials of each search and arm, best first; they differ in their parameters.

    The list of a search and arm is empty while nothing can win there.
    """
    by_place: dict[tuple[int, str], list[Winner]] = {}
    for search in range(study.searches):
        block = best_block(study, records, search) if study.blocks else None
        comparable = block is not None or not study.blocks
        for arm in study.arms:
            trials = ranked(records, arm, search) if comparable else []
            by_place[search, arm] = _distinct(study, [Winner(r, block) for r in trials])
    return by_place


def _distinct(study: Study, candidates: Sequence[Winner]) -> list[Winner]:
    """Return the first candidates with different parameters, as many as a study has finalists.

    A study of thousands of trials computes the parameters of few of them.
    """
    if study.finalists == 1:
        return list(candidates[:1])
    distinct: dict[str, Winner] = {}
    for candidate in candidates:
        distinct.setdefault(str(candidate.params(study)), candidate)
        if len(distinct) == study.finalists:
            break
    return list(distinct.values())


def _winner(
    study: Study, records: Mapping[str, Record], candidates: Sequence[Winner]
) -> Winner | None:
    """Return the finalist of lowest mean validation NLL over the selection seeds.

    A finalist that diverged or failed on a selection seed is left out. If all did, the search's own
    best trial wins.

    Returns:
        The winner; None if no trial has finished.
    """
    scored = {}
    for index, candidate in enumerate(candidates):
        losses = [
            r.nll
            for r in candidate.runs(records, "select")
            if r.state == "complete" and r.nll is not None
        ]
        if len(losses) >= study.selection_seeds:
            scored[index] = float(np.mean(losses))
    if scored:
        return candidates[min(scored, key=lambda i: (scored[i], i))]
    return candidates[0] if candidates else None


def winners(study: Study, records: Mapping[str, Record]) -> dict[tuple[int, str], Winner]:
    """Return the winner of each search and arm that has one."""
    contested = finalists(study, records).items()
    by_place = {place: _winner(study, records, candidates) for place, candidates in contested}
    return {place: w for place, w in by_place.items() if w is not None}


def counting(study: Study, records: Mapping[str, Record], stage: str) -> list[Record]:
    """Return the records of a stage that still count.

    Runs of former winners, which later trials have overtaken, don't; neither do searches that a run
    with a time limit leaves out.
    """
    if stage in ("search", "added"):
        left_out = study.searches if stage == "search" else math.inf
        return [r for r in records.values() if r.stage == stage and r.search < left_out]
    if stage == "select":
        candidates = [w for place in finalists(study, records).values() for w in place]
    else:
        candidates = list(winners(study, records).values())
    return [r for w in candidates for r in w.runs(records, stage)]


def confirm_runs(study: Study, records: Mapping[str, Record], arm: str) -> list[Record]:
    """Return an arm's confirm runs at the winning common values, by search and seed."""
    runs = counting(study, records, "confirm")
    return [r for r in runs if r.arm == arm and r.factor == 1]


def wanted_runs(study: Study, stage: str) -> int:
    """Return the largest possible number of runs in a stage."""
    places = study.searches * len(study.arms)
    if stage == "select":
        return places * study.finalists * study.selection_seeds if study.finalists > 1 else 0
    return places * study.seeds * len(study.factors)
