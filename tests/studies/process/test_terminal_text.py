# ruff: noqa: RUF001 - signs that look like others are what is tested
"""Text from any source on terminals of any encoding."""

import io
import sys

import pytest

from studies.process.terminal_text import guarded_streams, one_line, reads_back, shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain\tand\nlines", "plain\tand\nlines"),
        ("été 学習 😀\u200d😀 10\N{NO-BREAK SPACE}%", "été 学習 😀\u200d😀 10\N{NO-BREAK SPACE}%"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x1b]8;;http://x\x1b\\link", r"\x1b]8;;http://x\x1b\link"),
        ("a\rb\x07\x00\x7f", r"a\rb\x07\x00\x7f"),
        ("\x9b31m\x85", r"\x9b31m\x85"),
        ("\u202eevil\u2066x\u2069", r"\u202eevil\u2066x\u2069"),
        ("\u2028\ufeff\u200b\udcff", r"\u2028\ufeff\u200b\udcff"),
    ],
)
def test_control_characters_are_escapes(text: str, expected: str) -> None:
    assert shown(text) == shown(shown(text)) == shown(text, "utf-8") == expected


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("utf-8", "… → − ─│╭ × été 学"),
        ("latin-1", r"... -> - -|+ × été \u5b66"),
        ("cp1252", r"… -> - -|+ × été \u5b66"),
        ("ascii", r"... -> - -|+ x \xe9t\xe9 \u5b66"),
        ("koi8-r", r"... -> - ─│+ x \xe9t\xe9 \u5b66"),
        ("shift_jis", r"… → − ─│+ × \xe9t\xe9 学"),
    ],
)
def test_signs_that_an_encoding_lacks_are_plain_and_names_are_escapes(
    encoding: str, expected: str
) -> None:
    assert shown("… → − ─│╭ × été 学", encoding) == expected


def test_cell_is_one_line() -> None:
    assert one_line("a\nb\tc\x1b") == r"a\nb\tc\x1b"


def test_text_reads_back_where_it_is_utf8_and_nothing_is_escaped() -> None:
    assert reads_back("été", "UTF8")
    assert reads_back("ete", "ascii")
    assert not reads_back("été", "latin-1")
    assert not reads_back("\u202e", "utf-8")


def test_guarded_streams_are_put_back_and_wrapped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    out = io.TextIOWrapper(written, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    with guarded_streams(), guarded_streams():
        print("é\x1b", flush=True)
        sys.stdout.writelines(["→\n"])
    assert sys.stdout is out
    out.flush()
    assert written.getvalue() == b"\\xe9\\x1b\n->\n"
