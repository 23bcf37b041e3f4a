"""``hylorada explain`` as a user runs it: to its end, again, and killed with kill -9."""

import json
import math
import os
import random
import re
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from faults import Broken, outcome
from mlflow import MlflowClient
from study_runs import SMALL, Command, Done, run_cli, wait_until

from studies.trials.explanations import EXPLAIN_FILE

pytestmark = [pytest.mark.timeout(900), pytest.mark.faults]

# With one trial at a time, results are equal to the last bit, whatever is killed.
OPTIONS = (*SMALL, "--trials=3", "--seats=1")


@pytest.fixture(scope="module")
def studies(toy_model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Broken, Broken]:
    """Run two equal studies to their ends."""
    pair = [
        Broken(tmp_path_factory.mktemp(n), toy_model, OPTIONS, random.Random(0), [])
        for n in ("whole", "killed")
    ]
    for study in pair:
        study.run_to_the_end()
    return (pair[0], pair[1])


def command(study: Broken, *options: str) -> list[str]:
    arm = () if any(o.startswith("--arm") for o in options) else ("--arm=fixed",)
    return [
        "explain",
        "broken",
        f"--storage={study.storage}",
        "--seats=1",
        "--seeds=2",
        *arm,
        *options,
    ]


def explain(study: Broken, *options: str) -> Done:
    return run_cli(*command(study, *options), timeout=600)


def explanations(study: Broken) -> Any:
    stored = json.loads((study.folder / EXPLAIN_FILE).read_text())["explanations"]
    assert all(e.pop("provenance")["study_fingerprint"] for e in stored)
    return stored


@dataclass(frozen=True)
class Explained:
    """The first study after `explain`, with its state from before."""

    study: Broken
    done: Done
    report: str
    test_files: dict[Path, int]


@pytest.fixture(scope="module")
def explained(studies: tuple[Broken, Broken]) -> Explained:
    study, _ = studies
    report, files = reported(study), times(study, "test_block_nll.npy")
    done = explain(study, "--json")
    assert done.code == 0, done.err
    return Explained(study, done, report, files)


def reported(study: Broken) -> str:
    return run_cli("report", "broken", f"--storage={study.storage}", "--json").out


def times(study: Broken, pattern: str) -> dict[Path, int]:
    return {p: p.stat().st_mtime_ns for p in study.folder.glob(f"trials/*/{pattern}")}


def test_explain_measures_and_stores(explained: Explained) -> None:
    study, done = explained.study, explained.done
    assert re.search(
        r"explain: fixed-\d{4} from the defaults \(\d steps?\) and \d+ neighbours? of it", done.err
    )
    (explanation,) = explanations(study)
    assert (
        explanation["arm"],
        explanation["seeds"],
        explanation["blocks"],
        explanation["unseen"],
    ) == (
        "fixed",
        2,
        40,
        True,
    )
    for effect in (explanation["whole"], *explanation["path"], *explanation["neighbours"]):
        assert effect["change"]["low"] <= effect["change"]["change"] <= effect["change"]["high"]
        assert len(effect["by_seed"]) == 2
    # The changes are paired on equal seeds, so they add up.
    steps = [math.log1p(e["change"]["change"] / 100) for e in explanation["path"]]
    assert sum(steps) == pytest.approx(
        math.log1p(explanation["whole"]["change"]["change"] / 100), abs=1e-6
    )
    # The study's own results stay, and the test split has not been read again.
    assert reported(study) == explained.report
    assert times(study, "test_block_nll.npy") == explained.test_files
    assert "Why the winner of fixed" in (study.folder / "report.html").read_text()


def test_explained_runs_are_children_in_mlflow(explained: Explained) -> None:
    study = explained.study
    client = MlflowClient(f"sqlite:///{study.storage / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("broken")
    assert experiment is not None
    runs = client.search_runs(
        [experiment.experiment_id], "tags.`hylorada.stage` = 'explain'", max_results=1000
    )
    assert len(runs) == len(list(study.folder.glob("trials/*-explain-*")))
    assert {r.info.status for r in runs} == {"FINISHED"}
    assert all("explain/nll" in r.data.metrics and "test/nll" not in r.data.metrics for r in runs)
    (parent,) = client.search_runs([experiment.experiment_id], "tags.`hylorada.study` != ''")
    assert parent.info.status == "FINISHED"
    assert EXPLAIN_FILE in {a.path for a in client.list_artifacts(parent.info.run_id)}


def test_explain_again_trains_nothing_and_says_the_same(explained: Explained) -> None:
    files = times(explained.study, "*")
    again = explain(explained.study)
    assert times(explained.study, "*") == files
    first = json.loads(explained.done.out)
    assert first["said"] == [line for line in again.out.splitlines() if line in first["said"]]
    assert first["said"][0].startswith("The winner fixed-")
    assert max(map(len, again.out.partition("\n\n")[0].splitlines())) <= 100


def test_an_explanation_killed_twice_goes_on_to_the_same_numbers(
    explained: Explained, studies: tuple[Broken, Broken]
) -> None:
    whole, killed = explained.study, studies[1]
    runs = len(list(whole.folder.glob("trials/*-explain-*")))
    for share in (0.2, 0.6):
        _kill(killed, share * runs)
    status = run_cli("status", "broken", f"--storage={killed.storage}")
    assert re.search(r"explain: \d+ of \d+ started runs ended", status.out)
    done = explain(killed)
    assert done.code == 0, done.err
    assert explanations(killed) == explanations(whole)
    assert outcome(killed.storage) == outcome(whole.storage)


def _kill(study: Broken, runs: float) -> None:
    """Kill the command and all its processes when this many runs have reported."""

    def have_reported() -> int:
        return len(list(study.folder.glob("trials/*-explain-*/reports.jsonl")))

    process = Command(*command(study))
    wait_until(lambda: have_reported() >= runs or process.poll() is not None, 300)
    for pid in process.pids():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL


def test_a_study_run_after_a_killed_explanation_leaves_nothing_open(
    toy_model: str, tmp_path: Path
) -> None:
    study = Broken(tmp_path, toy_model, (*OPTIONS, "--trials=2", "--seeds=1"), random.Random(0), [])
    study.run_to_the_end()
    _kill(study, 1)
    study.run_to_the_end()
    outcome(study.storage)  # checks that no trial and no run is open


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            ("--arm=lernable",),
            "study 'broken' has no arm 'lernable'; did you mean 'learnable'?",
        ),
        (("--arm=baseline",), "arm 'baseline' searches no parameter of its own"),
        (("--search=3",), "search must be 0 to 0, got 3"),
        (("--seeds=0",), "seeds must be 1 to 1000, got 0"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(
    studies: tuple[Broken, Broken], options: tuple[str, ...], problem: str
) -> None:
    study, _ = studies
    before = {p: p.stat().st_mtime_ns for p in study.folder.rglob("*")}
    done = explain(study, *options)
    assert (done.code, done.out) == (2, "")
    assert problem in done.err
    assert {p: p.stat().st_mtime_ns for p in study.folder.rglob("*")} == before
