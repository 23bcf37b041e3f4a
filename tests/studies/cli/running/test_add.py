"""``hylorada add``: what it asks for, and what it refuses."""

import json
from pathlib import Path

import pytest
from made_studies import make

from studies import add_trial
from studies.cli.commands import main
from studies.trials.by_hand.requests import additions, read_addition


def test_add_names_the_trial_and_what_trains_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = make(tmp_path / "studies" / "made", "search")
    command = ["add", "made", f"--storage={tmp_path}"]
    assert main([*command, "--arm=fixed", "--set", "learning_rate=3e-4", "--set", "r=4"]) == 0
    assert capsys.readouterr().out == "added fixed-added-0001; the running study trains it next\n"
    store.close()
    assert main([*command, "--clone=fixed-0003", "--set=num_buckets=4"]) == 0
    told = f"added fixed-added-0002; train it with: hylorada run made --storage {tmp_path}\n"
    assert capsys.readouterr().out == told
    assert main([*command, "--arm=baseline", "--set", "target_modules=[q_proj]", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "trial": "baseline-added-0001",
        "running": False,
    }
    first = read_addition(store.folder, "fixed-added-0001").params
    assert (first["learning_rate"], first["r"]) == (3e-4, 4)
    clone = read_addition(store.folder, "fixed-added-0002")
    expected = {**store.records["fixed-0003"].params, "num_buckets": 4}
    assert (clone.arm, clone.clone, clone.params) == ("fixed", "fixed-0003", expected)


def test_add_refuses_all_that_does_not_fit_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = make(tmp_path / "studies" / "made", "search")
    store.close()
    command = ["add", "made", f"--storage={tmp_path}"]
    for options, problem in (
        (["--arm=fixed", "--set=r"], "--set r: write field=value"),
        (["--arm=fixed", "--set=r=[1"], "--set r: '[1' is not a YAML value"),
        (["--arm=fixed", "--set=rr=1"], "set: unknown field 'rr'; "),
        (["--arm=fixed"], "set at least one field"),
        (["--set=r=4"], "name either the arm of the new trial (--arm) or a trial"),
        (["--clone=fixed-00", "--set=r=4"], "study 'made' has no search trial 'fixed-00'; did"),
        (
            ["--arm=fixed", "--set=target_modules=[k_prj]"],
            "set.target_modules: target 'k_prj' matches 0 modules; closest: k_proj",
        ),
    ):
        assert main([*command, *options]) == 2
        assert capsys.readouterr().err.startswith(f"hylorada: {problem}")
    assert not (store.folder / "requests").exists()


def test_add_from_python_is_the_same_request(tmp_path: Path) -> None:
    store = make(tmp_path / "studies" / "made", "search")
    name = add_trial("made", {"r": 4}, clone="fixed-0003", storage=tmp_path)
    store.close()
    assert additions(store.folder) == [name] == ["fixed-added-0001"]
