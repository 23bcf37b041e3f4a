"""A study of sixteen trials in a space of six points, half of which diverge."""

import json
from collections import Counter
from pathlib import Path

import optuna
import pytest
import yaml
from mlflow import MlflowClient
from study_runs import read_trials, run_cli

pytestmark = [pytest.mark.timeout(500), pytest.mark.faults]
_STUDY = {
    "definition": "small space",
    "name": "small",
    "block_size": 32,
    "trials": 16,
    "seeds": 2,
    "eval_every": 2,
    "grace_steps": 0,
    "eval_blocks": 8,
    "test_blocks": 16,
    "defaults": {"max_steps": 4, "warmup_ratio": 0.0},
    "arms": {
        "baseline": {"config": {"landmarks": False, "learning_rate": 1e-3}},
        "fixed": {
            "space": {
                "learning_rate": {"choice": [1e-3, 1e30]},
                "num_buckets": {"choice": [2, 4, 8]},
            },
        },
    },
    "comparisons": [["fixed", "baseline"]],
}


def test_search_ends_when_all_points_are_evaluated_and_diverged_ones_are_told(
    toy_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(_STUDY))
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    places = ["--storage=storage", "--tracking-uri=sqlite:///runs/track.db"]
    done = run_cli("run", "--config=study.yaml", f"--model={toy_model}", *places, timeout=480)
    assert done.code == 0, done.err
    assert "fixed: search space exhausted: 6 of 6 points evaluated" in done.err
    assert "baseline: search space exhausted: 1 of 1 points evaluated" in done.err

    folder = tmp_path / "storage" / "studies" / "small"
    trials = read_trials(folder)
    searched = [t for t in trials if t["stage"] == "search" and t["arm"] == "fixed"]
    points = {(t["params"]["learning_rate"], t["params"]["num_buckets"]) for t in searched}
    assert points == {(rate, buckets) for rate in (1e-3, 1e30) for buckets in (2, 4, 8)}
    assert len(searched) == 6
    wild = [t for t in searched if t["params"]["learning_rate"] == 1e30]
    assert {t["state"] for t in wild} == {"diverged"}
    assert {t["reason"] for t in wild} == {"non-finite training loss at step 2"}
    assert Counter(t["state"] for t in trials) == {"diverged": 3, "complete": 1 + 3 + 4}

    stored = optuna.load_study(
        study_name="small / fixed / search 0", storage=f"sqlite:///{folder / 'optuna.db'}"
    ).trials
    assert Counter(t.state.name for t in stored) == {"FAIL": 3, "COMPLETE": 3}
    results = json.loads((folder / "results.json").read_text())
    assert {a["arm"]: a["searched"] for a in results["arms"]}["fixed"] == {
        "diverged": 3,
        "complete": 3,
    }

    assert [p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("track.db")] == [
        "runs/track.db"
    ]
    assert not list(tmp_path.rglob("mlflow.db"))
    client = MlflowClient(f"sqlite:///{tmp_path / 'runs' / 'track.db'}")
    experiment = client.get_experiment_by_name("small")
    assert experiment is not None
    runs = {
        r.info.run_id: r.data.tags
        for r in client.search_runs([experiment.experiment_id], max_results=1000)
    }
    parents = {tags.get("mlflow.parentRunId") for tags in runs.values()} - {None}
    assert len(parents) == 1
    assert parents < runs.keys()
    assert sum("mlflow.parentRunId" in tags for tags in runs.values()) == len(trials)
