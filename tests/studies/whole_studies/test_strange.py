"""Unusual but valid input, which runs to the verdict."""

import json
import re
from pathlib import Path

import optuna
import pytest
from study_runs import read_trials, run_cli

from studies.analysis.results import read_results

pytestmark = [pytest.mark.timeout(600), pytest.mark.faults]


def _write_texts(folder: Path) -> None:
    """Write splits with blank lines, one-token documents, emoji, and control characters."""
    folder.mkdir()
    words = ["a", "😀", "", "\n", "the", "e\u0301", "学", "\u0007", "x" * 300, "👩‍👩‍👧"]
    (folder / "train.jsonl").write_text("\n\n".join(json.dumps({"text": w}) for w in words * 60))
    (folder / "validation.txt").write_bytes("\ufeffone\r\n\r\n\r\n two 😀\r\n".encode() * 120)
    (folder / "Test.txt").write_text("\n\n\nLine.\n\n \n" * 200)


def test_strange_names_texts_and_numbers_run_to_the_verdict(
    toy_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage is the only writable folder; one seat, one trial, one seed, the largest seed."""
    monkeypatch.setenv("HOME", "/proc/nowhere")  # root can't write there either
    for name in ("HF_HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    storage, data = tmp_path / "mes études #1 100%", tmp_path / "mes textes é"
    _write_texts(data)
    arguments = [
        *(
            "run",
            "learnable_bucketing",
            "--name=Été n.º 学 e\u0301",
            f"--model={toy_model}",
            f"--data={data}",
        ),
        *(
            f"--storage={storage}",
            "--block-size=16",
            "--trials=1",
            "--seeds=1",
            "--seats=1",
            f"--seed={2**63 - 1}",
        ),
        *(
            "--set=defaults.max_steps=4",
            "--set=eval_every=2",
            "--set=grace_steps=2",
            "--set=defaults.num_buckets=2",
        ),
        *(
            "--set=arms.learnable.space.num_buckets=2",
            "--set=arms.fixed.space.num_buckets.choice=[2]",
        ),
        "--set=arms.fixed.space.num_landmarks=0",
        "--set=arms.baseline.space.target_modules.choice=[[q_proj], [q_proj, v_proj]]",
    ]
    done = run_cli(*arguments)
    assert done.code == 0, done.err
    assert not [
        line for line in done.err.splitlines() if re.search("Traceback|Warning|warning:", line)
    ], done.err
    folder = storage / "studies" / "Été n.º 学 e\u0301"
    trials = {t["name"]: t for t in read_trials(folder)}
    assert {t["state"] for t in trials.values()} == {"complete"}
    assert trials["fixed-0000"]["adapter"]["num_landmarks"] == 0
    assert trials["learnable-0000"]["adapter"]["num_buckets"] == 2
    targets = trials["baseline-0000"]["params"]["target_modules"]
    assert targets in (["q_proj"], ["q_proj", "v_proj"])
    assert trials["baseline-0000-at-0000-confirm-00"]["adapter"]["target_modules"] == targets
    stored = optuna.load_study(
        study_name="Été n.º 学 e\u0301 / baseline / search 0",
        storage=f"sqlite:///{folder / 'optuna.db'}",
    ).trials[0]
    assert json.loads(stored.params["target_modules"]) == targets
    assert len(read_results(folder / "results.json").arms) == 3
    assert (folder / "report.html").exists()
