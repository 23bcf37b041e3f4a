"""The files of reports, written by threads beside the passes of a host."""

from collections.abc import Mapping
from concurrent.futures import Executor, Future, wait
from pathlib import Path
from typing import NamedTuple

from hylorada.training.checkpoint import SeatCopy, write_seat
from studies.files.folder_files import patiently, write_atomically
from studies.trials.messages import CHECKPOINT, OWNER, Job, Report


class Unwritten(NamedTuple):
    """A report whose files have yet to be written.

    Attributes:
        job: the trial's job.
        seat: its state at the report, for the checkpoint.
        report: the report.
        others: content of its other files.
    """

    job: Job
    seat: SeatCopy
    report: Report
    others: Mapping[Path, bytes]


class ReportFiles:
    """Writes the files of reports: those of many trials at once, those of one trial in order.

    A report is given to the driver only when its files are on the disk, so that a trial can always
    continue from the last step that the driver knows.

    Args:
        threads: threads that write.
    """

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._writing: dict[str, Future[Report]] = {}  # by trial

    def write(self, unwritten: Unwritten) -> Future[Report]:
        """Begin to write a report's files.

        Returns:
            The report, as soon as all its files are on the disk.
        """
        name = unwritten.job.name
        self.wait(name)
        writing = self._threads.submit(_write, unwritten)
        self._writing[name] = writing
        writing.add_done_callback(lambda done: self._forget(name, done))
        return writing

    def wait(self, name: str) -> None:
        """Wait until no file of a trial is being written, whether that succeeds or not."""
        if writing := self._writing.get(name):
            wait([writing])

    def _forget(self, name: str, written: Future[Report]) -> None:
        if self._writing.get(name) is written:
            del self._writing[name]


def _write(unwritten: Unwritten) -> Report:
    """Write the checkpoint last: with it, the report counts."""
    job, seat, report, others = unwritten
    folder = Path(job.folder)
    patiently(lambda: folder.mkdir(parents=True, exist_ok=True), folder)
    for path, content in others.items():
        write_atomically(path, content)
    checkpoint = folder / CHECKPOINT
    extra = {**report.to_dict(), OWNER: job.digest()}
    patiently(lambda: write_seat(seat, checkpoint, extra), checkpoint)
    return report
