"""The looks of ``hylorada resolve`` and when it stops; for its resuming see test_faults.py."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from study_runs import SMALL, run_cli

from hylorada import InputError
from studies import learnable_bucketing
from studies.process.options import Options
from studies.runner.resolve import Budget, _no_look_left, resolve, with_looks
from studies.runner.run import run_study
from studies.spec.study import Study


def _study(**changes: Any) -> Study:
    return Study.from_dict({**learnable_bucketing.STUDY, **changes})


@pytest.mark.parametrize(
    ("searches", "declared", "looks"),
    [
        (3, [], (3, 6, 12)),
        (1, [], (2, 4, 8)),
        (3, [3, 5], (3, 5)),  # the user's own
        (5, [3, 5], (3, 5)),  # its last look is still to be taken
        (6, [3, 5], (6, 12, 24)),
        (60, [], (60,)),
    ],
)
def test_looks_double_unless_some_are_declared(
    searches: int, declared: list[int], looks: tuple[int, ...]
) -> None:
    assert with_looks(_study(searches=searches, looks=declared)).looks == looks


@pytest.mark.parametrize(
    ("margin", "seconds", "problem"),
    [
        (0.0, None, "margin must be a number of percent above 0, got 0"),
        (math.inf, None, "margin must be a number of percent above 0, got inf"),
        (math.nan, None, "margin must be a number of percent above 0, got nan"),
        (0.1, 0.0, "time-limit must be above 0 s, got 0"),
    ],
)
def test_budget_is_checked_first(
    margin: float, seconds: float | None, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=problem):
        resolve(_study(), Options(storage=tmp_path), Console(), Budget(margin, seconds), run_study)
    assert not list(tmp_path.iterdir())


@pytest.mark.faults
@pytest.mark.timeout(300)
def test_decided_study_costs_nothing_and_an_open_one_heeds_its_time(
    toy_model: str, tmp_path: Path
) -> None:
    options = (*SMALL, f"--model={toy_model}", "--searches=2", "--trials=1", "--seeds=1")
    assert run_cli("run", "learnable_bucketing", f"--storage={tmp_path}", *options).code == 0
    trials = sorted(tmp_path.glob("studies/*/trials/*"))
    wide = run_cli(
        "resolve", "learnable_bucketing", f"--storage={tmp_path}", "--margin=100", "--json"
    )
    assert wide.code == 0, wide.err
    assert "resolve: 2 searches" in wide.err
    assert "3 of 3 comparisons are decided" in wide.err
    assert "undecided" not in {c["outcome"] for c in json.loads(wide.out)["comparisons"]}
    late = run_cli(
        "resolve",
        "learnable_bucketing",
        f"--storage={tmp_path}",
        "--margin=1e-9",
        "--time-limit=1s",
    )
    assert late.code == 0, late.err
    assert "resolve: 4 searches would take about" in late.err
    assert "past the time limit" in late.err
    assert sorted(tmp_path.glob("studies/*/trials/*")) == trials


@pytest.mark.parametrize(
    ("searches", "end"), [(20, "extend toy --searches 40"), (100, "at most 100 searches")]
)
def test_last_look_without_a_decision_names_the_next_command(searches: int, end: str) -> None:
    said = _no_look_left(Path("mlruns/studies/toy"), _study(searches=searches), ["a vs b"])
    assert said.startswith("undecided: a vs b; all looks are taken")
    assert said.endswith(end)
