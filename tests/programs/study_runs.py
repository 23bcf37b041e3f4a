"""Running the real command line from tests, and reading what it has written."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

_MARK = "HYLORADA_TEST_STUDY"  # in the environment of every process of a command
SMALL = (
    "--block-size=32",
    "--trials=4",
    "--searches=1",
    "--seeds=2",
    "--set=finalists=1",
    "--set=profile=[1.0]",
    "--set=common.space.learning_rate.high=0.02",  # so wide a range that ASHA stops some trials
    "--set=defaults.max_steps=8",
    "--set=eval_every=2",
    "--set=grace_steps=2",
    "--set=eval_blocks=8",
    "--set=test_blocks=40",
    "--set=arms.fixed.space.num_buckets.choice=[4, 8]",
    "--set=arms.learnable.space.num_buckets.choice=[4, 8]",
    "--set=defaults.num_buckets=8",
)


@dataclass(frozen=True)
class Done:
    """A finished command."""

    code: int
    out: str
    err: str
    seconds: float


class Command(subprocess.Popen[str]):
    """A command started as by a user, in its own process group; its processes carry a mark."""

    def __init__(self, *arguments: str, terminal: int | None = None) -> None:
        self._mark = uuid.uuid4().hex
        streams = subprocess.PIPE if terminal is None else terminal
        super().__init__(
            [sys.executable, "-m", "studies.cli.main", *arguments],
            stdin=terminal,
            stdout=streams,
            stderr=streams,
            text=True,
            start_new_session=True,
            preexec_fn=partial(_enter, terminal),
            env={**os.environ, _MARK: self._mark},
        )

    def pids(self, title: str | tuple[str, ...] = "") -> list[int]:
        """Return the ids of its processes in any group, itself included, whose title begins so."""
        return marked(self._mark, title)


def _enter(terminal: int | None) -> None:
    """Reset signals as a shell does, because some may be ignored where these tests run."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if terminal is not None:
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


def mark_children() -> str:
    """Mark all processes that this one starts from now on, and return the mark for `marked`."""
    os.environ[_MARK] = uuid.uuid4().hex
    return os.environ[_MARK]


def marked(mark: str, title: str | tuple[str, ...]) -> list[int]:
    """Return the ids of processes with this mark whose title begins with one of these words."""
    pids = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                command = (folder / "cmdline").read_bytes().decode(errors="replace")
                if (
                    command.startswith(title)
                    and f"{_MARK}={mark}".encode() in (folder / "environ").read_bytes()
                ):
                    pids.append(int(folder.name))
    return pids


def run_cli(*arguments: str, timeout: float = 240) -> Done:
    """Run a command to its end; kill it with all its children at the time limit."""
    began = time.monotonic()
    process = Command(*arguments)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return Done(process.returncode, out, err, time.monotonic() - began)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[bool]:
    """Mount a small file system at a folder; return False if that isn't allowed."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True
    )
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "--lazy", folder], check=True)


def wait_until(condition: Callable[[], bool], timeout: float = 120) -> None:
    """Poll until a condition holds; fail after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "the awaited state did not come"
        time.sleep(0.05)


def read_trials(folder: Path) -> list[dict[str, Any]]:
    """Return the content of every ``trial.json`` of a study folder."""
    return [json.loads(p.read_text()) for p in sorted(folder.glob("trials/*/trial.json"))]


@dataclass(frozen=True)
class FinishedStudy:
    """A study that has run to its end."""

    storage: Path
    name: str
    done: Done

    @property
    def folder(self) -> Path:
        return self.storage / "studies" / self.name

    @property
    def uri(self) -> str:
        return f"sqlite:///{self.storage / 'mlflow.db'}"
