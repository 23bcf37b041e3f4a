"""Which configurations a study confirms: of each search, every arm's best at the search's best common values."""

from collections.abc import Mapping
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
        record: the search trial whose own parameters it has.
        block: the matched block whose common values it has; None where the study is not matched.
    """

    record: Record
    block: int | None

    def name(self, stage: str, seed: int, factor: float = 1.0) -> str:
        """Return the name of its run of a stage on one seed."""
        place = "" if self.block is None else f"-at-{self.block:04d}"
        scaled = "" if factor == 1 else f"-x{factor:g}"
        return f"{self.record.name}{place}{scaled}-{stage}-{seed:02d}"

    def params(self, study: Study) -> dict[str, Any]:
        """Return all that was searched: its own parameters, with the block's common values."""
        if self.block is None:
            return dict(self.record.params)
        common = common_values(study, self.record.search, self.block)
        return study.point(self.record.arm, {**self.record.params, **common})

    def runs(self, records: Mapping[str, Record], stage: str) -> list[Record]:
        """Return its runs of a stage, by factor and seed."""
        found = [
            r
            for r in records_of(records, stage, self.record.arm, self.record.search)
            if (r.winner, r.block) == (self.record.name, self.block)
        ]
        return sorted(found, key=lambda r: (r.factor, r.number))


def best_block(study: Study, records: Mapping[str, Record], search: int) -> int | None:
    """Return the block with the lowest mean validation NLL over arms; None before any can be compared.

    Blocks whose trials got further come first, as their losses are lower for that alone: each is judged at the last
    step that all its trials have reported. Arms of which no trial has finished have no say.
    """
    by_arm = {arm: records_of(records, "search", arm, search) for arm in study.arms}
    alive = {
        arm: {r.number: r for r in found}
        for arm, found in by_arm.items()
        if ranked(records, arm, search)
    }
    if not alive:
        return None
    common = set.intersection(*(set(found) for found in alive.values()))
    scores = {
        number: _block_score([found[number] for found in alive.values()])
        for number in sorted(common)
    }
    return min((n for n in scores if scores[n]), key=lambda n: scores[n] or (0, 0.0), default=None)


def _block_score(trials: list[Record]) -> tuple[int, float] | None:
    """Return (-steps, mean NLL) of a block, or None where a trial of it has no finite loss."""
    if any(r.state in ("diverged", "failed") or not is_finite(r.nll) for r in trials):
        return None
    step = min(r.step for r in trials)
    losses = [
        report.metrics["eval/nll"] for r in trials for report in r.reports if report.step == step
    ]
    return -step, float(np.mean(losses))


def finalists(study: Study, records: Mapping[str, Record], search: int, arm: str) -> list[Winner]:
    """Return one search's best trials of an arm, the best first, each with other parameters of the arm's own."""
    block = best_block(study, records, search) if study.blocks else None
    if study.blocks and block is None:  # no block in which all arms can be compared
        return []
    found: dict[str, Winner] = {}
    for record in ranked(records, arm, search):
        candidate = Winner(record, block)
        found.setdefault(str(candidate.params(study)), candidate)
    return list(found.values())[: study.finalists]


def winner(study: Study, records: Mapping[str, Record], search: int, arm: str) -> Winner | None:
    """Return the finalist of lowest mean validation NLL over the selection seeds; None where no trial has finished.

    A finalist that diverged or failed on a selection seed is left out; if all did, the search's own best stands.
    """
    candidates = finalists(study, records, search, arm)
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
    places = [(search, arm) for search in range(study.searches) for arm in study.arms]
    found = {place: winner(study, records, *place) for place in places}
    return {place: w for place, w in found.items() if w is not None}


def counting(study: Study, records: Mapping[str, Record], stage: str) -> list[Record]:
    """Return a stage's records that count: later trials may have overtaken the winners that earlier ones were of."""
    if stage == "search":
        return [r for r in records.values() if r.stage == stage]
    if stage == "select":
        places = [(search, arm) for search in range(study.searches) for arm in study.arms]
        candidates = [w for place in places for w in finalists(study, records, *place)]
    else:
        candidates = list(winners(study, records).values())
    return [r for w in candidates for r in w.runs(records, stage)]


def wanted_runs(study: Study, stage: str) -> int:
    """Return how many runs a stage has at most."""
    places = study.searches * len(study.arms)
    if stage == "select":
        return places * study.finalists * study.selection_seeds if study.finalists > 1 else 0
    return places * study.seeds * len(study.factors)
