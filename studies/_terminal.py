"""The terminal: consoles on which nothing is cut, and the tables that are drawn there."""

import os
import sys
from collections.abc import Iterable

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ._sheets import WORDS, Sheet
from ._shown import one_line, raw_stream, shown, silence

_NAMES = {"arm", "trial"}  # what a row is looked up by
_NAME_WIDTH = 14
_WORD_WIDTH = 8  # narrower columns of words are read letter by letter
_GAP = 2  # between columns
_OFF_TERMINAL = 120  # columns of a pipe or a file


class Terminal(Console):
    """A console for texts from anywhere: no markup, no emoji codes, no control characters.

    It raises where nobody reads the results any more (rich would exit with 1); a study goes on without its progress.

    Args:
        stderr: whether it is standard error.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        stream = raw_stream(sys.stderr if stderr else sys.stdout)
        _drop_empty_sizes()
        fixed = not stream.isatty() and "COLUMNS" not in os.environ
        super().__init__(
            file=stream,
            stderr=stderr,
            width=_OFF_TERMINAL if fixed else None,
            markup=False,
            emoji=False,
            highlight=False,
        )

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render with every text as :func:`shown`; rich's own control sequences are left alone."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(shown(segment.text, self.encoding), segment.style)

    def on_broken_pipe(self) -> None:
        if not self.stderr:
            raise BrokenPipeError
        silence(sys.stderr)


def _drop_empty_sizes() -> None:
    """Forget a terminal of no size (``COLUMNS=0``), on which rich would print nothing."""
    for name in ("COLUMNS", "LINES"):
        if not os.environ.get(name, "1").strip("0"):
            del os.environ[name]


def say(console: Console, text: str) -> None:
    """Print a line as it is; the terminal wraps it."""
    console.print(Text(shown(text, console.encoding)), soft_wrap=True)


class Drawing:
    """A sheet as a table as wide as its terminal; where that is too narrow, as one record a row.

    Numbers stay whole either way.

    Args:
        sheet: to draw.
    """

    def __init__(self, sheet: Sheet) -> None:
        self.sheet = sheet

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._fitted(console, options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._fitted(console, options))

    def _fitted(self, console: Console, options: ConsoleOptions) -> Table | Group:
        sheet = self.sheet.mapped(lambda cell: one_line(cell, console.encoding))
        needed = [_narrowest(sheet, i) for i in sheet.used()]
        fits = sum(needed) + _GAP * (len(needed) - 1) <= options.max_width
        return _table(sheet) if fits else Group(*_records(sheet))


def _narrowest(sheet: Sheet, column: int) -> int:
    """Return how wide a column must at least be: numbers stay whole, names and words may be folded."""
    longest = max((cell_len(word) for row in sheet.rows for word in row[column].split()), default=0)
    if sheet.columns[column] in _NAMES:
        return min(longest, _NAME_WIDTH)
    return min(longest, _WORD_WIDTH) if _holds_words(sheet, column) else longest


def _holds_words(sheet: Sheet, column: int) -> bool:
    return column == 0 or sheet.columns[column] in WORDS


def _style(sheet: Sheet, number: int) -> str:
    return "bold" if number in sheet.strong else "dim" if number in sheet.faint else ""


def _table(sheet: Sheet) -> Table:
    drawn = Table(box=None, pad_edge=False, caption=Text(sheet.caption) if sheet.caption else None)
    drawn.caption_justify = "left"
    used = sheet.used()
    for i in used:
        drawn.add_column(
            Text(sheet.columns[i]),
            justify="left" if _holds_words(sheet, i) else "right",
            overflow="fold",
            min_width=_narrowest(sheet, i),
        )
    for number, row in enumerate(sheet.rows):
        drawn.add_row(*(Text(row[i]) for i in used), style=_style(sheet, number) or None)
    return drawn


def _records(sheet: Sheet) -> Iterable[Text]:
    """One record a row: its first cell, and below it a line for each of the others."""
    first, *rest = sheet.used()
    for number, row in enumerate(sheet.rows):
        lines = [row[first], *(f"  {sheet.columns[i]}: {row[i]}" for i in rest if row[i])]
        yield Text("\n".join(lines), style=_style(sheet, number), overflow="fold")
    if sheet.caption:
        yield Text(sheet.caption, style="table.caption")
