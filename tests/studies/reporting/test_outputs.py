"""Every printing command in every encoding: only text reaches the terminal, same exit code."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from finished_folder import WIDE, write_finished
from study_runs import FinishedStudy

from studies.cli.commands import main
from studies.files.folder_files import stored_study
from studies.spec.plain_yaml import parse_yaml

_ENCODINGS = ("utf-8", "latin-1", "ascii", "cp1252", "koi8-r", "shift_jis", "cp437", "utf-16")
_HOSTILE = " \x1b[2J\x1b]8;;http://x\x1b\\ [bold]b[/bold] :smile: \x9b1m \u202ex\u2069 …→ 学\r\x7f"
_COMMANDS = (
    ("report", "étude"),
    ("report", "étude", "--json"),
    ("report", "étude 学 \x1b[1m"),
    ("status", "étude"),
    ("status", "étude", "--json"),
    ("list",),
    ("list", "--json"),
    ("show", "étude"),
    ("show", "étude", "--json"),
    ("show", "nosuch\x1b[1m"),
    ("run", "étude", "--trails=é\x1b"),
    ("rén\x1b[1m",),
    ("run", "learnable_bucketing", "--model=./é\x1b学"),
    ("--help",),
    ("run", "--help"),
)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs") / "mes études 学"
    write_finished(folder, name="étude", hostile=_HOSTILE)
    return folder


def _written(
    encoding: str, storage: Path, *arguments: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, str]:
    """Return a command's exit code and what it wrote, as its terminal decodes it."""
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    place = (
        [] if arguments[0].startswith("-") or "--help" in arguments else [f"--storage={storage}"]
    )
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", out)
        try:
            code = main([*arguments, *place])
        except SystemExit as error:
            code = int(str(error.code))
    out.flush()
    return code, out.buffer.getvalue().decode(encoding)


@pytest.mark.parametrize("arguments", _COMMANDS, ids=lambda a: " ".join(map(ascii, a)))
def test_every_command_in_every_encoding(
    storage: Path, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, expected = _written("utf-8", storage, *arguments, monkeypatch=monkeypatch)
    assert code == (2 if "\x1b" in "".join(arguments) else 0)
    for encoding in _ENCODINGS:
        found, text = _written(encoding, storage, *arguments, monkeypatch=monkeypatch)
        assert found == code
        assert not [c for c in text if not c.isprintable() and c != "\n"], ascii(text)
        if "status" not in arguments:  # its columns fold words elsewhere where escapes are longer
            assert _words(text) == _words(expected)


def _words(text: str) -> list[str]:
    """Return words and numbers, without what stands in the place of other characters."""
    return re.findall(r"[a-z]{3,}|\d+\.\d+", re.sub(r"\\x[ab8-f].|\\u\w{4}", "é", text))


def test_texts_of_a_folder_are_shown_as_they_are_or_as_escapes(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    escaped = (
        r" \x1b[2J\x1b]8;;http://x\x1b\ [bold]b[/bold] :smile: \x9b1m \u202ex\u2069 …→ 学\r\x7f"
    )
    _, report = _written("utf-8", storage, "report", "étude", monkeypatch=monkeypatch)
    assert f"Width{escaped}" in report
    assert f"note: arm left out{escaped}" in report
    _, status = _written("utf-8", storage, "status", "étude", monkeypatch=monkeypatch)
    assert r"\x1b]8;;http://x" in status.replace("\n", "")
    page = (storage / "studies" / "étude" / "report.html").read_text("utf-8")
    assert f"arm left out{escaped}" in page
    assert not set(page) & set("\x1b\x9b\r\x7f\u202e")


@pytest.mark.parametrize("encoding", _ENCODINGS)
def test_json_is_ascii_and_what_show_prints_reads_back(
    storage: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    stored = stored_study(storage / "studies" / "étude" / "study.json")
    _, as_yaml = _written(encoding, storage, "show", "étude", monkeypatch=monkeypatch)
    assert parse_yaml(as_yaml) == stored
    _, as_json = _written(encoding, storage, "show", "étude", "--json", monkeypatch=monkeypatch)
    assert as_json.isascii()
    assert json.loads(as_json) == stored
    assert WIDE in stored["arms"]


def test_process_in_other_encodings_prints_the_same(storage: Path) -> None:
    command = [sys.executable, "-m", "studies.cli.main", "report", "étude", f"--storage={storage}"]
    bare = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    texts = []
    for extra in ({"PYTHONIOENCODING": "latin-1"}, {"PYTHONIOENCODING": "ascii"}, bare):
        done = subprocess.run(command, capture_output=True, env={**os.environ, **extra}, timeout=60)
        assert (done.returncode, done.stderr) == (0, b"")
        texts.append(done.stdout.decode("latin-1"))
    assert b"\x1b" not in done.stdout
    for text in texts:
        assert "53,831" in text
        assert r"Width \x1b[2J" in text
        assert "report: " in text
    assert texts[1].splitlines()[:4] == texts[2].splitlines()[:4]


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_export_and_evaluate_in_other_encodings(
    finished: FinishedStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    target = tmp_path / "é 学"
    code, text = _written(
        encoding,
        finished.storage,
        "export",
        finished.name,
        f"--output={target}",
        monkeypatch=monkeypatch,
    )
    assert (code, "test PPL" in text) == (0, True)
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        assert main(["evaluate", f"--adapter={target}", "--blocks=2"]) == 0
    out.flush()
    assert r"\u5b66" in out.buffer.getvalue().decode(encoding)


def test_names_in_html_are_text(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script></style>\"'&amp;<img src=x onerror=1>"
    folder = write_finished(tmp_path, name="x", hostile=hostile)
    page = (folder / "report.html").read_text("utf-8")
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("</style>") == page.count("<style")
    shown = "&lt;script&gt;alert(1)&lt;/script&gt;&lt;/style&gt;&quot;&#x27;&amp;amp;"
    shown += "&lt;img src=x onerror=1&gt;"
    assert page.count(shown) >= 4  # verdict, note, reason, provenance


def test_uncaught_exception_is_shown_with_escapes() -> None:
    start = "from studies.process.terminal_text import guard_streams; guard_streams(); "
    script = start + r"raise RuntimeError('a\x1b[2J\u202e学')"
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, env=environment, timeout=60
    )
    assert done.stderr.decode("latin-1").endswith("RuntimeError: a\\x1b[2J\\u202e\\u5b66\n")
