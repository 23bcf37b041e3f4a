"""The terminal: nothing is cut, nothing but rich controls it."""

import io
import re
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.panel import Panel as Box

from studies.learnable_bucketing import STUDY
from studies.progress.panel import Panel
from studies.reporting.tables import Sheet
from studies.reporting.terminal import Drawing, Terminal, say
from studies.spec.study import Study
from studies.trials.store import Store

_SHEET = Sheet(
    ("arm", "test PPL", "vs fixed [95 %]", "parameters", "s/trial"),
    (
        ("学習境界", "53,831", "-12.42 % [-13.71, -11.13]", "12,345,678", "1234.5"),
        ("fixed", "1.234", "-", "7", "0.1"),
    ),
    caption="test PPL: mean over seeds; change in %, negative = better.",
)


class _Tty(io.TextIOWrapper):
    """A terminal that keeps what is written."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.bytes = io.BytesIO()
        super().__init__(self.bytes, encoding=encoding)

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        self.flush()
        return self.bytes.getvalue().decode(self.encoding)


def _stand_in(monkeypatch: pytest.MonkeyPatch, encoding: str = "utf-8") -> _Tty:
    """Replace standard output and error by a terminal, where pytest no longer changes them."""
    terminal = _Tty(encoding)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, terminal)
    return terminal


def _drawn(sheet: Sheet, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(Drawing(sheet))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [*range(24, 81), 120])
def test_numbers_are_whole_at_any_width(width: int) -> None:
    lines = _drawn(_SHEET, width)
    assert max(map(cell_len, lines)) <= width
    words = set(" ".join(lines).split())
    assert {
        "53,831",
        "-12.42",
        "[-13.71,",
        "-11.13]",
        "12,345,678",
        "1234.5",
        "1.234",
        "7",
        "0.1",
    } <= words


def test_narrow_terminal_has_a_record_for_each_arm() -> None:
    assert _drawn(_SHEET, 40) == [
        "学習境界",
        "  test PPL: 53,831",
        "  vs fixed [95 %]: -12.42 % [-13.71, ",
        "-11.13]",
        "  parameters: 12,345,678",
        "  s/trial: 1234.5",
        "fixed",
        "  test PPL: 1.234",
        "  vs fixed [95 %]: -",
        "  parameters: 7",
        "  s/trial: 0.1",
        "test PPL: mean over seeds; change in %, ",
        "negative = better.",
    ]


def test_sheet_without_rows_is_its_caption() -> None:
    assert _drawn(Sheet(("arm", "n"), (), caption="None yet."), 40) == ["None yet."]


def test_columns_of_wide_names_are_in_line() -> None:
    header, wide, plain, *_ = _drawn(_SHEET, 120)
    ends = [
        cell_len(line[: line.index(word) + len(word)])
        for line, word in ((wide, "53,831"), (plain, "1.234"))
    ]
    assert ends == [cell_len(header[: header.index("PPL") + 3])] * 2


def test_names_that_a_terminal_lacks_are_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _stand_in(monkeypatch, "latin-1")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    Terminal().print(Drawing(_SHEET))
    header, wide, plain, *_ = re.sub(r"\x1b\[[0-9;]*m", "", terminal.text()).splitlines()
    assert wide.startswith(r"\u5b66\u7fd2\u5883\u754c")
    assert wide.index("53,831") + 6 == plain.index("1.234") + 5 == header.index("PPL") + 3


def test_terminal_of_no_size_prints_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    tty = _stand_in(monkeypatch)
    Terminal().print(Drawing(_SHEET))
    assert "53,831" in tty.text()


@pytest.mark.parametrize(
    "text", ["[bold]x[/bold]", ":smile: 1", "[link=http://x]y[/link]", "a\\[b]"]
)
def test_markup_and_emoji_codes_are_text(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    tty = _stand_in(monkeypatch)
    console = Terminal()
    say(console, text)
    console.print(text)
    console.print(Drawing(Sheet(("arm", "n"), ((text, "1"),))))
    assert tty.text().count(text) == 3


def test_control_characters_are_escapes_wherever_rich_prints_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tty = _stand_in(monkeypatch)
    hostile = "\x1b]0;title\x1b\\ \x9b2J\u202e\rx"
    console = Terminal(stderr=True)
    say(console, hostile)
    console.print(Drawing(Sheet(("arm\x1b[2J", "n"), ((hostile, "1"),))))
    console.print(Box(hostile, title=hostile))
    text = re.sub(r"\x1b\[[0-9;]*m", "", tty.text())  # rich's own styles
    assert not [c for c in text if not c.isprintable() and c != "\n"], ascii(text)
    assert text.count(r"\x1b]0;title\x1b\ \x9b2J\u202e") == 4


def test_panel_shows_a_study_and_what_is_printed_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "44")
    tty = _stand_in(monkeypatch)
    store = Store(tmp_path, Study.from_dict(STUDY))
    record = store.propose("fixed")
    with Panel(store, Terminal(stderr=True)) as panel:
        panel.begin("search", 24)
        record.name = "fixed-\x1b[2J"
        panel.update()
        panel.say("gone \x1b]8;;http://x\x1b\\[bold]on")
        print("printed \x1b]8;;http://x\x1b\\ \x1b[31mbeside")
    store.close()
    text = tty.text()
    assert r"gone \x1b]8;;http://x\x1b\[bold]on" in text
    assert r"printed \x1b]8;;http://x\x1b\ \x1b[31mbeside" in text
    assert "\x1b]8" not in text
    assert "learnable" in text
    assert "running: 1" in text
