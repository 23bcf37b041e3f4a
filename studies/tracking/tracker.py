"""What a study needs from a service that tracks its runs, such as MLflow.

To add a service, write a module with a `Tracker` and a `TrackingService`, and register the scheme
of its addresses in :mod:`studies.tracking.services`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from studies.trials.records import Record


class Tracker(Protocol):
    """The runs of one study: a parent run for the study itself, and one run for each trial.

    All calls come from one thread. Each may be repeated, e.g. after an answer was lost: whatever
    the service holds already must stay as it is, and only what is missing may be added.
    """

    @property
    def service(self) -> str:
        """Name of the service, e.g. ``MLflow``."""

    @property
    def address(self) -> str:
        """Where the service is, without passwords."""

    def read(self) -> object:
        """Read which runs the service holds; calls whose answer was lost may have created some."""

    def describe(self, provenance: Mapping[str, Any], params: Mapping[str, Any]) -> None:
        """Store what the study runs on: provenance and parameters of the parent run."""

    def update(self, record: Record) -> None:
        """Create a record's run if needed, and bring it up to date, including its end."""

    def end(self, status: str) -> None:
        """End the parent run and all running trials: the study stopped or failed.

        It may be resumed later.

        Args:
            status: ``KILLED`` or ``FAILED``.
        """

    def finish(
        self,
        files: Mapping[Path, str],
        metrics: Mapping[str, float],
        time: int,
        description: str = "",
    ) -> None:
        """Store files, metrics and description of the whole study, and end the parent run.

        Args:
            files: The folder among the parent's artifacts for each file; missing files are skipped.
            metrics: Metrics of the parent run.
            time: Time of the metrics and of the end in epoch milliseconds; the same in each call.
            description: The study's answer in Markdown; empty if there is none.
        """

    def run_ids(self) -> Mapping[str, str]:
        """Return the service's id of each trial's run that is known, by name of the trial.

        Unlike the other calls, this one may come from another thread.
        """

    def is_temporary(self, error: Exception) -> bool:
        """Return whether a failed call may succeed later; otherwise the service rejects it."""

    def reason(self, error: Exception) -> str:
        """Return why a call failed, in few words for the user."""


class TrackingService(Protocol):
    """A kind of service that can hold studies, such as MLflow."""

    def check_address(self, uri: str) -> list[str]:
        """Return the problems visible in an address alone, without creating or reading anything."""

    def check_server(self, uri: str, experiment: str) -> list[str]:
        """Return why the server can't hold a study of this name, without creating anything."""

    def open(
        self, uri: str, experiment: str, storage: Path, study_id: str, say: Callable[[str], None]
    ) -> Tracker:
        """Return the runs of a study, created or running again.

        Args:
            uri: Address of the service.
            experiment: Name of the study.
            storage: Folder of the study's storage, which may hold files of the service.
            study_id: Id that ties the parent run to one study folder.
            say: Called with each line for the user.

        Raises:
            InputError: The service can't hold this study now.
        """

    def close_abandoned(self, uri: str, experiment: str, study_id: str) -> str | None:
        """End the runs that a dead process of the study left running.

        Returns:
            A line for the user, e.g. that the service does not respond; None if there is nothing
            to say.
        """
