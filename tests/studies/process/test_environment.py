"""The workspace of a study, its environment, and when Ray starts."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import ray
from filelock import FileLock, Timeout
from study_runs import small_disk

from hylorada import InputError
from studies import learnable_bucketing
from studies.cli import commands
from studies.cli.main import main
from studies.engine.limits import check_limits
from studies.process.environment import _LOCK, _NEW_LOCK, short_folder
from studies.process.options import Options
from studies.process.signals import interrupt, on_end, restore
from studies.runner.run import _is_evident
from studies.search.devices import Devices
from studies.spec.study import Study


def test_what_ray_wrote_after_its_end_is_removed_later() -> None:
    old, young = (Path(tempfile.mkdtemp(prefix="hylo-", dir="/tmp")) for _ in range(2))
    for folder in (old, young):
        (folder / "session_2026-01-01_00-00-00_000000_1").mkdir()
    os.utime(old, (time.time() - 1000,) * 2)
    live = short_folder()
    assert (old.exists(), young.exists()) == (False, True)
    other = short_folder()
    assert live.exists()
    for folder in (young, live, other):
        shutil.rmtree(folder)


def test_lock_of_a_folder_is_held_before_it_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that starts in that moment would remove the folder as a leftover."""
    locked: list[Path] = []
    flock = fcntl.flock

    def note(number: int, operation: int) -> None:
        locked.append(Path(os.readlink(f"/proc/self/fd/{number}")))
        flock(number, operation)

    monkeypatch.setattr(fcntl, "flock", note)
    folder = short_folder()
    names = [path.name for path in locked if path.parent == folder]
    assert (names[-1], _LOCK in names) == (_NEW_LOCK, False)
    with pytest.raises(Timeout, match=_LOCK):
        FileLock(folder / _LOCK, timeout=0).acquire()
    shutil.rmtree(folder)


def test_full_disk_for_temporary_files_is_named(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as small:
        if small:
            with pytest.raises(
                InputError, match=r"disk has 1\.0 MiB free, Ray needs 50 MiB there; make room"
            ):
                check_limits(tmp_path / "disk")


@pytest.mark.parametrize(
    "names", [[], ["mlflow.db", "studies"], ["session_1", "mine.txt"], ["lock", "data.txt"]]
)
def test_folder_of_the_users_is_left_alone_whatever_its_name(names: list[str]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="hylo-", dir="/tmp"))
    for name in names:
        (folder / name).touch()
    os.utime(folder, (time.time() - 1000,) * 2)
    shutil.rmtree(short_folder())
    assert sorted(p.name for p in folder.iterdir()) == sorted(names)
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("names", "evident"),
    [
        ({}, True),
        ({"model": "{here}", "data": "{here}/text.txt"}, True),
        ({"model": "{here}/nosuch"}, False),
        ({"model": "some/hub-id"}, False),
        ({"data": "{here}/nosuch.txt"}, False),
        ({"data": "some/hub-id"}, False),
    ],
)
def test_ray_starts_early_only_for_what_is_surely_there(
    names: dict[str, str], evident: bool, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("text")
    values = {k: v.format(here=tmp_path) for k, v in names.items()}
    assert _is_evident(Study.from_dict({**learnable_bucketing.STUDY, **values})) == evident


@pytest.mark.parametrize(("running", "code"), [(False, 5), (True, -signal.SIGTERM)])
def test_exit_code_stays_what_it_is_unless_ray_still_runs(running: bool, code: int) -> None:
    program = f"""
        import os, signal, sys, types
        import studies.cli.main

        studies.cli.main.main = lambda: 5
        sys.modules["ray"] = types.SimpleNamespace(is_initialized=lambda: {running})
        code = studies.cli.main.command()
        os.kill(os.getpid(), signal.SIGTERM)
        sys.exit(code)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (code, "")


def test_interrupted_command_says_no_more_than_that(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: object) -> int:
        signal.raise_signal(signal.SIGTERM)
        return 0

    monkeypatch.setattr(commands, "run", run)
    monkeypatch.setattr(sys, "argv", ["hylorada", "list"])
    before = on_end(interrupt)
    try:
        assert main() == 130
    finally:
        restore(before)
    assert capsys.readouterr() == ("", "interrupted\n")


def test_other_threads_handle_no_signals() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(on_end, interrupt).result() == {}


@pytest.mark.parametrize(("address", "ended"), [(None, [True]), ("10.0.0.1:6379", [])])
def test_only_a_private_ray_is_ended_whatever_comes(
    address: str | None, ended: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[bool] = []

    def stop() -> None:
        signal.raise_signal(signal.SIGTERM)
        done.append(True)

    monkeypatch.setattr(ray, "shutdown", stop)
    options: dict[str, Any] = {"storage": tmp_path, "address": address}
    devices = Devices(Study.from_dict(learnable_bucketing.STUDY), Options(**options), tmp_path)
    devices._joined = True
    before = on_end(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            devices.close()
    finally:
        restore(before)
    assert done == ended
