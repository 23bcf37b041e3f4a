"""A grid that is killed at random moments ends as an uninterrupted one does."""

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from faults import Outcome, outcome
from study_runs import SMALL, Command, run_cli

from studies.files.folder_files import stored_study
from studies.process.options import Options
from studies.runner.cell_reports import report_grid
from studies.spec.grid import cells
from studies.spec.study import Study

pytestmark = [pytest.mark.timeout(3000), pytest.mark.faults, pytest.mark.slow]

_KILLS = 5
_OPTIONS = (
    *(option for option in SMALL if not option.startswith("--block-size")),
    "--trials=2",
    "--seeds=1",
    "--seats=1",
)


def _command(model: str, storage: Path) -> list[str]:
    data = ", ".join(str(storage.parent / f"{name}.txt") for name in ("one", "two"))
    grid = ("--set=grid.block_size=[16, 32, 64]", f"--set=grid.data=[{data}]")
    place = (f"--model={model}", f"--storage={storage}", "--name=grid")
    return ["run", "context_length", *place, *_OPTIONS, *grid]


def _reports(storage: Path) -> int:
    files = storage.glob("studies/*/trials/*/reports.jsonl")
    return sum(path.read_bytes().count(b"\n") for path in files)


def _kill_soon(command: list[str], storage: Path, chance: random.Random) -> bool:
    """Start the grid and kill all its processes after some new reports; False if it ended first."""
    process, wanted = Command(*command), _reports(storage) + chance.randint(1, 12)
    while process.poll() is None and _reports(storage) < wanted:
        time.sleep(0.05)
    time.sleep(chance.uniform(0, 2))
    alive = process.poll() is None
    for pid in process.pids():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()
    return alive


def _outcomes(storage: Path) -> dict[str, Outcome]:
    grid = Study.from_dict(stored_study(storage / "studies" / "grid" / "study.json"))
    return {cell.study.name: outcome(storage, cell.study.name) for cell in cells(grid)}


def test_killed_grid_ends_as_unbroken(toy_model: str, tmp_path: Path) -> None:
    """Three block sizes on two texts; five times all processes die at a random moment."""
    for name, word in (("one", "red"), ("two", "blue")):
        text = " ".join(f"The {word} fox number {n} jumps over {n * n} dogs." for n in range(4000))
        (tmp_path / f"{name}.txt").write_text(text)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    done = run_cli(*_command(toy_model, whole), timeout=1500)
    assert done.code == 0, done.err
    chance, kills = random.Random(3), 0
    while kills < _KILLS and _kill_soon(_command(toy_model, broken), broken, chance):
        kills += 1
    assert kills == _KILLS
    done = run_cli(*_command(toy_model, broken), timeout=1500)
    assert done.code == 0, done.err
    expected, actual = _outcomes(whole), _outcomes(broken)
    assert len(expected) == 6
    assert actual == expected
    grid = Study.from_dict(stored_study(whole / "studies" / "grid" / "study.json"))
    reports = [report_grid(grid, Options(storage=place)) for place in (whole, broken)]
    assert reports[0] == reports[1]
