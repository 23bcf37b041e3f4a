"""A study's progress: trials, the best trial of each arm, rungs and the time left."""

import time
from collections.abc import Sequence
from typing import Self

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.text import Text

from studies.process.options import Progress
from studies.progress.arms import arms_drawing, best_ppls
from studies.progress.display import open_display
from studies.trials.records import Record
from studies.trials.store import Store
from studies.trials.winners import counting


class Panel:
    """A view of a study's state; :meth:`update` is cheap enough for every report.

    Args:
        store: Store of the study.
        console: Console to draw on.
        progress: How progress is shown; see :func:`open_display`.
    """

    def __init__(self, store: Store, console: Console, progress: Progress = "auto") -> None:
        self._store = store
        self._display = open_display(console, progress)
        self._began = time.monotonic()
        self._stage = ""
        self._total = 0
        self._done_before = 0

    def __enter__(self) -> Self:
        self._display.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._display.stop()

    def say(self, text: str) -> None:
        """Print a line that stays on the screen."""
        self._display.say(text)

    def begin(self, stage: str, total: int) -> None:
        """Start counting a stage of ``total`` trials."""
        self._stage, self._total, self._began = stage, total, time.monotonic()
        self._done_before = self._ended()
        self._display.restart()
        self.update()

    def update(self) -> None:
        """Show the current state, if it is time to."""
        self._display.update(self)

    def title(self) -> str:
        """Return the study and its stage."""
        return f"{self._store.study.name}: {self._stage}"

    def line(self) -> str:
        """Return the state on one line."""
        records = self._records()
        return f"{self.title()}: {self._count(records)}{best_ppls(self._store.study, records)}"

    def content(self) -> Group:
        """Return a bar, the counts and a table of the arms."""
        records = self._records()
        ended = sum(r.state != "running" for r in records)
        bar = ProgressBar(total=max(1, self._total), completed=ended, width=48)
        arms = arms_drawing(self._store.study, records, self._stage)
        return Group(bar, Text(self._count(records)), arms)

    def _records(self) -> list[Record]:
        return counting(self._store.study, self._store.records, self._stage) if self._stage else []

    def _ended(self) -> int:
        return sum(r.state != "running" for r in self._records())

    def _count(self, records: Sequence[Record]) -> str:
        ended = sum(r.state != "running" for r in records)
        return f"{ended} of {self._total} trials, {self._elapsed()}{self._time_left(ended)}"

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._began:.0f} s"

    def _time_left(self, ended: int) -> str:
        fresh = ended - self._done_before
        if not fresh or ended >= self._total:
            return ""
        return (
            f", about {(time.monotonic() - self._began) / fresh * (self._total - ended):.0f} s left"
        )
