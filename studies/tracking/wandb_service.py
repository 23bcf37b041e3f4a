"""Weights & Biases as the tracking service of a study.

W&B has no runs inside of runs: a study is a group there, with one run for the study itself and one
for each trial. The id of a run follows from the study and the trial, so a repeated call continues
the run. W&B can't continue a run offline (WANDB_MODE=offline): there each process writes a run
anew, with all of its reports, in place of what an earlier process has left of it.
"""

import hashlib
import importlib.util
import math
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from studies.process.mlflow_address import redact
from studies.tracking.run_values import SECONDS, boundary_metrics
from studies.trials.messages import Report
from studies.trials.records import Record

_ADDRESS = re.compile(r"wandb:(?:(?P<entity>[\w.-]+)/)?(?P<project>[\w.-]+)")
_STATE, _STUDY = "hylorada.state", "study"
_EXIT_CODES = {"complete": 0, "pruned": 0, "diverged": 1, "failed": 1}
_ENDED = "hylorada-ended"  # a file in the folder of a run that has been sent whole
_PATIENCE_S = 30.0  # for the last data of a run


class WandbService:
    """Keeps studies in a project of Weights & Biases."""

    def check_address(self, uri: str) -> list[str]:
        """Return the problems visible in an address alone, without creating or reading anything."""
        if not _ADDRESS.fullmatch(uri):
            return [f"tracking_uri {uri!r}: write wandb:PROJECT or wandb:ENTITY/PROJECT"]
        if importlib.util.find_spec("wandb") is None:
            hint = "pip install 'hylorada[wandb]'"
            return [f"tracking_uri {uri!r}: Weights & Biases is not installed; {hint}"]
        return []

    def check_server(self, uri: str, experiment: str) -> list[str]:
        """Return why the server can't hold a study, without creating anything."""
        del experiment  # W&B takes every name of a study
        import wandb

        if wandb.setup(wandb.Settings(silent=True)).settings.mode != "online":
            return []
        try:
            logged_in = wandb.login(prompt=False)
        except Exception as error:  # raised by W&B or its HTTP library
            return [f"tracking_uri {uri!r} can't be used: {_reason(error)}"]
        hint = "run `wandb login`, or set WANDB_API_KEY; WANDB_MODE=offline needs no login"
        return [] if logged_in else [f"tracking_uri {uri!r}: W&B has no login; {hint}"]

    def open(
        self, uri: str, experiment: str, storage: Path, study_id: str, say: Callable[[str], None]
    ) -> "WandbRuns":
        """Return the runs of a study, new ones or those of an earlier process."""
        del say
        return WandbRuns(uri, experiment, storage, study_id)

    def close_abandoned(self, uri: str, experiment: str, study_id: str) -> str | None:
        """Do nothing: W&B itself ends the runs of a process that has died."""
        del uri, experiment, study_id
        return None


