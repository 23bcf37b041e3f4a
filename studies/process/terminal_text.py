"""Text that any terminal can show: ASCII signs where necessary, control characters escaped."""

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
    """Return a text with control characters as escapes (``\\x1b``), except line ends and tabs.

    Bidirectional overrides and other invisible characters count as control characters.

    Args:
        text: text from any source.
        encoding: encoding of the terminal. Characters that it lacks become ASCII signs (``->``) or
            escapes too; None means that it has all.
    """
    if not (text.isascii() and text.isprintable()):
        text = "".join(c if _is_harmless(c) else _escape(c) for c in text)
    if encoding is None or _fits(text, encoding):
        return text
    return "".join(c if _fits(c, encoding) else _plain_sign(c) for c in text)


def one_line(text: str, encoding: str | None = None) -> str:
    """Return a text as `shown` does, with line ends and tabs escaped too, for a table cell."""
    return shown(text, encoding).replace("\n", "\\n").replace("\t", "\\t")


def reads_back(text: str, encoding: str | None) -> bool:
    """Return whether a text, once printed, reads back as UTF-8 without a change."""
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
    """A wrapper of a text stream that passes every text through :func:`shown`.

    Attributes:
        raw: the wrapped stream, for callers that must write control sequences.
    """

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        """Write a text with every character that the stream's encoding can't show replaced."""
        self.raw.write(shown(text, self.raw.encoding))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each text in turn."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def raw_stream(stream: TextIO) -> TextIO:
    """Return the stream wrapped by a `ShownStream`, or the stream itself."""
    return stream.raw if isinstance(stream, ShownStream) else stream


def guard_streams() -> None:
    """Pass standard output and standard error through :func:`shown` from now on.

    A stream that the shell has closed (``>&-``) is opened on the null device. It gets its own
    number again, because the lowest free one is assigned.
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
    """Guard the streams inside this context as `guard_streams` does, and restore them after it."""
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
    """Discard a broken stream's pending output, which Python would flush again at its exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
