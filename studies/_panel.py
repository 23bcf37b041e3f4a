"""The live panel: trials, best of each arm, rungs and the time left; quiet when not a terminal."""

import time
from collections import Counter
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel as Box
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ._records import Record
from ._store import Store
from ._winners import counting


class Panel:
    """Draws a store's state; :meth:`update` is cheap and may be called at every report.

    Args:
        store: the study.
        console: where to draw; off a terminal only :meth:`say` prints.
    """

    def __init__(self, store: Store, console: Console) -> None:
        self._store, self._console = store, console
        self._live = Live(console=console, refresh_per_second=2, transient=True) if console.is_terminal else None
        self._began = time.monotonic()
        self._stage = ""
        self._total = 0
        self._done_before = 0

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """What stays on the screen."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def begin(self, stage: str, total: int) -> None:
        """Start to count a stage of ``total`` trials."""
        self._stage, self._total, self._began = stage, total, time.monotonic()
        self._done_before = self._ended()
        self.update()

    def update(self) -> None:
        """Draw the present state."""
        if self._live:
            self._live.update(Box(self._content(), title=f"{self._store.study.name}: {self._stage}", expand=False))

    def _records(self) -> list[Record]:
        return counting(self._store.study, self._store.records, self._stage) if self._stage else []

    def _ended(self) -> int:
        return sum(r.state != "running" for r in self._records())

    def _content(self) -> Group:
        ended = self._ended()
        bar = ProgressBar(total=max(1, self._total), completed=ended, width=48)
        line = Text(f"{ended} of {self._total} trials, {self._elapsed()}{self._time_left(ended)}")
        return Group(bar, line, self._arms())

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._began:.0f} s"

    def _time_left(self, ended: int) -> str:
        fresh = ended - self._done_before
        if not fresh or ended >= self._total:
            return ""
        return f", about {(time.monotonic() - self._began) / fresh * (self._total - ended):.0f} s left"

    def _arms(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for title in ("arm", "running", "complete", "pruned", "failed", "best PPL", "trial"):
            table.add_column(title, justify="left" if title in ("arm", "trial") else "right")
        rungs = self._store.study.rungs() if self._stage == "search" else ()
        for rung in rungs:
            table.add_column(f"rung {rung}", justify="right")
        for arm in self._store.study.arms:
            table.add_row(*self._arm_row(arm, rungs))
        return table

    def _arm_row(self, arm: str, rungs: tuple[int, ...]) -> list[str]:
        records = [r for r in self._records() if r.arm == arm]
        count = Counter(r.state for r in records)
        finite = [r for r in records if r.state in ("running", "complete") and r.nll is not None]
        best = min(finite, key=lambda r: r.nll or 0.0, default=None)
        reached = [str(sum(r.step >= rung for r in records)) for rung in rungs]
        shown = f"{best.reports[-1].metrics['eval/ppl']:.3f}" if best else ""
        states = [count["running"], count["complete"], count["pruned"], count["failed"] + count["diverged"]]
        return [arm, *map(str, states), shown, best.name if best else "", *reached]
