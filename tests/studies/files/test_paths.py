"""Paths of a storage folder: unusual names, and links that lead nowhere."""

import os
from pathlib import Path

import pytest

from hylorada import InputError
from studies.cli.commands import main
from studies.files.paths import database_path, path_problem, with_absolute_paths
from studies.process.options import Options, default_uri
from studies.runner.run import _check_storage


@pytest.mark.parametrize("name", ["a%41b", "a#b", "a?b", "100%", "a b", "é{x}&"])
def test_address_of_mlflow_leads_to_its_file(tmp_path: Path, name: str) -> None:
    assert database_path(default_uri(tmp_path / name)) == tmp_path / name / "mlflow.db"


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("nowhere", "place is a link to nowhere, which is missing"),
        ("place", "place is a link that leads back to"),
    ],
)
@pytest.mark.parametrize("below", ["", "runs"])
def test_link_that_leads_nowhere_is_named(
    tmp_path: Path, target: str, problem: str, below: str
) -> None:
    (tmp_path / "place").symlink_to(target)
    storage = tmp_path / "place" / below
    assert problem in str(path_problem(storage))
    with pytest.raises(InputError, match=problem):
        _check_storage(Options(storage=storage))
    assert os.listdir(tmp_path) == ["place"]


def test_paths_of_a_study_become_absolute_and_names_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()
    (tmp_path / "tiny").mkdir()
    (tmp_path / "notes.txt").touch()
    grid = {"block_size": [64], "data": ["pydocs", "notes.txt", 3], "model": ["tiny", "./base"]}
    values = {"name": "try", "model": "base", "data": "notes.txt", "grid": grid}
    spanned = {
        "block_size": [64],
        "data": ["pydocs", f"{tmp_path}/notes.txt", 3],
        "model": ["tiny", f"{tmp_path}/base"],
    }
    paths = {"model": f"{tmp_path}/base", "data": f"{tmp_path}/notes.txt"}
    assert with_absolute_paths(values) == {"name": "try", **paths, "grid": spanned}
    assert values["grid"] is grid
    assert with_absolute_paths({"model": "notes.txt", "data": 7}) == {
        "model": "notes.txt",
        "data": 7,
    }


@pytest.mark.parametrize("name", ["studies", "artifacts", "cache", "mlflow.db"])
def test_link_within_the_storage_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to("nowhere")
    with pytest.raises(
        InputError,
        match=f"{name} is a link to nowhere, which is missing; repair or remove the link",
    ):
        _check_storage(Options(storage=tmp_path))


@pytest.mark.parametrize("command", ["report", "status", "list", "ui"])
def test_commands_on_a_link_in_a_circle_end_in_a_line(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    name = ["made"] if command in ("report", "status") else []
    assert main([command, *name, f"--storage={tmp_path / 'loop'}"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
