"""Reports of trials that raise, and the extension of a finished study after its folder moved."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from faults import outcome
from study_runs import SMALL, Done, read_trials, run_cli

from studies.trials.records import OPEN

pytestmark = pytest.mark.timeout(600)


def _break(folder: Path, *trials: str) -> None:
    """Make the first checkpoint of these trials fail with a folder in the place of its file."""
    for name in trials:
        (folder / "trials" / name / "checkpoint.safetensors.tmp").mkdir(parents=True)


def _run(command: str, model: str, storage: Path, *options: str) -> Done:
    return run_cli(
        command, "learnable_bucketing", f"--model={model}", f"--storage={storage}", *SMALL, *options
    )


def _error_lines(done: Done) -> list[str]:
    lines = [line for line in done.err.splitlines() if line.startswith("hylorada: ")]
    return [line for line in lines if not line.startswith("hylorada: text ")]


@pytest.mark.faults
def test_study_in_which_everything_fails_says_why_in_one_screen(
    toy_model: str, tmp_path: Path
) -> None:
    folder = tmp_path / "studies" / "learnable_bucketing"
    names = [f"{arm}-000{i}" for arm in ("baseline", "fixed", "learnable") for i in (0, 1)]
    _break(folder, *names)
    done = _run("run", toy_model, tmp_path, "--trials=2")
    assert done.code == 3
    assert len((done.out + done.err).splitlines()) < 55
    assert done.err.count("Traceback") + done.err.count("ray::Host") == 1  # the first, in full
    match = re.search(
        r"(\S+) failed: IsADirectoryError: \[Errno 21\] Is a directory: '(.+)/checkpoint", done.err
    )
    assert match is not None  # any trial of the pack may be reported first
    assert match[1] in names
    log = folder / "trials" / match[1] / "error.txt"
    assert match[2] == str(log.parent)
    assert log.read_text().strip().splitlines()[-1].startswith("IsADirectoryError")
    counts, reason = _error_lines(done)
    assert counts == "hylorada: 6 failed"
    assert reason.startswith("hylorada: 6 failed: IsADirectoryError")
    assert reason.endswith(
        f"(first baseline-0000, log: {folder / 'trials' / 'baseline-0000' / 'error.txt'})"
    )
    assert "note: arm 'fixed' has no finished trial with a finite eval/ppl (2 failed)" in done.out


@pytest.mark.faults
def test_one_failure_and_then_more_trials_in_a_moved_folder(toy_model: str, tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "the new place"
    _break(before / "studies" / "learnable_bucketing", "fixed-0001")
    done = _run("run", toy_model, before, "--trials=2", "--seeds=2", "--set=grace_steps=0")
    assert done.code == 3
    assert _error_lines(done)[0] == "hylorada: 11 complete, 1 failed"
    trials = {t["name"]: t for t in read_trials(before / "studies" / "learnable_bucketing")}
    assert trials["fixed-0001"]["state"] == "failed"
    assert "fixed-0001" not in {t["winner"] for t in trials.values()}

    before.rename(after)
    (after / "studies" / "learnable_bucketing" / OPEN).touch()  # as a run that is killed leaves it
    report = run_cli("report", "learnable_bucketing", f"--storage={after}")
    assert (report.code, report.err.count("these are its earlier results")) == (0, 1)
    first = json.loads((after / "studies" / "learnable_bucketing" / "results.json").read_text())
    extended = run_cli(
        "extend", "learnable_bucketing", f"--storage={after}", "--trials=3", "--seeds=3"
    )
    assert extended.code == 3  # that trial has crashed
    assert not before.exists()
    actual = outcome(after, "learnable_bucketing")
    assert Counter(t["stage"] for t in actual.trials.values())["search"] == 9
    assert [arm["seeds"] for arm in actual.results["arms"]] == [[0, 1, 2]] * 3
    assert {name: actual.trials[name]["state"] for name in trials} == {
        n: t["state"] for n, t in trials.items()
    }
    assert actual.mlflow.keys() == actual.trials.keys() | {"learnable_bucketing"}
    assert actual.mlflow["fixed-0001"][0] == "FAILED"
    assert (after / "artifacts" / "learnable_bucketing").is_dir()
    stored = json.loads((after / "studies" / "learnable_bucketing" / "study.json").read_text())
    assert (stored["trials"], stored["seeds"]) == (3, 3)
    assert first["earlier"] == []
    now = json.loads((after / "studies" / "learnable_bucketing" / "results.json").read_text())
    assert now["earlier"] == [first["verdict"]]
    assert "the test split gave 1 verdict before this one" in extended.out
    again = run_cli(
        "extend", "learnable_bucketing", f"--storage={after}", "--trials=3", "--seeds=3"
    )
    assert again.out == extended.out  # nothing to do, and nothing new is read


def test_extend_asks_by_what(tmp_path: Path) -> None:
    (tmp_path / "studies" / "a").mkdir(parents=True)
    (tmp_path / "studies" / "a" / "study.json").write_text(
        json.dumps({"definition": "a", "trials": 4, "seeds": 2})
    )
    done = run_cli("extend", "a", f"--storage={tmp_path}")
    assert (done.code, done.out) == (2, "")
    assert (
        done.err == "hylorada: extend 'a' by what? give --trials (now 4), --searches (now 1) "
        "or --seeds (now 2)\n"
    )
