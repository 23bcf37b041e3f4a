"""The live panel: trials, best trial of each arm, rungs and time left; silent off a terminal."""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel as Box
from rich.progress_bar import ProgressBar
from rich.text import Text

from studies.process.terminal_text import guarded_streams, one_line
from studies.reporting.tables import Sheet
from studies.reporting.terminal import Drawing, say
from studies.trials.records import Record
from studies.trials.store import Store
from studies.trials.winners import counting

_PAUSE_S = 0.5  # minimum time between two drawings


class Panel:
    """A live drawing of a study's state; :meth:`update` is cheap enough for every report.

    Args:
        store: Store of the study.
        console: Console to draw on; off a terminal, only :meth:`say` prints.
    """

    def __init__(self, store: Store, console: Console) -> None:
        self._store, self._console = store, console
        self._live = (
            Live(console=console, refresh_per_second=2, transient=True)
            if console.is_terminal
            else None
        )
        self._guard = ExitStack()
        self._began = time.monotonic()
        self._stage = ""
        self._total = 0
        self._done_before = 0
        self._drawn = 0.0

    def __enter__(self) -> Self:
        if self._live:
            # Rich sends other code's output through the console, control sequences included.
            self._live.start()
            self._guard.enter_context(guarded_streams())
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.close()
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line that stays on the screen."""
        say(self._console, text)

    def begin(self, stage: str, total: int) -> None:
        """Start counting a stage of ``total`` trials."""
        self._stage, self._total, self._began = stage, total, time.monotonic()
        self._done_before = self._ended()
        self.update()

    def update(self) -> None:
        """Draw the current state, at most twice a second."""
        if self._live and time.monotonic() - self._drawn > _PAUSE_S:
            self._drawn = time.monotonic()
            title = one_line(f"{self._store.study.name}: {self._stage}", self._console.encoding)
            self._live.update(Box(self._content(), title=Text(title), expand=False))

    def _records(self) -> list[Record]:
        return counting(self._store.study, self._store.records, self._stage) if self._stage else []

    def _ended(self) -> int:
        return sum(r.state != "running" for r in self._records())

    def _content(self) -> Group:
        records = self._records()
        ended = sum(r.state != "running" for r in records)
        bar = ProgressBar(total=max(1, self._total), completed=ended, width=48)
        line = Text(f"{ended} of {self._total} trials, {self._elapsed()}{self._time_left(ended)}")
        return Group(bar, line, self._arms(records))

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
        finite = [r for r in records if r.state in ("running", "complete") and r.nll is not None]
        best = min(finite, key=lambda r: r.nll or 0.0, default=None)
        reached = [str(sum(r.step >= rung for r in records)) for rung in rungs]
        shown = f"{best.reports[-1].metrics['eval/ppl']:.3f}" if best else ""
        states = [
            count["running"],
            count["complete"],
            count["pruned"],
            count["failed"] + count["diverged"],
        ]
        return (arm, *map(str, states), shown, best.name if best else "", *reached)
