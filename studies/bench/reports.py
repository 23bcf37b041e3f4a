"""The cost of a pack's report: evaluation, checkpoint, and the messages through host and Tune."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from hylorada import Blocks
from studies.bench.designs import trial_adapter
from studies.bench.loops import trial_training
from studies.bench.options import Setting
from studies.bench.timed_engine import PARTS, TIMES, TimedEngine
from studies.engine.cluster import Cluster
from studies.trials.messages import Job, Report

EVERY = 25  # optimizer steps between reports
_PAIRS = 4  # of stretches, one with reports inside and one without


class _Jobs:
    """A source of K jobs that notes their failures."""

    def __init__(self, jobs: list[Job]) -> None:
        self._jobs = jobs
        self.failures: list[str] = []

    def remaining(self) -> int:
        """Return the number of jobs not yet handed out."""
        return len(self._jobs)

    def next_job(self) -> tuple[Job, int] | None:
        """Return the next job, or None at the end."""
        return (self._jobs.pop(0), 0) if self._jobs else None

    def on_report(self, name: str, report: Report) -> bool:
        """Let the trial continue."""
        return False

    def on_failure(self, name: str, reason: str, traceback: str) -> None:
        """Note a failure."""
        self.failures.append(f"{name}: {reason}")

    def on_restart(self, name: str) -> None:
        """Do nothing: on a machine that loses processes the times include the loss."""


def report_cost(
    setting: Setting, blocks: Mapping[str, Blocks], seats: int, workspace: Path
) -> dict[str, Any]:
    """Train ``seats`` trials, with a report every :data:`EVERY` steps in every other stretch.

    The other stretches end with a report, but have none inside. Two neighbours make a pair, and the
    order in a pair alternates, so that a machine that speeds up or slows down favours neither. The
    first report comes before the first stretch, so startup and compilation don't count.
    """
    periods = 8 if setting.device == "cuda" else 3
    dense = [pair % 2 == half for pair in range(_PAIRS) for half in (0, 1)]  # D S, S D, D S, ...
    starts = [EVERY * (1 + k * periods) for k in range(len(dense) + 1)]
    inside = [
        s + EVERY * k for s, d in zip(starts, dense, strict=False) if d for k in range(periods)
    ]
    steps = tuple(sorted({*starts, *inside}))
    cluster = Cluster(
        address=None,
        seats=seats,
        batch_size=setting.batch_size,
        engine={
            "engine": f"{TimedEngine.__module__}:{TimedEngine.__name__}",
            "model": setting.base,
            "dtype": setting.dtype,
            "gradient_checkpointing": setting.gradient_checkpointing,
        },
        blocks=dict(blocks),
        workspace=workspace,
    )
    try:
        _train(cluster, setting, seats, steps, workspace)
    finally:
        cluster.close()
    spans = stretches(workspace / TIMES, starts)
    with_reports = [span for span, d in zip(spans, dense, strict=True) if d]
    without = [span for span, d in zip(spans, dense, strict=True) if not d]
    eval_blocks = blocks["validation"].num_blocks
    return {"eval_blocks": eval_blocks, **cost(with_reports, without, seats, periods)}


def cost(
    with_reports: Sequence[Mapping[str, float]],
    without: Sequence[Mapping[str, float]],
    seats: int,
    periods: int,
) -> dict[str, Any]:
    """Return what a report costs, in all and in parts.

    The overhead is all but the evaluation: what the pack stands still for, and how much slower its
    steps are while files are written and messages are sent beside them.

    Args:
        with_reports: seconds of each part, for the stretch of each pair with reports inside.
        without: the same for the stretch without.
        seats: trials in the pack.
        periods: number of times :data:`EVERY` steps in a stretch.
    """
    reports, pairs = periods - 1, len(without)
    extras = [
        {part: more[part] - less[part] for part in less}
        for more, less in zip(with_reports, without, strict=True)
    ]
    ms_by_part = {p: 1e3 * sum(e[p] for e in extras) / pairs / reports / seats for p in extras[0]}
    steps = sum(run["steps"] for run in without) / pairs / periods  # seconds of EVERY steps
    overheads = [100 * (e["all"] - e["evaluation"]) / reports / steps for e in extras]
    seconds, bare = (sum(run["all"] for run in runs) for runs in (with_reports, without))
    return {
        "seats": seats,
        "every": EVERY,
        "reports": reports * pairs,
        "seconds_with": seconds,
        "seconds_without": bare,
        "ms_per_report": ms_by_part["all"],
        "cost_percent": 100 * (seconds - bare) / bare,
        "ms_of_parts": {part: ms for part, ms in ms_by_part.items() if part != "all"},
        "overhead_percent": sum(overheads) / pairs,
        "overhead_percents": overheads,
    }


def stretches(times: Path, steps: Sequence[int]) -> list[dict[str, float]]:
    """Return the seconds between each two neighbouring steps: all, each part, and the steps' own.

    Args:
        times: path of the file that :class:`TimedEngine` has written.
        steps: steps with a report, in order.
    """
    lines = [json.loads(line) for line in times.read_text().splitlines()]
    # The last line of a step: should the trials not report together, it counts the last of them.
    by_step = {line["step"]: line for line in lines}
    spans = []
    for first, last in pairwise(by_step[step] for step in steps):
        parts = {part: last[part] - first[part] for part in PARTS}
        whole = last["clock"] - first["clock"]
        spans.append({"all": whole, **parts, "steps": whole - sum(parts.values())})
    return spans


def _train(
    cluster: Cluster, setting: Setting, seats: int, steps: tuple[int, ...], folder: Path
) -> None:
    source = _Jobs([_job(setting, k, steps, folder) for k in range(seats)])
    cluster.run(source)
    if source.failures:
        raise RuntimeError(f"the trials that measure reports failed: {source.failures[0]}")


def _job(setting: Setting, trial: int, steps: tuple[int, ...], folder: Path) -> Job:
    name = f"{folder.name}-{trial:02d}"
    return Job(
        name=name,
        adapter=trial_adapter(setting).to_dict(),
        training=trial_training(setting, trial).to_dict(),
        seed=trial,
        data_seed=0,
        report_steps=steps,
        folder=str(folder / name),
    )
