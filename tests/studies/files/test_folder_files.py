"""A full disk, a hiccup of a file share, a locked database: messages, waits, and intact files."""

import errno
import os
import random
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from ray.exceptions import RayTaskError
from study_runs import SMALL, run_cli, small_disk

from studies.files import folder_files
from studies.files.folder_files import append_line, read_lines, write_atomically
from studies.process.errors import StorageFault, StudyStopped, as_stop

KIB = 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder with its own file system of 256 KiB."""
    with small_disk(tmp_path / "disk", "256k") as allowed:
        if not allowed:
            pytest.skip("no right to mount a small disk")
        yield tmp_path / "disk"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_files, "_PAUSES_S", (0.01,))


def fill(disk: Path, *, leave: int) -> Path:
    """Fill the disk up to some bytes, and return the file."""
    filler = disk / "filler"
    filler.write_bytes(bytes(max(0, shutil.disk_usage(disk).free - leave)))
    return filler


@pytest.mark.usefixtures("impatient")
def test_full_disk_leaves_the_old_file_and_no_other(disk: Path) -> None:
    path = disk / "trial.json"
    write_atomically(path, "old")
    fill(disk, leave=16 * KIB)
    with pytest.raises(
        StorageFault,
        match=r"trial\.json can't be written: No space left on device \(0\.0 MiB free\)",
    ):
        write_atomically(path, "new" * 10_000)
    assert path.read_text() == "old"
    assert sorted(p.name for p in disk.iterdir()) == ["filler", "trial.json"]


@pytest.mark.usefixtures("impatient")
def test_full_disk_keeps_all_whole_lines(disk: Path) -> None:
    path = disk / "reports.jsonl"
    append_line(path, "one")
    filler = fill(disk, leave=8 * KIB)
    with pytest.raises(
        StorageFault, match=r"reports\.jsonl can't be written: No space left on device"
    ):
        append_line(path, "x" * 30_000)
    assert read_lines(path) == ["one"]
    filler.unlink()
    append_line(path, "two")
    assert read_lines(path) == ["one", "two"]


def test_disk_that_is_freed_meanwhile_is_waited_for(disk: Path) -> None:
    path = disk / "trial.json"
    filler = fill(disk, leave=8 * KIB)
    threading.Timer(0.3, filler.unlink).start()
    write_atomically(path, "new" * 10_000)
    assert path.read_text() == "new" * 10_000


@pytest.mark.parametrize("tail", [1, 2, 3, 5, 16, 1 << 14])
def test_only_an_unfinished_line_and_zeros_at_the_end_are_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: int
) -> None:
    """Random ends of lines, pieces and zeros, however much of the file is read first."""
    monkeypatch.setattr(folder_files, "_TAIL", tail)
    path, draws = tmp_path / "reports.jsonl", random.Random(tail)
    for _ in range(300):
        parts = draws.choices(
            ["line\n", "li\0ne\n", "piece", "\n", "\0", "\0\0\0"], k=draws.randrange(9)
        )
        content = "".join(parts)
        whole = content
        while whole.endswith(("\0", "\n")) and "\0" in whole[len(whole.rstrip("\0\n")) :]:
            whole = whole[:-1]  # zeros to the end, and line breaks among them
        whole = whole[: whole.rfind("\n") + 1]
        path.write_text(content)
        append_line(path, "next")
        assert path.read_text() == f"{whole}next\n", repr(content)


def test_a_line_costs_the_same_however_long_the_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = tmp_path / "reports.jsonl", []
    path.write_text("0123456789\n" * 100_000)
    complete = folder_files._complete_lines

    def counted(content: bytes) -> bytes:
        read.append(len(content))
        return complete(content)

    monkeypatch.setattr(folder_files, "_complete_lines", counted)
    append_line(path, "next")
    assert read == [folder_files._TAIL]
    assert path.stat().st_size == 1_100_005


@pytest.mark.usefixtures("impatient")
def test_fault_of_the_program_is_not_taken_for_the_disks(tmp_path: Path) -> None:
    (tmp_path / "trial.json.tmp").mkdir()
    with pytest.raises(IsADirectoryError) as raised:
        write_atomically(tmp_path / "trial.json", "new")
    assert as_stop(raised.value) is None
    assert as_stop(ValueError("x")) is None


def test_what_crossed_ray_keeps_its_own_words() -> None:
    """Ray's own text of it is a coloured traceback."""
    fault = RayTaskError(
        "f", "a traceback", StudyStopped("node B doesn't fit")
    ).as_instanceof_cause()
    assert str(as_stop(fault)) == "node B doesn't fit"
    stale = RayTaskError("f", "a traceback", OSError(errno.ESTALE, "Stale file handle"))
    assert str(as_stop(stale)) == "[Errno 116] Stale file handle"


@pytest.mark.usefixtures("impatient")
def test_line_that_was_written_before_the_fault_is_not_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share with a quota fails at the sync, when the line is already written."""
    path = tmp_path / "reports.jsonl"
    append_line(path, "one")
    with path.open("a") as file:
        file.write("tor")
    faults = iter([OSError(errno.EDQUOT, "Disk quota exceeded"), None])

    def sync(_: int) -> None:
        if (fault := next(faults)) is not None:
            raise fault

    monkeypatch.setattr(os, "fsync", sync)
    append_line(path, "two")
    assert path.read_text() == "one\ntwo\n"


@pytest.mark.timeout(240)
def test_study_that_finds_its_disk_full_stops_in_a_line(disk: Path, toy_model: str) -> None:
    fill(disk, leave=8 * KIB)
    done = run_cli(
        "run", "learnable_bucketing", f"--model={toy_model}", f"--storage={disk}", *SMALL
    )
    assert done.code == 3
    assert "Traceback" not in done.err
    assert "the study stopped; state saved. Resume with: hylorada run" in done.err.splitlines()[-1]


def test_database_that_is_damaged_in_mid_study_is_named(tmp_path: Path) -> None:
    path = tmp_path / "optuna.db"
    study = optuna.create_study(storage=f"sqlite:///{path}")
    study.ask()
    with path.open("r+b") as file:
        file.seek(4096)  # all but the first page
        file.write(b"garbage" * 20_000)
    with pytest.raises(optuna.exceptions.StorageInternalError) as raised:
        study.ask()
    assert str(as_stop(raised.value)).startswith("optuna.db is damaged: (sqlite3.DatabaseError) ")


def test_optuna_on_a_full_disk_stops_the_study_and_names_it(disk: Path) -> None:
    storage = optuna.storages.RDBStorage(f"sqlite:///{disk / 'optuna.db'}")
    study = optuna.create_study(storage=storage)
    fill(disk, leave=0)
    with pytest.raises(optuna.exceptions.StorageInternalError) as raised:
        list(iter(study.ask, None))  # until there is no room
    stop = as_stop(raised.value)
    assert isinstance(stop, StudyStopped)
    assert str(stop).startswith(
        "optuna.db can't be written: (sqlite3.OperationalError) database or disk is full"
    )
    storage.remove_session()
    storage.engine.dispose()


def test_database_that_another_holds_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "optuna.db"
    storage = optuna.storages.RDBStorage(
        f"sqlite:///{path}", engine_kwargs={"connect_args": {"timeout": 60}}
    )
    study = optuna.create_study(storage=storage)
    other = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    threading.Timer(2, other.close).start()
    began = time.monotonic()
    study.ask()
    assert time.monotonic() - began > 1
    assert [t.number for t in study.trials] == [0]
    storage.remove_session()
    storage.engine.dispose()
