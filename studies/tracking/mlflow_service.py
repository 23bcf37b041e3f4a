"""MLflow as the tracking service of a study."""

from collections.abc import Callable
from pathlib import Path

from mlflow import MlflowClient

from studies.files.paths import database_path
from studies.process.mlflow_address import shown
from studies.tracking.checks import check_server, check_tracking
from studies.tracking.experiment import open_runs
from studies.tracking.mlflow_errors import reason_of
from studies.tracking.parent_run import close_abandoned
from studies.tracking.runs import StudyRuns


class MlflowService:
    """Keeps studies in MLflow: in a SQLite file, another database or on a server."""

    def check_address(self, uri: str) -> list[str]:
        """Return the problems visible in an address alone, without creating or reading anything."""
        return check_tracking(uri)

    def check_server(self, uri: str, experiment: str) -> list[str]:
        """Return why the server can't hold a study of this name, without creating anything."""
        return check_server(uri, experiment)

    def open(
        self, uri: str, experiment: str, storage: Path, study_id: str, say: Callable[[str], None]
    ) -> StudyRuns:
        """Return the runs of a study, as `open_runs` does."""
        return open_runs(uri, experiment, storage, study_id, say)

    def close_abandoned(self, uri: str, experiment: str, study_id: str) -> str | None:
        """End the runs that a dead process of the study left running; return a line about it."""
        if (path := database_path(uri)) is not None and not path.exists():
            return None
        if problems := check_tracking(uri):
            return problems[0]
        try:
            client = MlflowClient(tracking_uri=uri)
            stored = client.get_experiment_by_name(experiment)
            closed = close_abandoned(client, str(stored.experiment_id), study_id) if stored else 0
        except Exception as error:  # raised by MLflow, its database library or one of its plugins
            return f"MLflow at {shown(uri)} does not respond ({reason_of(error)})"
        runs = "run" if closed == 1 else "runs"
        left = f"closed {closed} MLflow {runs} that a dead process had left running"
        return left if closed else None
