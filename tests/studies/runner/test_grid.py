"""Grids: the order of cells, what is checked first, what resumes, and the commands that read."""

import io
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from finished_folder import WIDE, finish
from rich.console import Console

from hylorada import InputError
from studies.analysis.results import Results, read_results
from studies.cli.commands import main
from studies.files.folder_files import STUDY, stored_study, study_lock, write_json
from studies.process.options import Options
from studies.runner import grid
from studies.runner.grid import _refuse_changed, run_grid
from studies.runner.resolve import Budget
from studies.spec.budgets import with_steps
from studies.spec.study import Study
from studies.trials.records import OPEN

_RATE = {"space": {"learning_rate": {"low": 1e-3, "high": 1e-1, "log": True}}}
_VALUES: dict[str, Any] = {
    "definition": "own",
    "name": "wide",
    "eval_every": 20,
    "grace_steps": 20,
    "trials": 2,
    "seeds": 2,
    "defaults": {"max_steps": 60},
    "arms": {"fixed": _RATE, WIDE: _RATE},
    "comparisons": [[WIDE, "fixed"]],
}
_GRID = {"block_size": [32, 64]}


def _study(spanned: Any = _GRID, **changes: Any) -> Study:
    return Study.from_dict({**_VALUES, "grid": spanned, **changes})


class _Runner:
    """Writes the folder of each cell as if it had run, and keeps their studies."""

    def __init__(self) -> None:
        self.ran: list[Study] = []

    def __call__(self, study: Study, options: Options, console: Console) -> Results:
        self.ran.append(study)
        folder = options.study_folder(study.name)
        if not folder.exists():
            finish(options.storage, study, gap=0.01 * len(self.ran))
        return read_results(folder / "results.json")


@pytest.fixture
def run(tmp_path: Path) -> _Runner:
    """Return a runner that has run the cells of the grid."""
    runner = _Runner()
    run_grid(_study(), Options(storage=tmp_path), Console(quiet=True), runner)
    return runner


def _again(study: Study, storage: Path) -> _Runner:
    runner = _Runner()
    run_grid(study, Options(storage=storage), Console(quiet=True), runner)
    return runner


def test_cells_run_in_order_and_are_reported_together(tmp_path: Path) -> None:
    console, runner = Console(record=True, width=100, file=io.StringIO()), _Runner()
    result = run_grid(_study(), Options(storage=tmp_path), console, runner)
    assert console.export_text().splitlines() == [
        "cell 1 of 2: block_size 32 (study wide.32)",
        "cell 2 of 2: block_size 64 (study wide.64)",
    ]
    assert [(s.name, s.block_size) for s in runner.ran] == [("wide.32", 32), ("wide.64", 64)]
    changes = [round(c.change, 2) for c in result.comparisons[0].cells]
    assert changes == [1.01, 2.02]
    assert (tmp_path / "studies" / "wide" / "report.html").exists()
    assert Study.from_dict(stored_study(tmp_path / "studies" / "wide" / "study.json")) == _study()


def test_grid_may_gain_values_but_not_lose_any(run: _Runner, tmp_path: Path) -> None:
    more = _again(_study({"block_size": [32, 64, 128]}), tmp_path)
    assert [s.block_size for s in more.ran] == [32, 64, 128]
    with pytest.raises(InputError, match=r"grid.block_size has lost \[32\]; a grid can't shrink"):
        _again(_study({"block_size": [64, 128]}), tmp_path)
    with pytest.raises(InputError, match="grid spanned block_size, now block_size, data"):
        _again(_study({"block_size": [32, 64, 128], "data": ["pydocs"]}), tmp_path)
    assert len(run.ran) == 2


def test_cell_that_was_enlarged_keeps_its_counts(run: _Runner, tmp_path: Path) -> None:
    larger = {**run.ran[0].to_dict(), "trials": 5}
    write_json(tmp_path / "studies" / "wide.32" / "study.json", larger, STUDY)
    assert [s.trials for s in _again(_study(trials=3), tmp_path).ran] == [5, 3]


@pytest.mark.parametrize(
    ("study", "problem"),
    [
        (_study(defaults={"max_steps": 40}), "defaults.max_steps was 60, now 40"),
        (_study(trials=1), "trials was 2, now 1; a study can't shrink"),
        (_study(name="wide.32"), "study 'wide.32' exists and is not a grid"),
    ],
)
@pytest.mark.usefixtures("run")
def test_folder_of_another_study_is_refused(study: Study, problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=problem):
        _again(study, tmp_path)


def test_cell_of_other_settings_is_refused_before_any_cell_runs(tmp_path: Path) -> None:
    cell = _study({}, name="wide.64", block_size=64, defaults={"max_steps": 80})
    finish(tmp_path, cell)
    runner = _Runner()
    with pytest.raises(InputError, match=r"cell with block_size 64: study 'wide.64' exists with"):
        run_grid(_study(), Options(storage=tmp_path), Console(quiet=True), runner)
    assert runner.ran == []
    assert not (tmp_path / "studies" / "wide").exists()


def test_inputs_of_all_cells_are_checked_before_any_runs(tmp_path: Path) -> None:
    spanned = {"block_size": [64, 1024], "data": ["pydocs", "nosuch.txt"]}
    runner = _Runner()
    with pytest.raises(InputError) as caught:
        run_grid(_study(spanned), Options(storage=tmp_path), Console(quiet=True), runner)
    long = "block_size 1024 exceeds model limit 512 (tiny)"
    wide = [f"block_size 1024, data {d}" for d in ("pydocs", "nosuch.txt")]
    lost = [f"block_size {n}, data nosuch.txt" for n in (64, 1024)]
    assert caught.value.problems == [
        f"cell with {'; '.join(lost)}: data 'nosuch.txt': no such file or folder",
        f"cell with {'; '.join(wide)}: {long}",
    ]
    assert (runner.ran, list(tmp_path.iterdir())) == ([], [])


