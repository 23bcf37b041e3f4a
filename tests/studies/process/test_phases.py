"""Phases of a run are noted only where a file for them is named."""

import json
import os
from pathlib import Path

import psutil
import pytest

from studies.process.phases import PHASES, phase


def test_phase_is_noted_with_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PHASES, str(tmp_path / "phases"))

    @phase("outer")
    def run() -> int:
        with phase("inner"):
            return 3

    assert run() == 3
    inner, outer = map(json.loads, (tmp_path / "phases").read_text().splitlines())
    assert (inner["name"], outer["name"]) == ("inner", "outer")
    assert outer["began"] <= inner["began"] <= inner["ended"] <= outer["ended"]
    assert inner["process"] == os.getpid()
    assert inner["born"] == psutil.Process().create_time()


def test_phase_that_fails_is_noted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PHASES, str(tmp_path / "phases"))
    with pytest.raises(ValueError, match="no"), phase("failing"):
        raise ValueError("no")
    assert json.loads((tmp_path / "phases").read_text())["name"] == "failing"


def test_without_a_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PHASES, raising=False)
    monkeypatch.chdir(tmp_path)
    with phase("unnoted"):
        pass
    assert not list(tmp_path.iterdir())
