"""A real study whose check of the arms takes very long, and what ends it nevertheless."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from designs import MY_DESIGN
from study_runs import Command, run_cli, wait_until

from studies.trials.by_hand.requests import request_stop

pytestmark = [pytest.mark.timeout(600), pytest.mark.faults]

_SLOW = """

class Slow(Gated):
    def context(self, hidden, positions, tokens):
        import time

        time.sleep(3600)
"""
_STUDY: dict[str, Any] = {
    "definition": "own",
    "name": "slow",
    "block_size": 32,
    "searches": 1,
    "trials": 1,
    "seeds": 1,
    "eval_every": 2,
    "grace_steps": 0,
    "eval_blocks": 4,
    "test_blocks": 8,
    "defaults": {"max_steps": 4, "num_landmarks": 2, "position_bias": False},
    "arms": {
        "global": {"config": {"landmark_design": "global"}},
        "slow": {"config": {"landmark_design": "slow_design.py:Slow"}},
    },
    "comparisons": [["slow", "global"]],
}


def test_stop_and_time_limit_end_a_study_that_still_checks_its_arms(
    toy_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = MY_DESIGN.read_text(encoding="utf-8")
    Path("slow_design.py").write_text(source + _SLOW, encoding="utf-8")
    Path("slow.yaml").write_text(yaml.safe_dump(_STUDY))
    command = ["run", "--config=slow.yaml", f"--model={toy_model}", f"--storage={tmp_path}"]
    stopped, folder = Command(*command), tmp_path / "studies" / "slow"
    wait_until(lambda: (folder / "open").exists() or stopped.poll() is not None)
    request_stop(folder)
    _, err = stopped.communicate(timeout=120)
    assert stopped.returncode == 130, err
    assert "`hylorada stop` has asked this study to stop" in err
    late = run_cli(*command, "--time-limit=20s")
    assert late.code == 3, late.err
    assert "slow: checking 2 arms on the base before training" in late.err
    assert "the time limit has come before any two arms could be compared" in late.err
    wait_until(lambda: not stopped.pids(), 60)
    assert not any((folder / "trials").glob("*"))
