"""Where MLflow's page shows a study."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient

from hylorada import InputError
from studies.process.mlflow_address import is_database, shown
from studies.tracking.artifacts import location_in, owns_database
from studies.tracking.experiment import deleted
from studies.tracking.mlflow_errors import reason_of
from studies.tracking.parent_run import find_parent
from studies.tracking.shown.descriptions import TRAINING, trials_view
from studies.trials.records import read_id
from studies.trials.study_folders import find_study, require_no_grid


@dataclass(frozen=True)
class Shown:
    """The places of a study on MLflow's page, below its address.

    Attributes:
        answer: The study's own run, described with its answer.
        trials: The table of its trials.
    """

    answer: str
    trials: str


def find_shown(uri: str, storage: Path, name: str) -> Shown:
    """Return where MLflow's page shows a study that has been run.

    Args:
        uri: Address of MLflow.
        storage: Folder of the study's storage.
        name: Name of the study.

    Raises:
        InputError: No such study has been run, it is a grid, or MLflow does not hold its runs.
    """
    folder = find_study(storage, name)
    require_no_grid(folder, name)
    try:
        client = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name(name)
        number = str(experiment.experiment_id) if experiment else ""
        study_id = read_id(folder)
        parent = find_parent(client, number, study_id) if experiment and study_id else None
    except InputError:
        raise
    except Exception as error:  # raised by MLflow, its database library or one of its plugins
        raise InputError(f"MLflow at {shown(uri)} can't be read: {reason_of(error)}") from error
    if experiment is not None and experiment.lifecycle_stage == "deleted":
        raise InputError(deleted(name))
    if experiment is None or parent is None:
        raise InputError(
            f"study {name!r} has no runs in MLflow at {shown(uri)}; if it ran with another "
            "--tracking-uri, give that one"
        )
    if is_database(uri) and not owns_database(storage, uri):
        with suppress(InputError):  # the folder before a copy still holds the artifacts
            location_in(uri, experiment, storage)
    page, run = f"#/experiments/{number}/runs", parent.info.run_id
    return Shown(f"{page}/{run}{TRAINING}", f"{page}{trials_view(experiment.tags)}")
