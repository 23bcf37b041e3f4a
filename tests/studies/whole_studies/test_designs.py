"""A study over every design, defined in a file: probed, trained in one pack, compared."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from study_runs import read_trials, run_cli

from studies.spec.study import Study

pytestmark = pytest.mark.timeout(600)

ARMS: dict[str, dict[str, Any]] = {
    "lora": {"landmarks": False},
    "dora": {"landmarks": False, "use_dora": True},
    "position": {"landmark_bucketing": "learnable"},
    "soft": {"landmark_bucketing": "soft", "boundary_init": "random"},
    "one": {"num_buckets": 1},
    "global": {"landmark_design": "global"},
    "layers": {"landmark_design": "per_layer", "share_landmarks": True},
    "heads": {"landmark_design": "attention"},
    "groups": {"landmarks": False, "shifted_sparse_attention": True},
}
STUDY: dict[str, Any] = {
    "definition": "designs",
    "block_size": 32,
    "trials": 1,
    "seeds": 1,
    "eval_every": 2,
    "grace_steps": 0,
    "eval_blocks": 4,
    "test_blocks": 8,
    "defaults": {"max_steps": 4, "num_landmarks": 2, "num_buckets": 4, "position_bias": False},
    "arms": {name: {"config": config} for name, config in ARMS.items()},
    "comparisons": [["position", "lora"], ["layers", "global"]],
}


def test_study_of_every_design(toy_model: str, tmp_path: Path) -> None:
    (tmp_path / "designs.yaml").write_text(yaml.safe_dump(STUDY))
    arguments = (
        f"--config={tmp_path / 'designs.yaml'}",
        f"--model={toy_model}",
        f"--storage={tmp_path / 'runs'}",
    )
    done = run_cli("run", "--name=designs", *arguments)
    assert done.code == 0, done.err
    folder = tmp_path / "runs" / "studies" / "designs"
    results = json.loads((folder / "results.json").read_text())
    lora = 2 * 4 * 2 * 8 * 32  # layers, projections, factors, rank, hidden size of the toy
    added = {
        "lora": 0,
        "dora": 2 * 4 * 32,
        "position": 2 * 32 * 2 + 4 * 2 + 1 + 3,
        "soft": 2 * 32 * 2 + 4 * 2 + 1,
        "one": 2 * 32 * 2 + 2 + 1,
        "global": 2 * 32 * 2 + 1,
        "layers": 2 * 32 + 2 * (2 * 32 + 1),
        "heads": 2 * (2 * 2 * 2 * 16 + 1),
        "groups": 0,
    }
    assert {a["arm"]: a["parameters"] - lora for a in results["arms"]} == added
    assert {t["state"] for t in read_trials(folder)} == {"complete"}
    assert "Boundaries of position" in (folder / "report.html").read_text()
    assert "Boundaries of soft" not in (folder / "report.html").read_text()


def test_file_of_another_definition_is_refused(tmp_path: Path) -> None:
    (tmp_path / "designs.yaml").write_text(yaml.safe_dump(STUDY))
    done = run_cli(
        "run",
        "learnable_bucketing",
        f"--config={tmp_path / 'designs.yaml'}",
        f"--storage={tmp_path}",
    )
    assert done.code == 2
    assert "is of definition 'designs', the requested study is of 'learnable_bucketing'" in done.err


def test_design_that_does_not_fit_the_bucketing_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    done = run_cli(
        "run",
        "learnable_bucketing",
        "--set=defaults.landmark_design=attention",
        f"--storage={tmp_path / 'runs'}",
    )
    assert done.code == 2
    assert (
        "landmark_bucketing 'learnable' needs landmark_design 'position_adaptive', got 'attention'"
        in done.err
    )
    assert "Traceback" not in done.err
    assert not (tmp_path / "runs").exists()


def test_automatic_bucketing_is_decided_once_for_a_study(tmp_path: Path) -> None:
    arms = {
        "held": {"config": {}, "space": {}},
        "free": {"config": {"landmark_bucketing": "learnable"}, "space": {}},
    }
    (tmp_path / "study.json").write_text(json.dumps({"defaults": {}, "arms": arms}))

    def decide(high: float) -> Study:
        comparison = {"arm": "free", "reference": "held", "high": high, "p_holm": 0.01}
        (tmp_path / "results.json").write_text(json.dumps({"comparisons": [comparison]}))
        values = {
            **STUDY,
            "name": "x",
            "defaults": {**STUDY["defaults"], "bucketing_study": str(tmp_path)},
        }
        return Study.from_dict(
            values | {"arms": {**STUDY["arms"], "auto": {"config": {"landmark_bucketing": "auto"}}}}
        )

    first, second = decide(-0.1), decide(0.1)
    assert first.arms["auto"].config["landmark_bucketing"] == "learnable"
    assert second.arms["auto"].config["landmark_bucketing"] == "fixed"
    assert first.fingerprint() != second.fingerprint()
    assert Study.from_dict(first.to_dict()).to_dict() == first.to_dict()