class WandbRuns:
    """A `Tracker` that keeps one study as a group of W&B's runs.

    Args:
        uri: Address of the project.
        experiment: Name of the study, and so of the group.
        storage: Folder whose ``wandb/`` holds W&B's files.
        study_id: Id of the study folder.
    """

    service = "W&B"

    def __init__(self, uri: str, experiment: str, storage: Path, study_id: str) -> None:
        place = _ADDRESS.fullmatch(uri)
        assert place is not None, uri
        self.address = uri
        self._place = place.groupdict()
        self._experiment, self._storage, self._study_id = experiment, storage, study_id
        self._runs: dict[str, Any] = {}  # open ones by trial; that of the study is _STUDY
        self._ids: dict[str, str] = {}  # of the trials' runs, by trial

    def read(self) -> None:
        """Do nothing: W&B tells what it holds of a run when the run is opened."""

    def describe(self, provenance: Mapping[str, Any], params: Mapping[str, Any]) -> None:
        """Store what the study runs on as the configuration of its run."""
        self._parent().config.update({**params, **provenance}, allow_val_change=True)

    def update(self, record: Record) -> None:
        """Create a record's run if needed, and bring it up to date, including its end."""
        if record.name not in self._runs and self._has_sent(record):
            return
        run = self._runs.get(record.name) or self._begin(record)
        for report in record.reports:
            if report.step >= run.step:  # the first step that the run lacks
                run.log(_metrics(report), step=report.step, commit=True)
        if record.state in _EXIT_CODES:
            reason = {"hylorada.reason": record.reason} if record.reason else {}
            run.summary.update({_STATE: record.state, **reason})
            self._close(record.name, record.state, _EXIT_CODES[record.state])

    def end(self, status: str) -> None:
        """End the run of the study and all running trials, which may be resumed later."""
        for name in list(self._runs):
            self._runs[name].summary.update({_STATE: status.lower()})
            self._close(name, "", 1)

    def finish(
        self,
        files: Mapping[Path, str],
        metrics: Mapping[str, float],
        time: int,
        description: str = "",
    ) -> None:
        """Store files, metrics and description of the whole study, and end its run."""
        import wandb

        del time  # W&B keeps its own
        run = self._parent()
        run.summary.update(_finite(metrics))
        if description:
            run.notes = description
        artifact = wandb.Artifact(f"study-{self._study_id}", type="study")
        for path, folder in files.items():
            if path.exists():
                name = f"{folder}/{path.name}" if folder else path.name
                artifact.add_file(str(path), name, policy="immutable")  # without a copy
        run.log_artifact(artifact)  # equal contents are no new version
        for name in [n for n in self._runs if n != _STUDY]:  # a time limit has left them running
            self._runs[name].summary.update({_STATE: "killed"})
            self._close(name, "", 1)
        self._close(_STUDY, "", 0)

    def run_ids(self) -> Mapping[str, str]:
        """Return W&B's id of each trial's run that has been opened, by name of the trial."""
        return dict(self._ids)

    def is_temporary(self, error: Exception) -> bool:
        """Return whether a failed call may succeed later."""
        import wandb

        if isinstance(error, wandb.errors.AuthenticationError) or "deleted" in str(error):
            return False
        return isinstance(error, wandb.errors.CommError | OSError)

    def reason(self, error: Exception) -> str:
        """Return why a call failed, in few words."""
        return _reason(error)

    def _parent(self) -> Any:
        return self._runs.get(_STUDY) or self._open(_STUDY, self._experiment, job_type="study")

    def _begin(self, record: Record) -> Any:
        """Open the run of a trial, and describe it."""
        run = self._open(record.name, record.name, job_type=record.stage, tags=[record.arm[:64]])
        self._ids[record.name] = run.id
        place = {n: getattr(record, n) for n in ("arm", "search", "block", "factor", "seed")}
        config = {**record.adapter, **record.training, **place}
        run.config.update(config, allow_val_change=True)
        return run

    def _open(self, key: str, name: str, **kind: Any) -> Any:
        import wandb

        settings = wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            disable_code=True,
            finish_timeout=_PATIENCE_S,
            finish_timeout_raises=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )

        options: dict[str, Any] = {**self._place, **kind}
        run = wandb.init(
            id=self._id(key),
            name=name,
            group=self._experiment,
            dir=str(self._storage),
            resume="allow",
            reinit="create_new",
            settings=settings,
            **options,
        )
        if run.offline:
            for folder in {*self._folders(key)} - {Path(run.dir).parent}:
                shutil.rmtree(folder, ignore_errors=True)
        self._runs[key] = run
        return run

    def _close(self, key: str, state: str, exit_code: int) -> None:
        """End a run, and note its state if everything of it has been sent."""
        run = self._runs.pop(key)
        run.finish(exit_code=exit_code)
        folder = Path(run.dir).parent
        if state and folder.is_dir():
            (folder / _ENDED).write_text(state)

    def _has_sent(self, record: Record) -> bool:
        """Return whether an earlier process has sent the record's run to its end."""
        if record.state not in _EXIT_CODES:
            return False
        marks = [folder / _ENDED for folder in self._folders(record.name)]
        return any(mark.is_file() and mark.read_text() == record.state for mark in marks)

    def _folders(self, key: str) -> list[Path]:
        return list((self._storage / "wandb").glob(f"*run-*-{self._id(key)}"))

    def _id(self, key: str) -> str:
        return hashlib.sha256(f"{self._study_id}/{key}".encode()).hexdigest()[:16]


def _metrics(report: Report) -> dict[str, float]:
    return _finite({**report.metrics, **boundary_metrics(report), SECONDS: report.seconds})


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return redact(lines[0])[:300] if lines else type(error).__name__
