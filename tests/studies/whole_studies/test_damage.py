"""Damaged or lost files of a study: commands name the file, exit with 2 and write nothing."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from study_runs import FinishedStudy

from hylorada import InputError
from studies.cli.commands import main
from studies.files.folder_files import append_line, read_lines, stored_study
from studies.process.options import Options
from studies.runner.run import _check_storage
from studies.search.stages import base_metrics
from studies.spec.study import Study
from studies.trials.store import Store

pytestmark = pytest.mark.timeout(600)

# The commands that read the trials; `run` and `extend` begin with "open".
READERS = ("status", "export", "open")
OPEN = ("open",)
RESULTS = ("report", "export")
Damage = Callable[[Path], object]


class Copy:
    """A copy of a finished study that tests may damage, and the commands on it."""

    def __init__(self, storage: Path, name: str) -> None:
        self.storage, self.name, self.folder = storage, name, storage / "studies" / name
        results = json.loads((self.folder / "results.json").read_text())
        self.winner: str = results["arms"][0]["trial"]
        self.first_run: str = results["arms"][0]["runs"][0]

    def path(self, file: str) -> Path:
        return self.folder / file.replace("WINNER", self.winner).replace("RUN", self.first_run)

    def run(self, command: str) -> int:
        """Run a command, and return its exit code."""
        output = [f"--output={self.storage / 'out'}"] if command == "export" else []
        return main([command, self.name, f"--storage={self.storage}", *output])

    def open(self) -> None:
        stored = stored_study(self.folder / "study.json")
        Store(self.folder, Study.from_dict({**stored, "trials": stored["trials"] + 1})).close()

    def content(self) -> dict[str, bytes]:
        return {
            str(p): p.read_bytes()
            for p in self.storage.rglob("*")
            if p.is_file() and p.name != "lock"
        }


@pytest.fixture
def copy(finished: FinishedStudy, tmp_path: Path) -> Copy:
    folder = tmp_path / "studies" / finished.name
    shutil.copytree(finished.folder, folder)
    return Copy(tmp_path, finished.name)


def put(content: bytes) -> Damage:
    return lambda path: path.write_bytes(content)


def lose(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def folder_instead(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def change(**fields: Any) -> Damage:
    return lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def cut_last_line(path: Path) -> None:
    path.write_bytes(b"\n".join(path.read_bytes().splitlines()[:-1]) + b"\n")


TRIAL, LINES, RUN = "trials/WINNER/trial.json", "trials/WINNER/reports.jsonl", "trials/RUN/"
NPY = RUN + "test_block_nll.npy"
SUM = "is damaged (its checksum does not match its content)"


def other_digit(what: bytes) -> Damage:
    """Change the last digit of the first number after some text."""

    def damage(path: Path) -> None:
        content = path.read_bytes()
        match = re.search(re.escape(what) + rb"[-0-9.]*?([0-9])(?=[^0-9.])", content)
        assert match is not None
        digit = b"7" if match[1] != b"7" else b"3"
        path.write_bytes(content[: match.start(1)] + digit + content[match.end(1) :])

    return damage


def flip_bit(path: Path) -> None:
    """Flip the lowest bit of the last loss."""
    content = bytearray(path.read_bytes())
    content[-8] ^= 1
    path.write_bytes(content)


def swap_with(other_trial: str) -> Damage:
    """Swap a file with the one of the same name in another trial's folder."""

    def damage(path: Path) -> None:
        other = path.parents[1] / other_trial / path.name
        ours = path.read_bytes()
        path.write_bytes(other.read_bytes())
        other.write_bytes(ours)

    return damage


