"""Records to log to MLflow, and checks of its content afterwards."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from studies.tracking.background_tracker import BackgroundTracker
from studies.tracking.experiment import open_runs
from studies.tracking.runs import StudyRuns
from studies.trials.messages import Report
from studies.trials.records import Record, State

EXPERIMENT = "étude no 1"
STATUS = {"complete": "FINISHED", "pruned": "KILLED", "diverged": "FAILED", "failed": "FAILED"}


@dataclass(frozen=True)
class Mlflow:
    """One MLflow store for all tests of a file; each study has its own parent run."""

    uri: str
    storage: Path = Path()

    def runs(self, study: str, said: list[str] | None = None) -> StudyRuns:
        return open_runs(
            self.uri, EXPERIMENT, self.storage, study, print if said is None else said.append
        )

    def tracker(
        self, study: str, said: list[str], waits: tuple[float, float] = (0.2, 0.5)
    ) -> BackgroundTracker:
        return BackgroundTracker(self.runs(study, said), said.append, waits)

    @functools.cached_property
    def client(self) -> MlflowClient:
        return MlflowClient(tracking_uri=self.uri)

    def children(self, study: StudyRuns | BackgroundTracker) -> dict[str, Run]:
        experiment = self.client.get_experiment_by_name(EXPERIMENT)
        assert experiment is not None
        parent = parent_of(study)
        runs = self.client.search_runs(
            [experiment.experiment_id], f"tags.`mlflow.parentRunId` = '{parent}'"
        )
        assert len({r.info.run_name for r in runs}) == len(runs)
        return {r.info.run_name: r for r in runs}

    def series(self, run: Run, metric: str) -> list[tuple[int, float]]:
        return [(m.step, m.value) for m in self.client.get_metric_history(run.info.run_id, metric)]

    def check_whole(self, study: StudyRuns | BackgroundTracker, records: Sequence[Record]) -> None:
        """Check that each record is one run with its true end and each report once, in order."""
        runs = self.children(study)
        assert sorted(runs) == sorted(r.name for r in records)
        for record in records:
            run = runs[record.name]
            assert run.info.status == STATUS.get(record.state, "RUNNING")
            for metric in ("train/nll", "eval/nll"):
                assert self.series(run, metric) == [
                    (r.step, r.metrics[metric]) for r in record.reports
                ]
            shifts = dict(self.series(run, "train_detail/boundary_shift"))
            assert shifts == pytest.approx({r.step: 2 * r.step / 3 for r in record.reports})


def parent_of(study: StudyRuns | BackgroundTracker) -> str:
    """Return the id of a study's parent run."""
    runs = study if isinstance(study, StudyRuns) else study.tracker
    assert isinstance(runs, StudyRuns)
    return runs.parent


def make_record(name: str = "learnable-0000", state: State = "running", **changes: Any) -> Record:
    return Record(
        **{
            "name": name,
            "arm": "learnable",
            "stage": "search",
            "number": 0,
            "params": {"learning_rate": 0.01, "num_buckets": 4},
            "adapter": {"num_buckets": 4, "target_modules": None},
            "training": {"learning_rate": 0.01},
            "seed": 5,
            "data_seed": 6,
            "state": state,
            **changes,
        }
    )


def make_report(step: int, nll: float = 3.0, **changes: Any) -> Report:
    boundaries = (1.0 + step, 4.0, 9.0 + step)
    return Report(
        **{
            "step": step,
            "metrics": {"train/nll": nll + 1, "eval/nll": nll},
            "boundaries": boundaries,
            "start_boundaries": (1.0, 4.0, 9.0),
            "seconds": step / 4,
            "parameters": 77,
            "time": 1_700_000_000_000 + 1000 * step,
            "applied": {"max_positions": 16, "learning_rate": 0.01},
            **changes,
        }
    )


def count_writes(runs: StudyRuns) -> list[str]:
    """Return a list of the client's calls, which grows with each further call."""
    calls: list[str] = []

    class Recording:
        def __getattr__(self, name: str) -> object:
            calls.append(name)
            return getattr(client, name)

    client = runs.client
    recording: Any = Recording()
    runs.client = recording
    return calls
