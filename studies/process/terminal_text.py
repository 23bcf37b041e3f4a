"""Text as any terminal can show it: plain signs where its encoding is small, control characters never raw."""

import codecs
import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

_SIGNS = {  # our own signs, for encodings that lack them
    "\N{HORIZONTAL ELLIPSIS}": "...",
    "\N{MINUS SIGN}": "-",
    "\N{EN DASH}": "-",
    "\N{EM DASH}": "-",
    "\N{MULTIPLICATION SIGN}": "x",
    "\N{MIDDLE DOT}": "*",
    "\N{BULLET}": "*",
    "\N{PLUS-MINUS SIGN}": "+-",
    "\N{RIGHTWARDS ARROW}": "->",
    "\N{LEFTWARDS ARROW}": "<-",
    "\N{LESS-THAN OR EQUAL TO}": "<=",
    "\N{GREATER-THAN OR EQUAL TO}": ">=",
    "\N{ALMOST EQUAL TO}": "~",
    "\N{LEFT SINGLE QUOTATION MARK}": "'",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{LEFT DOUBLE QUOTATION MARK}": '"',
    "\N{RIGHT DOUBLE QUOTATION MARK}": '"',
    "\N{NO-BREAK SPACE}": " ",
    "\N{NARROW NO-BREAK SPACE}": " ",
}
_BOX = range(0x2500, 0x2580)
_JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"  # part of words and of emoji


def shown(text: str, encoding: str | None = None) -> str:
    """Return a text with control characters as escapes (``\\x1b``), line ends and tabs apart.

    Bidirectional overrides and other invisible characters count as control characters.

    Args:
        text: from anywhere.
        encoding: of the terminal: what it lacks becomes a plain sign (``->``) or an escape too; None lacks nothing.
    """
    if not (text.isascii() and text.isprintable()):
        text = "".join(c if _is_harmless(c) else _escape(c) for c in text)
    if encoding is None or _fits(text, encoding):
        return text
    return "".join(c if _fits(c, encoding) else _plain_sign(c) for c in text)


def one_line(text: str, encoding: str | None = None) -> str:
    """Return the same with line ends and tabs as escapes too, for the cell of a table."""
    return shown(text, encoding).replace("\n", "\\n").replace("\t", "\\t")


def reads_back(text: str, encoding: str | None) -> bool:
    """Return whether a text that is printed can be read again as UTF-8, and is the same then."""
    return shown(text) == text and (
        text.isascii() or encoding is None or codecs.lookup(encoding).name == "utf-8"
    )


def _is_harmless(character: str) -> bool:
    return (
        character.isprintable()
        or character in "\n\t"
        or character in _JOINERS
        or _is_space(character)
    )


def _is_space(character: str) -> bool:
    return unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _fits(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _plain_sign(character: str) -> str:
    if ord(character) in _BOX:
        return {"─": "-", "━": "-", "═": "=", "│": "|", "┃": "|", "║": "|"}.get(character, "+")
    return _SIGNS.get(character) or _escape(character)


class ShownStream:
    """A text stream that writes every text as :func:`shown`; in all else it is the stream that it wraps.

    Attributes:
        raw: the stream it wraps, for what has to write control sequences.
    """

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        """Write a text as the stream's encoding can show it."""
        self.raw.write(shown(text, self.raw.encoding))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each text in turn."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def raw_stream(stream: TextIO) -> TextIO:
    """Return the stream below our own."""
    return stream.raw if isinstance(stream, ShownStream) else stream


def guard_streams() -> None:
    """Write what goes to standard output and error as :func:`shown` from now on.

    A stream that the shell has closed (``>&-``) reads and writes nothing; the lowest free number is that stream's.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open until the process ends
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, ShownStream):
            setattr(sys, name, cast("TextIO", ShownStream(stream)))


@contextmanager
def guarded_streams() -> Iterator[None]:
    """The same within it; afterwards the streams are as they were."""
    before = sys.stdout, sys.stderr
    guard_streams()
    try:
        yield
    finally:
        opened = [
            raw_stream(s)
            for s, b in zip((sys.stdout, sys.stderr), before, strict=True)
            if b is None
        ]
        sys.stdout, sys.stderr = before
        for stream in opened:
            stream.close()


def silence(stream: TextIO) -> None:
    """Drop what is still to be written to a stream that takes no more: Python would try again at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