DAMAGES: list[tuple[str, Damage, tuple[str, ...], str]] = [
    (
        "results.json",
        put(b'{"study": "x"'),
        RESULTS,
        "is damaged (not JSON: Expecting ',' delimiter); delete it: `",
    ),
    ("results.json", put(b"{}"), RESULTS, "is damaged (no field 'arms')"),
    ("results.json", put(b"[]"), RESULTS, "is damaged (all of it can't be [])"),
    ("results.json", put(b"\xff"), RESULTS, "is damaged (not UTF-8)"),
    ("results.json", change(arms=[1]), RESULTS, SUM),
    ("results.json", other_digit(b'"low": '), RESULTS, SUM),
    ("results.json", other_digit(b'"change": '), RESULTS, SUM),
    ("results.json", folder_instead, RESULTS, "is a folder, must be a file"),
    (TRIAL, put(b'{"name": "b'), READERS, "is damaged (not JSON: Unterminated string starting at)"),
    (TRIAL, put(b""), READERS, "is damaged (not JSON: Expecting value)"),
    (TRIAL, change(zz=1), READERS, SUM),
    (TRIAL, change(state="pruned"), READERS, SUM),
    (TRIAL, change(params={}), READERS, SUM),
    (TRIAL, other_digit(b'"seed": '), READERS, SUM),
    (TRIAL, other_digit(b'"learning_rate": '), READERS, SUM),
    (TRIAL, change(name="fixed-0009"), READERS, "is damaged (it belongs to trial 'fixed-0009')"),
    (TRIAL, lose, READERS, "is missing"),
    (
        LINES,
        put(b'{"step": 2}\ngarbage\n{"step": 4}\n'),
        READERS,
        "is damaged (not JSON: Expecting value)",
    ),
    (LINES, put(b'{"step": "2"}\n'), READERS, "is damaged (step can't be '2')"),
    (LINES, put(b"[]\n"), READERS, "is damaged (all of it can't be [])"),
    (LINES, put(b"\xff\xfe\n"), READERS, "is damaged (not UTF-8)"),
    (LINES, lose, READERS, "is missing; restore it from a backup"),
    (LINES, put(b""), READERS, "is damaged (it is empty, though the trial is complete)"),
    (
        LINES,
        cut_last_line,
        READERS,
        "is damaged (its last report is lost, though the trial is complete)",
    ),
    (
        LINES,
        other_digit(b'"eval/nll": '),
        READERS,
        "is damaged (the checksum of line 1 does not match",
    ),
    (LINES, swap_with("fixed-0001"), READERS, "is damaged (the checksum of line 1 does not match"),
    (
        RUN + "reports.jsonl",
        lose,
        READERS,
        "is missing; restore it from a backup, or delete the folder",
    ),
    (
        RUN + "reports.jsonl",
        other_digit(b'"test/nll": '),
        READERS,
        "is damaged (the checksum of line 4 does not",
    ),
    (
        NPY,
        put(b"garbage" * 9),
        OPEN,
        "is damaged (its checksum differs from the one in reports.jsonl); restore",
    ),
    (NPY, put(b""), OPEN, "is damaged (its checksum differs from the one in reports.jsonl)"),
    (NPY, flip_bit, OPEN, "is damaged (its checksum differs from the one in reports.jsonl)"),
    (NPY, lose, OPEN, "is missing; restore it from a backup, or delete the folder"),
    ("inputs.json", put(b'{"a"'), OPEN, "is damaged (not JSON: Expecting ':' delimiter)"),
    ("inputs.json", put(b"[]"), OPEN, "is damaged (all of it can't be [])"),
    ("inputs.json", change(data_fingerprint="0" * 16), OPEN, SUM),
    ("id", other_digit(b""), ("status", "export", "open"), "is damaged (it holds "),
    ("study.json", change(trials="8"), READERS, SUM),
    ("study.json", other_digit(b'"seed": '), READERS, SUM),
    ("study.json", other_digit(b'"max_steps": '), READERS, SUM),
    ("study.json", change(document_separator="newline"), READERS, SUM),
    ("optuna.db", folder_instead, READERS, "is a folder, must be a file"),
    ("lock", folder_instead, READERS, "is a folder, must be a file"),
]


@pytest.mark.parametrize(
    ("file", "damage", "commands", "problem"),
    DAMAGES,
    ids=[f"{d[0]}-{i}" for i, d in enumerate(DAMAGES)],
)
def test_damaged_file_is_named_and_nothing_is_written(
    copy: Copy,
    capsys: pytest.CaptureFixture[str],
    file: str,
    damage: Damage,
    commands: tuple[str, ...],
    problem: str,
) -> None:
    damage(copy.path(file))
    before = copy.content()
    for command in commands:
        if command == "open":
            with pytest.raises(
                InputError, match=r"restore it from a backup|delete|remove it"
            ) as raised:
                copy.open()
            said = raised.value.problems
        else:
            assert (command, copy.run(command)) == (command, 2)
            out, err = capsys.readouterr()
            assert out == ""
            said = [line.removeprefix("hylorada: ") for line in err.splitlines()]
        assert [line[: len(f"{copy.path(file)} {problem}")] for line in said] == [
            f"{copy.path(file)} {problem}"
        ]
    assert copy.content() == before


