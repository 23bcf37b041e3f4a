"""A study's progress: trials, the best trial of each arm, rungs and the time left."""

import time
from collections.abc import Sequence
from typing import Self

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.text import Text

from studies.analysis.forecast.forecast import duration
from studies.analysis.forecast.stopping import expected_trial
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
        self._steps_before = 0

    def __enter__(self) -> Self:
        self._display.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._display.stop()

    def say(self, text: str) -> None:
        """Print a line that stays on the screen."""
        self._display.say(text)

    def tell(self, text: str) -> None:
        """Print a line on the study that stays, with the study's name where no panel shows it."""
        self.say(text if self._display.names_study else f"{self._store.study.name}: {text}")

    def begin_check(self, arms: int) -> None:
        """Say that the arms are checked on the base, which is a stage without trials."""
        stage = f"checking {arms} arm{'s' * (arms > 1)} on the base before training"
        self.tell(stage)
        self.begin(stage, 0)

    def begin(self, stage: str, total: int) -> None:
        """Start counting a stage of ``total`` trials."""
        self._stage, self._total, self._began = stage, total, time.monotonic()
        self._steps_before = sum(r.step for r in self._records())
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
        """Return a bar, the counts and a table of the arms; only the time of a stage without."""
        records = self._records()
        if not self._total:
            return Group(Text(self._count(records)))
        ended = sum(r.state != "running" for r in records)
        bar = ProgressBar(total=max(1, self._total), completed=ended, width=48)
        arms = arms_drawing(self._store.study, records, self._stage)
        return Group(bar, Text(self._count(records)), arms)

    def _records(self) -> list[Record]:
        if not self._total:
            return []
        return counting(self._store.study, self._store.records, self._stage)

    def _count(self, records: Sequence[Record]) -> str:
        ended = sum(r.state != "running" for r in records)
        elapsed = time.monotonic() - self._began
        if not self._total:
            return f"{elapsed:.0f} s"
        return (
            f"{ended} of {self._total} trials, {elapsed:.0f} s{self._time_left(records, elapsed)}"
        )

    def _time_left(self, records: Sequence[Record], elapsed: float) -> str:
        """Return the time left at the pace of the steps taken since the stage began."""
        taken = sum(r.step for r in records) - self._steps_before
        running = [r.step for r in records if r.state == "running"]
        unended = self._total - (len(records) - len(running))
        left = unended * self._expected_steps() - sum(running)
        return f", about {duration(elapsed * left / taken)} left" if taken > 0 and left > 0 else ""

    def _expected_steps(self) -> float:
        """Return the steps that a trial of the stage is expected to take."""
        study = self._store.study
        if self._stage != "search":
            return study.max_steps
        steps, rungs = study.report_steps(), study.rungs()
        return expected_trial(study.trials, steps, rungs, study.reduction_factor)[0]
