"""Budgets and named seeds on the command line: what they set, and what they refuse."""

import json
from pathlib import Path
from typing import Any

import pytest

from studies.cli.arguments import parse
from studies.cli.commands import main
from studies.cli.requested_study import checked_study
from studies.learnable_bucketing import STUDY
from studies.spec.budgets import with_steps
from studies.spec.study import Study
from studies.trials.store import Store


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["show", *arguments, "--json"]) == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    return shown


def _problems(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["show", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    return [line.removeprefix("hylorada: ") for line in lines]


def _stored(study: Study) -> None:
    Store(Path("mlruns") / "studies" / study.name, study).close()


def test_budget_shows_all_that_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    plain = _shown(capsys, "learnable_bucketing")
    quick = _shown(capsys, "learnable_bucketing", "--budget", "quick")
    changed = {name for name in plain if plain[name] != quick[name]}
    assert changed == {"train_blocks", "epochs", "eval_every", "grace_steps", "defaults"}
    assert (quick["train_blocks"], quick["epochs"]) == (500, 1)
    assert quick["eval_every"] is None
    assert quick["grace_steps"] is None
    del plain["defaults"]["max_steps"]
    assert quick["defaults"] == plain["defaults"]


def test_budget_gives_way_to_what_is_set(capsys: pytest.CaptureFixture[str]) -> None:
    sets = ("--set=epochs=2", "--set=eval_every=50", "--set=grace_steps=0")
    shown = _shown(capsys, "learnable_bucketing", "--budget=full", *sets)
    fields = ("train_blocks", "epochs", "eval_every", "grace_steps")
    assert [shown[name] for name in fields] == [1000, 2, 50, 0]
    Path("own.yaml").write_text("epochs: 4\neval_every: 10\n")
    shown = _shown(capsys, "learnable_bucketing", "--config=own.yaml", "--budget=quick")
    assert [shown[name] for name in fields] == [500, 1, 10, None]
    shown = _shown(capsys, "learnable_bucketing", "--config=own.yaml")
    assert [shown[name] for name in fields] == [None, 4, 10, None]


def test_next_budget_continues_from_a_study_that_has_been_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    args = parse(["run", "learnable_bucketing", "--budget=quick", "--name=wt2"])
    _stored(with_steps(checked_study(args), 500))
    again = checked_study(parse(["run", "wt2"]))
    assert (again.max_steps, again.eval_every, again.grace_steps) == (250, 32, 64)
    same = checked_study(args)
    assert with_steps(same, 500) == again
    full = _shown(capsys, "wt2", "--budget=full", "--name=wt2-full")
    assert (full["name"], full["epochs"], full["eval_every"]) == ("wt2-full", 3, None)
    assert "max_steps" not in full["defaults"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--budget=qiuck"], "--budget 'qiuck' is unknown; did you mean 'quick'?"),
        (["--set=epochs=0"], "epochs must be at least 1, got 0"),
        (
            ["--budget=quick", "--set=common.space.batch_size.choice=[1, 2]"],
            "common.space: with epochs, trials of another batch_size would take other numbers of "
            "steps; set defaults.batch_size alone, or give defaults.max_steps instead of epochs",
        ),
        (
            ["--seed-list=42,42"],
            "seed_list must hold at most 10000 distinct whole numbers from 0 to 4294967295, "
            "got [42, 42]",
        ),
        (
            ["--seed-list=42,123", "--seeds=3"],
            "seeds is 3, but seed_list names 2 (42, 123); leave seeds out, or name as many",
        ),
        (
            ["--seed-list=42,123", "--seeds=1"],  # as the definition has it, but on purpose
            "seeds is 1, but seed_list names 2 (42, 123); leave seeds out, or name as many",
        ),
        (
            ["--seed-list=42,123", "--set=seeds=1"],
            "seeds is 1, but seed_list names 2 (42, 123); leave seeds out, or name as many",
        ),
        (
            ["--set=seed_list=[42, 123]", "--set=seeds=1"],
            "seeds is 1, but seed_list names 2 (42, 123); leave seeds out, or name as many",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    assert _problems(capsys, "learnable_bucketing", *arguments) == [problem]


@pytest.mark.parametrize("text", ["", "42,", "a", "42;123", "1.5"])
def test_seed_list_is_whole_numbers(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(["run", "learnable_bucketing", f"--seed-list={text}"])
    said = capsys.readouterr().err
    assert f"--seed-list: must be whole numbers such as 42,123,456, got {text!r}" in said


def test_file_that_disagrees_with_itself_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.yaml").write_text("seeds: 1\nseed_list: [42, 123]\n")
    assert _problems(capsys, "learnable_bucketing", "--config=own.yaml") == [
        "seeds is 1, but seed_list names 2 (42, 123); leave seeds out, or name as many"
    ]


def test_option_names_other_seeds_than_a_whole_study_in_a_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["show", "learnable_bucketing"]) == 0
    Path("whole.yaml").write_text(capsys.readouterr().out)
    shown = _shown(capsys, "learnable_bucketing", "--config=whole.yaml", "--seed-list=42,123")
    assert (shown["seed_list"], shown["seeds"]) == ([42, 123], 2)


def test_named_seeds_are_as_many_as_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _shown(capsys, "learnable_bucketing", "--seed-list=42,123,456")
    assert (shown["seed_list"], shown["seeds"]) == ([42, 123, 456], 3)
    _stored(Study.from_dict({**shown, "name": "named"}))
    assert _shown(capsys, "named")["seeds"] == 3
    other = _shown(capsys, "named", "--seed-list=1,2", "--name=other")
    assert (other["seed_list"], other["seeds"]) == ([1, 2], 2)
    assert main(["extend", "named", "--seeds=5"]) == 2
    assert "names its seeds (42, 123, 456): extend it by --searches" in capsys.readouterr().err


def test_steps_that_are_asked_for_take_the_place_of_epochs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    open_ = {k: v for k, v in STUDY.items() if k not in ("eval_every", "grace_steps")}
    study = Study.from_dict({**open_, "name": "own", "epochs": 1})
    _stored(study)
    shown = _shown(capsys, "own", "--set=defaults.max_steps=64", "--name=other")
    assert (shown["epochs"], shown["defaults"]["max_steps"]) == (None, 64)