@pytest.mark.parametrize("command", ["status", "export"])
def test_lost_trials_are_named(
    copy: Copy, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    shutil.rmtree(copy.folder / "trials")
    assert copy.run(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    arms = ("baseline", "fixed", "learnable")
    assert err.splitlines() == [
        f"hylorada: {copy.folder}/trials/{arm}-0000/trial.json is missing, and those of 3 other "
        "trials; restore it from a backup"
        for arm in arms
    ]


def test_report_needs_nothing_but_the_results(
    copy: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(copy.folder / "trials")
    assert copy.run("report") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("tail", [b"\0" * 50, b"\0" * 50 + b"\n", b'{"st\0\0\0'])
def test_zeros_after_a_loss_of_power_are_a_torn_line(copy: Copy, tail: bytes) -> None:
    path = copy.path(LINES)
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    copy.open()
    assert b"".join(line.encode() + b"\n" for line in read_lines(path)) == whole
    append_line(path, "next")
    assert path.read_bytes() == whole + b"next\n"


def test_folder_of_an_earlier_version_takes_a_new_fingerprint_and_keeps_to_it(copy: Copy) -> None:
    path = copy.path("inputs.json")
    before = json.loads(path.read_text())
    del before["model_config_fingerprint"], before["seal"]
    path.write_text(json.dumps(before))
    stored = Study.from_dict(stored_study(copy.folder / "study.json"))
    store = Store(copy.folder, stored)
    try:
        store.bind_inputs({**before, "model_config_fingerprint": "new"})
        assert (
            json.loads(path.read_text()).items()
            > {**before, "model_config_fingerprint": "new"}.items()
        )
        with pytest.raises(InputError, match="model_config_fingerprint was new, now other"):
            store.bind_inputs({**before, "model_config_fingerprint": "other"})
    finally:
        store.close()


@pytest.mark.parametrize("field", ["trials", "seeds", "definition"])
def test_study_that_lacks_a_field_is_damaged(
    copy: Copy, capsys: pytest.CaptureFixture[str], field: str
) -> None:
    path = copy.folder / "study.json"
    values = json.loads(path.read_text())
    del values[field], values["seal"]
    path.write_text(json.dumps(values))
    assert copy.run("extend") == 2
    assert (
        capsys.readouterr().err
        == f"hylorada: {path} is damaged (no field {field!r}); restore it from a backup\n"
    )


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (
            "mlflow.db",
            b"garbage" * 100,
            r"mlflow\.db is damaged \(not an SQLite database\); restore it",
        ),
        ("cache", b"", "cache is a file, must be a folder; remove it"),
        ("studies", b"", "studies is a file, must be a folder; remove it"),
    ],
)
def test_storage_is_looked_at_before_a_study(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=problem):
        _check_storage(Options(storage=tmp_path))


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", None])
def test_lost_figures_of_the_base_are_measured_again(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "base.json").write_bytes(content)
    measured = {"ppl": 9.5, "tokens": 10}
    assert base_metrics(tmp_path, lambda: measured) == measured
    assert base_metrics(tmp_path, dict) == measured


# --- where the output goes --------------------------------------------------------------------


@pytest.mark.parametrize("command", ["status", "report"])
def test_closed_streams_are_as_nowhere(
    copy: Copy, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert copy.run(command) == 0


@pytest.mark.parametrize("command", ["status", "report", "list"])
def test_output_that_cannot_be_written_is_told_in_a_line(
    copy: Copy, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    errors = StringIO()
    monkeypatch.setattr(sys, "stderr", errors)
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        name = [] if command == "list" else [copy.name]
        assert main([command, *name, f"--storage={copy.storage}"]) == 3
    assert errors.getvalue() == "hylorada: the output can't be written: No space left on device\n"


@pytest.mark.parametrize("command", ["status", "report"])
def test_pipe_that_nobody_reads_ends_a_command_well(copy: Copy, command: str) -> None:
    arguments = [
        sys.executable,
        "-m",
        "studies.cli.main",
        command,
        copy.name,
        f"--storage={copy.storage}",
    ]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 0)
