"""A study's progress: trials, the best trial of each arm, rungs and the time left."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Self

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.text import Text

from studies.process.options import Progress
from studies.progress.display import open_display
from studies.reporting.tables import Sheet
from studies.reporting.terminal import Drawing
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
        bests = [(arm, self._best(records, arm)) for arm in self._store.study.arms]
        shown = [f"{arm} {_ppl(best)}" for arm, best in bests if best is not None]
        best_ppl = f"; best PPL: {', '.join(shown)}" if shown else ""
        return f"{self.title()}: {self._count(records)}{best_ppl}"

    def content(self) -> Group:
        """Return a bar, the counts and a table of the arms."""
        records = self._records()
        ended = sum(r.state != "running" for r in records)
        bar = ProgressBar(total=max(1, self._total), completed=ended, width=48)
        return Group(bar, Text(self._count(records)), self._arms(records))

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

    def _arms(self, records: Sequence[Record]) -> Drawing:
        rungs = self._store.study.rungs() if self._stage == "search" else ()
        columns = ("arm", "running", "complete", "pruned", "failed", "best PPL", "trial")
        rows = tuple(
            self._arm_row([r for r in records if r.arm == arm], arm, rungs)
            for arm in self._store.study.arms
        )
        return Drawing(Sheet((*columns, *(f"rung {rung}" for rung in rungs)), rows), dense=True)

    def _arm_row(
        self, records: Sequence[Record], arm: str, rungs: tuple[int, ...]
    ) -> tuple[str, ...]:
        count = Counter(r.state for r in records)
        best = self._best(records, arm)
        reached = [str(sum(r.step >= rung for r in records)) for rung in rungs]
        shown = _ppl(best) if best else ""
        states = [
            count["running"],
            count["complete"],
            count["pruned"],
            count["failed"] + count["diverged"],
        ]
        return (arm, *map(str, states), shown, best.name if best else "", *reached)

    def _best(self, records: Sequence[Record], arm: str) -> Record | None:
        going = [r for r in records if r.arm == arm and r.state in ("running", "complete")]
        reported = [r for r in going if r.nll is not None]
        return min(reported, key=lambda r: r.nll or 0.0, default=None)


def _ppl(record: Record) -> str:
    return f"{record.reports[-1].metrics['eval/ppl']:.3f}"
