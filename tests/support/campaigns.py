"""A study's stages in one process: real store, recorded MLflow and panel, invented losses."""

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from studies.progress.panel import Panel
from studies.search.campaign import Campaign
from studies.search.ledger import NO_CALLBACKS, Ledger, Stage
from studies.spec.study import Study
from studies.trials.messages import Report
from studies.trials.records import Record
from studies.trials.store import Store

_RATE = {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
VALUES: dict[str, Any] = {
    "definition": "learnable_bucketing",
    "name": "try",
    "trials": 2,
    "seeds": 2,
    "eval_every": 2,
    "grace_steps": 2,
    "defaults": {"max_steps": 8},
    "arms": {
        "baseline": {"config": {"landmarks": False}, "space": _RATE},
        "fixed": {"space": _RATE},
    },
}
BUCKETS = {"num_buckets": {"choice": [4, 8, 16, 32]}}
MATCHED: dict[str, Any] = {
    "common": {"space": {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}},
    "arms": {"baseline": {"config": {"landmarks": False}}, "fixed": {"space": BUCKETS}},
    "grace_steps": 0,
    "trials": 3,
}


class RecordingTracker:
    """A tracker that records its calls, and the content of the store at that moment."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def catch_up(self, records: Iterable[Record]) -> None:
        self.calls.append(("catch_up", [r.name for r in records]))

    def update(self, record: Record) -> None:
        self.calls.append((record.name, record.step, record.state))


class RecordingPanel:
    """A panel that counts how often it is drawn, and keeps its lines."""

    def __init__(self) -> None:
        self.drawn = 0
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def begin(self, stage: str, total: int) -> None:
        self.said.append(f"{stage} of {total}")

    def update(self) -> None:
        self.drawn += 1


class Folder:
    """A study folder that can be opened again as by a new process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.store: Store | None = None
        self.callbacks = NO_CALLBACKS
        self.max_failures: int | None = None
        self.tracker, self.panel = RecordingTracker(), RecordingPanel()

    def open(self, **changes: Any) -> Ledger:
        self.close()
        self.store = Store(self._path, Study.from_dict(VALUES | changes))
        self.tracker, self.panel = RecordingTracker(), RecordingPanel()
        self.ledger = Ledger(
            self.store, self.tracker, cast(Panel, self.panel), self.callbacks, self.max_failures
        )
        return self.ledger

    def renew(self) -> None:
        """Start again with an empty folder."""
        self.close()
        shutil.rmtree(self._path)

    def close(self) -> None:
        if self.store:
            self.store.close()


def report(
    step: int, nll: float = 3.0, more: Mapping[str, float] | None = None, **changes: Any
) -> Report:
    return Report(
        step=step, metrics={"eval/nll": nll, **(more or {})}, **{"done": step == 8, **changes}
    )


def train(stage: Stage | Campaign, loss: Callable[[str], float] = lambda _: 3.0) -> list[str]:
    """Run every job of a stage to its end, one by one."""
    names = []
    while given := stage.next_job():
        job, seen = given
        names.append(job.name)
        for step in (s for s in job.report_steps if s > seen):
            if stage.on_report(job.name, report(step, loss(job.name))):
                break
    return names
