"""The cost of a pack's report: evaluation, checkpoint, and the messages through host and Tune."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hylorada import Blocks
from studies.bench.designs import trial_adapter
from studies.bench.loops import trial_training
from studies.bench.options import Setting
from studies.engine.cluster import Cluster
from studies.trials.messages import Job, Report

EVERY = 25  # optimizer steps between reports


class _Jobs:
    """A source of K jobs that notes when the last of them reported each step."""

    def __init__(self, jobs: list[Job]) -> None:
        self._jobs = jobs
        self.times: dict[int, float] = {}
        self.failures: list[str] = []

    def remaining(self) -> int:
        """Return the number of jobs not yet handed out."""
        return len(self._jobs)

    def next_job(self) -> tuple[Job, int] | None:
        """Return the next job, or None at the end."""
        return (self._jobs.pop(0), 0) if self._jobs else None

    def on_report(self, name: str, report: Report) -> bool:
        """Note the time of a report, and let the trial continue."""
        self.times[report.step] = time.perf_counter()
        return False

    def on_failure(self, name: str, reason: str, traceback: str) -> None:
        """Note a failure."""
        self.failures.append(f"{name}: {reason}")

    def on_restart(self, name: str) -> None:
        """Do nothing: on a machine that loses processes the times include the loss."""


def report_cost(
    setting: Setting, blocks: Mapping[str, Blocks], seats: int, workspace: Path
) -> dict[str, Any]:
    """Train ``seats`` trials twice: with reports between the first and the last, and without.

    Only the time between the first and the last report, which both runs have, is compared, so it
    includes neither startup nor compilation.
    """
    periods = 8 if setting.device == "cuda" else 3
    last = EVERY * (periods + 1)
    plans = {"with": tuple(range(EVERY, last + 1, EVERY)), "without": (EVERY, last)}
    engine = {
        "model": setting.base,
        "dtype": setting.dtype,
        "gradient_checkpointing": setting.gradient_checkpointing,
    }
    batch_size = setting.batch_size
    cluster = Cluster(
        address=None,
        seats=seats,
        batch_size=batch_size,
        engine=engine,
        blocks=dict(blocks),
        workspace=workspace,
    )
    try:
        seconds = {
            k: _time(cluster, setting, seats, steps, workspace / k) for k, steps in plans.items()
        }
    finally:
        cluster.close()
    reports = periods - 1
    extra = seconds["with"] - seconds["without"]
    return {
        "seats": seats,
        "every": EVERY,
        "reports": reports,
        "eval_blocks": blocks["validation"].num_blocks,
        "seconds_with": seconds["with"],
        "seconds_without": seconds["without"],
        "ms_per_report": 1e3 * extra / reports / seats,
        "cost_percent": 100 * extra / seconds["without"],
    }


def _time(
    cluster: Cluster, setting: Setting, seats: int, steps: tuple[int, ...], folder: Path
) -> float:
    source = _Jobs([_job(setting, k, steps, folder) for k in range(seats)])
    cluster.run(source)
    if source.failures:
        raise RuntimeError(f"the trials that measure reports failed: {source.failures[0]}")
    return source.times[steps[-1]] - source.times[steps[0]]


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
