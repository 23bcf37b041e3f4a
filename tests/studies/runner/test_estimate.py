"""`hylorada estimate`: it counts what a run trains, trains nothing itself and refuses bad input."""

import json
from pathlib import Path

import pytest
from study_runs import SMALL, run_cli

from hylorada import InputError
from studies import Options, estimate, get_study

pytestmark = pytest.mark.timeout(240)


def test_estimate_counts_the_trials_of_a_run_and_writes_no_study(
    toy_model: str, tmp_path: Path
) -> None:
    options = (*SMALL, f"--model={toy_model}", f"--storage={tmp_path}", "--pack-size=3")
    done = run_cli("estimate", "learnable_bucketing", *options, "--json")
    assert done.code == 0, done.err
    assert "measuring" not in done.err
    values = json.loads(done.out)
    # 3 arms: 4 trials of 8 steps, of which half stop at each rung; then 2 seeds each
    assert [(s["stage"], s["trials"]) for s in values["stages"]] == [("search", 12), ("confirm", 6)]
    search, confirm = values["stages"]
    assert 12 * 2 < search["steps"] < 12 * 8
    assert (confirm["steps"], confirm["trained"]) == (6 * 8, 6 * 8 * 2)
    assert confirm["evaluated"] == 6 * (4 * 8 + 40)
    assert values["trials"] == 18
    assert values["pack_size"] == 3
    assert 0 < values["memory_bytes"] < values["memory_limit_bytes"]
    assert 0 < values["seconds"] < 600
    assert values["disk_bytes"] > 6 * 12 * values["measured"]["parameters"]
    assert {p.name for p in tmp_path.iterdir()} <= {"cache"}


def test_lines_of_an_estimate_from_python(toy_model: str, tmp_path: Path) -> None:
    study = get_study(
        "learnable_bucketing", model=toy_model, block_size=32, searches=3, defaults={"max_steps": 8}
    )
    result = estimate(study, options=Options(storage=tmp_path))
    first, *_, last = str(result).splitlines()
    assert first.startswith("learnable_bucketing: about ")
    assert "CPU core" in first
    assert result.spreads is not None
    assert last.startswith(f"  smallest visible effect (80 % power): {result.spreads:.1f} standard")


def test_a_cluster_can_not_be_measured_from_here(tmp_path: Path) -> None:
    study = get_study("learnable_bucketing")
    with pytest.raises(InputError, match="address 'auto': only this machine can be measured"):
        estimate(study, options=Options(storage=tmp_path, address="auto"))
