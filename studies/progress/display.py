"""Where a study's progress is shown: a live panel, a notebook, a line a minute, or nowhere."""

import io
import time
from contextlib import ExitStack
from typing import Any, Protocol

from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel as Box
from rich.text import Text

from studies.process.options import Progress
from studies.process.terminal_text import guarded_streams, one_line
from studies.reporting.terminal import say

_PAUSE_S = 0.5  # minimum time between two drawings
_LINE_S = 60.0  # time between two lines off a terminal
_NOTEBOOK_WIDTH = 110


class Snapshot(Protocol):
    """A study's state at one moment, drawn or as one line."""

    def title(self) -> str:
        """Return the study and its stage."""

    def content(self) -> RenderableType:
        """Return the counts and the best trial of each arm, to be drawn."""

    def line(self) -> str:
        """Return the same on one line."""


class Display:
    """A display that shows no progress; the base class of those that do.

    Args:
        console: Console for lines that stay.

    Attributes:
        names_study: Whether the study's name stands beside the lines that stay.
    """

    names_study = False

    def __init__(self, console: Console) -> None:
        self._console = console

    def start(self) -> None:
        """Begin to show progress."""

    def stop(self) -> None:
        """End, and leave only the lines that stay."""

    def say(self, text: str) -> None:
        """Print a line that stays."""
        say(self._console, text)

    def restart(self) -> None:
        """Start the clock of a new stage."""

    def update(self, snapshot: Snapshot) -> None:
        """Show a state; cheap enough to be called at every report."""


class LiveDisplay(Display):
    """A panel in a terminal, redrawn at most twice a second and removed at the end."""

    names_study = True

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, refresh_per_second=2, transient=True)
        self._guard = ExitStack()
        self._drawn = 0.0

    def start(self) -> None:
        # Rich sends other code's output through the console, control sequences included.
        self._live.start()
        self._guard.enter_context(guarded_streams())

    def stop(self) -> None:
        self._guard.close()
        self._live.stop()

    def update(self, snapshot: Snapshot) -> None:
        if time.monotonic() - self._drawn > _PAUSE_S:
            self._drawn = time.monotonic()
            title = one_line(snapshot.title(), self._console.encoding)
            self._live.update(Box(snapshot.content(), title=Text(title), expand=False))


class PlainDisplay(Display):
    """One line a minute, for log files and pipes."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._said = time.monotonic()

    def restart(self) -> None:
        self._said = time.monotonic()

    def update(self, snapshot: Snapshot) -> None:
        if time.monotonic() - self._said >= _LINE_S:
            self._said = time.monotonic()
            self.say(snapshot.line())


class NotebookDisplay(Display):
    """An output of a notebook's cell that is replaced at most twice a second."""

    names_study = True

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._handle: Any = None
        self._drawn = 0.0

    def update(self, snapshot: Snapshot) -> None:
        if time.monotonic() - self._drawn <= _PAUSE_S:
            return
        self._drawn = time.monotonic()
        from IPython.display import display

        text = {"text/plain": _as_text(snapshot)}
        if self._handle is None:
            self._handle = display(text, raw=True, display_id=True)
        else:
            self._handle.update(text, raw=True)


def _as_text(snapshot: Snapshot) -> str:
    page = io.StringIO()
    console = Console(file=page, width=_NOTEBOOK_WIDTH, force_jupyter=False, color_system=None)
    console.print(Box(snapshot.content(), title=Text(snapshot.title()), expand=False))
    return page.getvalue()


def open_display(console: Console, progress: Progress = "auto") -> Display:
    """Return a display.

    Args:
        console: Console for lines that stay, and for the live panel.
        progress: ``live`` draws a panel where the console is a terminal or a notebook, ``plain``
            prints a line a minute, and ``none`` shows nothing; ``auto`` is live there and plain
            elsewhere.
    """
    if progress in ("auto", "live") and in_notebook():
        return NotebookDisplay(console)
    if progress in ("auto", "live") and console.is_terminal:
        return LiveDisplay(console)
    return PlainDisplay(console) if progress in ("auto", "plain") else Display(console)


def in_notebook() -> bool:
    """Return whether this program runs in the kernel of a notebook."""
    return Console(file=io.StringIO()).is_jupyter
