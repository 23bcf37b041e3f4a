"""The terminal: consoles that cut nothing off, and the tables drawn on them."""

import os
import sys
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from studies.process.terminal_text import one_line, raw_stream, shown, silence
from studies.reporting.tables import WORDS, Sheet

_NAMES = {"arm", "trial"}  # columns that identify a row
_NAME_WIDTH = 14
_WORD_WIDTH = 8  # narrower columns of words are hard to read
_GAP = 2  # between columns
_OFF_TERMINAL = 120  # width of a pipe or a file


class Terminal(Console):
    """A console for untrusted text: without markup, emoji codes and control characters.

    If the reader of standard output has gone, it raises BrokenPipeError (rich would exit with 1).
    On standard error it falls silent instead, so a study continues without its progress.

    Args:
        stderr: Whether to write to standard error.
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

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render every text as :func:`shown` returns it, but keep rich's own control sequences."""
        for segment in super().render(renderable, options):
            yield (
                segment
                if segment.control
                else Segment(shown(segment.text, self.encoding), segment.style)
            )

    def on_broken_pipe(self) -> None:
        if not self.stderr:
            raise BrokenPipeError
        silence(sys.stderr)


def _drop_empty_sizes() -> None:
    """Unset ``COLUMNS=0`` and ``LINES=0``, with which rich would print nothing."""
    for name in ("COLUMNS", "LINES"):
        if not os.environ.get(name, "1").strip("0"):
            del os.environ[name]


def say(console: Console, text: str) -> None:
    """Print a line unbroken; the terminal wraps it."""
    console.print(Text(shown(text, console.encoding)), soft_wrap=True)


class Drawing:
    """A sheet drawn as a table, or as one record per row if the terminal is too narrow for that.

    Numbers stay whole either way.

    Args:
        sheet: Sheet to draw.
        dense: Whether a record is a single paragraph, which saves lines.
    """

    def __init__(self, sheet: Sheet, *, dense: bool = False) -> None:
        self.sheet, self._dense = sheet, dense

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._fitted(console, options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._fitted(console, options))

    def _fitted(self, console: Console, options: ConsoleOptions) -> Table | Group:
        sheet = self.sheet.mapped(lambda cell: one_line(cell, console.encoding))
        if widths := _widths(sheet, options.max_width):
            return _table(sheet, widths)
        return Group(*_records(sheet, dense=self._dense))


def _widths(sheet: Sheet, available: int) -> list[int] | None:
    """Return a width for each used column; None if they don't fit.

    Rich would narrow the widest columns first, and cut numbers off at the edge.
    """
    used = sheet.used()
    widths, whole = [_narrowest(sheet, i) for i in used], [_widest(sheet, i) for i in used]
    spare = available - sum(widths) - _GAP * (len(used) - 1)
    if spare < 0:
        return None
    while spare and (folded := [i for i in range(len(used)) if widths[i] < whole[i]]):
        for i in folded[:spare]:
            widths[i] += 1
        spare -= len(folded[:spare])
    return widths


def _narrowest(sheet: Sheet, column: int) -> int:
    """Return the minimum width of a column: numbers stay whole, names and words may be folded."""
    title = sheet.columns[column]
    longest = _longest(word for row in sheet.rows for word in row[column].split())
    if title in _NAMES:
        longest = min(longest, _NAME_WIDTH)
    elif _holds_words(sheet, column):
        longest = min(longest, _WORD_WIDTH)
    return max(longest, min(_longest(title.split()), _NAME_WIDTH))


def _widest(sheet: Sheet, column: int) -> int:
    return _longest((sheet.columns[column], *(row[column] for row in sheet.rows)))


def _longest(texts: Iterable[str]) -> int:
    return max(map(cell_len, texts), default=0)


def _holds_words(sheet: Sheet, column: int) -> bool:
    return column == 0 or sheet.columns[column] in WORDS


def _style(sheet: Sheet, number: int) -> str:
    return "bold" if number in sheet.strong else "dim" if number in sheet.faint else ""


def _table(sheet: Sheet, widths: Sequence[int]) -> Table:
    drawn = Table(box=None, pad_edge=False, caption=Text(sheet.caption) if sheet.caption else None)
    drawn.caption_justify = "left"
    used = sheet.used()
    for i, width in zip(used, widths, strict=True):
        justify: JustifyMethod = "left" if _holds_words(sheet, i) else "right"
        drawn.add_column(Text(sheet.columns[i]), justify=justify, overflow="fold", width=width)
    for number, row in enumerate(sheet.rows):
        drawn.add_row(*(Text(row[i]) for i in used), style=_style(sheet, number) or None)
    return drawn


def _records(sheet: Sheet, *, dense: bool) -> Iterable[Text]:
    """Return one record per row: its first cell, then the others with their titles."""
    first, *rest = sheet.used() or [0]  # a sheet without rows uses no column
    for number, row in enumerate(sheet.rows):
        cells = [f"{sheet.columns[i]}: {row[i]}" for i in rest if row[i]]
        text = f"{row[first]}  {', '.join(cells)}" if dense else "\n  ".join([row[first], *cells])
        yield Text(text, style=_style(sheet, number), overflow="fold")
    if sheet.caption:
        yield Text(sheet.caption, style="table.caption")