def test_grid_runs_in_one_process_at_a_time(run: _Runner, tmp_path: Path) -> None:
    with (
        study_lock(tmp_path / "studies" / "wide"),
        pytest.raises(InputError, match="'wide' is being run by another process"),
    ):
        _again(_study(), tmp_path)
    assert len(run.ran) == 2


@pytest.mark.usefixtures("run")
def test_grid_waits_for_a_command_that_holds_its_lock_for_a_moment(tmp_path: Path) -> None:
    """As ``status`` does while it ends the MLflow runs of a dead process."""
    lock = FileLock(tmp_path / "studies" / "wide" / "lock", thread_local=False)
    lock.acquire()
    threading.Timer(0.5, lock.release).start()
    assert len(_again(_study(), tmp_path).ran) == 2


def test_cells_to_resolve_share_the_time(
    run: _Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets: list[tuple[str, Budget]] = []

    def resolved(
        study: Study, options: Options, console: Console, budget: Budget, _: Any
    ) -> Results:
        budgets.append((study.name, budget))
        return run(study, options, console)

    monkeypatch.setattr(grid, "resolve", resolved)
    study = _study(searches=2)
    for cell in run.ran:  # as it was run with two searches
        larger = {**cell.to_dict(), "searches": 2}
        write_json(tmp_path / "studies" / cell.name / "study.json", larger, STUDY)
    grid.resolve_grid(study, Options(storage=tmp_path), Console(quiet=True), Budget(0.1, 1000))
    assert [name for name, _ in budgets] == ["wide.32", "wide.64"]
    assert {b.margin for _, b in budgets} == {0.1}
    first, second = (b.seconds for _, b in budgets)
    assert first == pytest.approx(500, abs=60)
    assert second == pytest.approx(1000, abs=120)  # the first has left almost all of its share
    stored = stored_study(tmp_path / "studies" / "wide" / "study.json")
    assert (stored["margin"], stored["looks"]) == (0.1, [2, 4, 8])


@pytest.mark.usefixtures("run")
def test_commands_know_a_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = f"--storage={tmp_path}"
    assert main(["report", "wide", "--json", where]) == 0
    assert [c["study"] for c in json.loads(capsys.readouterr().out)["cells"]] == [
        "wide.32",
        "wide.64",
    ]
    assert main(["status", "wide", where]) == 0
    assert "wide.32 (block_size 32): finished" in capsys.readouterr().out
    assert main(["list", "--json", where]) == 0
    assert json.loads(capsys.readouterr().out)["studies"] == ["wide", "wide.32", "wide.64"]
    for command in (["explain", "wide"], ["export", "wide", f"--output={tmp_path / 'x'}"]):
        assert main([*command, where]) == 2
        said = capsys.readouterr().err
        assert "study 'wide' is a grid; name one of its cells: wide.32, wide.64" in said


@pytest.mark.usefixtures("run")
def test_unfinished_cell_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "studies" / "wide.64" / "results.json").unlink()
    where = f"--storage={tmp_path}"
    for command in ("report", "status"):
        assert main([command, "wide", where]) == 0
        said = capsys.readouterr().out
        assert ("PARTIAL: grid 'wide' has finished 1 of 2 cells." in said) == (command == "report")
        assert "wide.64 (block_size 64): unfinished" in said
        assert f"Not running. Resume with: hylorada run wide --storage {tmp_path}" in said
    assert main(["report", "wide", "--json", where]) == 0
    partial = json.loads(capsys.readouterr().out)
    assert (partial["partial"], partial["running"]) == (True, False)
    assert [cell["state"] for cell in partial["cells"]] == ["finished", "unfinished"]


@pytest.mark.usefixtures("run")
def test_report_names_the_cells_that_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = f"--storage={tmp_path}"
    assert main(["report", "wide", where]) == 0
    assert capsys.readouterr().err == ""
    (tmp_path / "studies" / "wide.64" / OPEN).touch()
    assert main(["report", "wide", where]) == 0
    assert capsys.readouterr().err == (
        "hylorada: note: study 'wide.64' is running again, or was interrupted since; "
        "these are its earlier results\n"
    )


@pytest.mark.parametrize("option", ["--block-size=64", "--set=block_size=64"])
def test_option_that_the_grid_spans_is_refused(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "context_length", option, f"--storage={tmp_path}"]) == 2
    problem = "block_size 64: the study's grid spans block_size; write --set 'grid.block_size=[64]'"
    assert problem in capsys.readouterr().err


def test_cell_with_epochs_resumes_with_its_steps(tmp_path: Path) -> None:
    options = Options(storage=tmp_path)
    values = {**_VALUES, "eval_every": None, "grace_steps": None, "epochs": 1}
    values["defaults"] = {"batch_size": 2}
    cell = Study.from_dict(values)
    folder = options.study_folder(cell.name)
    folder.mkdir(parents=True)
    write_json(folder / "study.json", with_steps(cell, 64).to_dict(), STUDY)
    _refuse_changed(cell, options)
    with pytest.raises(InputError, match="exists with other settings: epochs was 1, now 2"):
        _refuse_changed(replace(cell, epochs=2), options)
