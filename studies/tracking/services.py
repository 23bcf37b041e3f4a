"""The tracking service of a study, chosen by its address."""

from collections.abc import Callable, Mapping
from pathlib import Path

from filelock import Timeout

from studies.files.folder_files import study_lock
from studies.process.phases import phase
from studies.tracking.background_tracker import BackgroundTracker
from studies.tracking.mlflow_service import MlflowService
from studies.tracking.tracker import TrackingService
from studies.tracking.wandb_service import WandbService
from studies.trials.records import read_id

# by the scheme of the address; all others: MLflow
_SERVICES: Mapping[str, TrackingService] = {"wandb": WandbService()}


def service_for(uri: str) -> TrackingService:
    """Return the service that an address belongs to."""
    return _SERVICES.get(uri.partition(":")[0], MlflowService())


@phase("MLflow database and run")
def open_tracker(
    uri: str, experiment: str, *, storage: Path, study_id: str, say: Callable[[str], None]
) -> BackgroundTracker:
    """Open the runs of a study at its service, and start the thread that updates them.

    Args:
        uri: Address of the service.
        experiment: Name of the study.
        storage: Folder of the study's storage, which may hold files of the service.
        study_id: Id that ties the parent run to one study folder.
        say: Called with each line for the user.

    Raises:
        InputError: The service can't hold this study now.
    """
    runs = service_for(uri).open(uri, experiment, storage, study_id, say)
    return BackgroundTracker(runs, say)


def reconcile(uri: str, experiment: str, folder: Path) -> str | None:
    """End the runs of a study whose process is gone.

    Args:
        uri: Address of the service.
        experiment: Name of the study.
        folder: Folder of the study, whose lock is held by any process that runs it.

    Returns:
        A line for the user; None if there is nothing to say.
    """
    if (study_id := read_id(folder)) is None:
        return None
    try:
        with study_lock(folder):
            return service_for(uri).close_abandoned(uri, experiment, study_id)
    except (Timeout, PermissionError):  # the study runs, or belongs to another user
        return None
