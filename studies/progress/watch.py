"""A study's progress as its folder shows it, for a terminal that does not run the study."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.text import Text

from studies.analysis.progress import stage_counts
from studies.files.folder_files import stored_study
from studies.progress.arms import arms_drawing, best_ppls
from studies.progress.display import PlainDisplay, open_display
from studies.spec.study import Study
from studies.trials.records import Record, read_id, read_record
from studies.trials.study_folders import is_running
from studies.trials.winners import counting

_PAUSE_S = 1.0
_Stamp = tuple[int, int]


class FolderView:
    """The state of a study, read from its folder; only trials whose files have changed are read.

    Args:
        folder: Folder of the study.

    Raises:
        InputError: A file is lost or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[str, tuple[tuple[_Stamp, _Stamp], Record]] = {}
        self.records: dict[str, Record] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read what has changed since the last call.

        Raises:
            InputError: A file is lost or damaged.
        """
        self.study = Study.from_dict(stored_study(self._folder / "study.json"))
        study_id = read_id(self._folder)
        paths = sorted((self._folder / "trials").glob("*/trial.json"))
        self.records = {path.parent.name: self._read(path, study_id) for path in paths}

    def _read(self, path: Path, study_id: str | None) -> Record:
        # The stamp is taken first: a change while the files are read is seen at the next refresh.
        stamp = _stamp(path), _stamp(path.with_name("reports.jsonl"))
        before, record = self._kept.get(path.parent.name, (None, None))
        if record is None or before != stamp:
            record = read_record(path, study_id)
            self._kept[path.parent.name] = stamp, record
        return record

    def title(self) -> str:
        """Return the study and its stage."""
        return f"{self.study.name}: {self._stage()[0]}"

    def line(self) -> str:
        """Return the state on one line."""
        stage, *_ = self._stage()
        return f"{self.title()}: {self._count()}{best_ppls(self.study, self._of(stage))}"

    def content(self) -> Group:
        """Return a bar, the counts and a table of the arms."""
        _, ended, total = self._stage()
        bar = ProgressBar(total=max(1, total), completed=ended, width=48)
        return Group(bar, self.summary())

    def summary(self) -> Group:
        """Return the counts and a table of the arms."""
        stage, *_ = self._stage()
        return Group(Text(self._count()), arms_drawing(self.study, self._of(stage), stage))

    def _stage(self) -> tuple[str, int, int]:
        """Return the stage under way, or the last one, its ended runs, and all of its runs."""
        counts = stage_counts(self.study, self.records)
        under_way = [stage for stage, (ended, total) in counts.items() if ended < total]
        stage = under_way[0] if under_way else list(counts)[-1]
        return stage, *counts[stage]

    def _of(self, stage: str) -> Sequence[Record]:
        return counting(self.study, self.records, stage)

    def _count(self) -> str:
        _, ended, total = self._stage()
        times = [r.reports[-1].time for r in self.records.values() if r.reports]
        ago = max(0.0, time.time() - max(times) / 1000) if times else None
        last = "" if ago is None else f", last report {ago:.0f} s ago"
        added = counting(self.study, self.records, "added")
        done = sum(r.state != "running" for r in added)
        extra = f", {done} of {len(added)} added ones" if added else ""
        return f"{ended} of {total} trials{extra}{last}"


def watch_study(folder: Path, console: Console) -> FolderView:
    """Show the progress of a study until no process runs it.

    Args:
        folder: Folder of the study.
        console: A terminal, which shows a live panel, or anything else, which gets a line a minute.

    Returns:
        The last state.

    Raises:
        InputError: A file is lost or damaged.
    """
    running, view = is_running(folder), FolderView(folder)
    if not running:
        return view
    display = open_display(console)
    if isinstance(display, PlainDisplay):
        display.say(view.line())
    display.start()
    try:
        while running:
            display.update(view)
            time.sleep(_PAUSE_S)
            running = is_running(folder)  # before the last look at the files
            view.refresh()
    finally:
        display.stop()
    return view


def _stamp(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_mtime_ns, status.st_size
