"""A running study in the user's hands, on one machine and on two nodes.

It is watched, reported, stopped and added to from another terminal, and its process is killed
between a request and what the request asks for. It then ends as an unbroken study does.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from cluster_nodes import Nodes
from faults import outcome
from study_runs import SMALL, Command, read_trials, run_cli, wait_until

from studies import add_trial, stop_study, stop_trial

pytestmark = [pytest.mark.timeout(1200), pytest.mark.faults]

# Nothing depends on the order of reports: proposals are drawn at random, without ASHA, and each
# pack has one trial.
_WIDE = (
    *SMALL,
    "--name=mine",
    "--trials=2",
    "--seeds=1",
    "--seats=1",
    "--set=grace_steps=0",
    "--set=defaults.max_steps=16",
)
_ADDED = ("fixed-added-0001", "learnable-added-0001")
_PATIENCE_S = 600.0


class Terminals:
    """A terminal that runs a study, and others that steer it; at the end, nothing runs.

    Args:
        storage: storage folder.
        model: base of the study.
        options: further options of ``hylorada run``.
    """

    def __init__(self, storage: Path, model: str, *options: str) -> None:
        self.storage, self.folder = storage, storage / "studies" / "mine"
        place = (f"--model={model}", f"--storage={storage}")
        self._command = ("run", "learnable_bucketing", *place, *_WIDE, *options)
        self._started: list[Command] = []

    def __enter__(self) -> "Terminals":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for process in self._started:
            kill(process)

    def start(self, *command: str) -> Command:
        """Start a command, by default the one that runs or resumes the study."""
        self._started.append(Command(*(command or self._command)))
        return self._started[-1]

    def run_to_the_end(self) -> None:
        _, err = (process := self.start()).communicate(timeout=_PATIENCE_S)
        assert process.returncode == 0, err

    def add_two(self) -> None:
        for changes, place in (
            ({"lora_dropout": 0.1}, {"clone": "fixed-0000"}),
            ({"learning_rate": 0.004, "r": 4}, {"arm": "learnable"}),
        ):
            add_trial("mine", changes, storage=self.storage, **place)

    def under_way(self) -> str | None:
        """Return a search trial that has reported, and has reports to come; None before any."""
        for trial in read_trials(self.folder):
            path = self.folder / "trials" / trial["name"] / "reports.jsonl"
            is_open = (trial["state"], trial["stage"]) == ("running", "search")
            if is_open and path.exists() and path.read_bytes().count(b"\n") < 6:
                return str(trial["name"])
        return None

    def state(self, name: str) -> str | None:
        """Return the state of a trial; None before it has a record."""
        path = self.folder / "trials" / name / "trial.json"
        return json.loads(path.read_text())["state"] if path.exists() else None


def kill(process: Command) -> None:
    """Kill a command with all its processes, also if it is frozen or has ended."""
    for pid in process.pids():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=60)


@pytest.fixture(scope="module")
def unbroken(toy_model: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the trials of a study on one machine to which two were added while it ran."""
    with Terminals(tmp_path_factory.mktemp("unbroken"), toy_model) as study:
        process = study.start()
        wait_until(lambda: study.state("fixed-0000") is not None, _PATIENCE_S)
        study.add_two()
        _, err = process.communicate(timeout=_PATIENCE_S)
        assert process.returncode == 0, err
        return outcome(study.storage, "mine").trials


def _steer(study: Terminals) -> str:
    """Run a study to its end under requests and a kill, and return the trial that was stopped."""
    process = study.start()
    wait_until(
        lambda: bool(study.under_way() and study.state("fixed-0000")) or process.poll() is not None,
        _PATIENCE_S,
    )
    os.kill(process.pid, signal.SIGSTOP)  # so that it does not read the requests
    victim = str(study.under_way())
    watching = study.start("watch", "mine", f"--storage={study.storage}")
    partial = json.loads(run_cli("report", "mine", f"--storage={study.storage}", "--json").out)
    assert (partial["partial"], partial["running"]) == (True, True)
    assert partial["stages"]["search"][1] == 6
    study.add_two()
    assert stop_trial("mine", victim, storage=study.storage)
    assert watching.stdout is not None
    assert watching.stdout.readline().startswith("mine: search: ")
    kill(process)
    out, err = watching.communicate(timeout=120)
    assert (watching.returncode, err) == (0, "")
    resume = f"hylorada run mine --storage {study.storage}"
    assert out.endswith(f"Not running. Resume with: {resume}\n")
    assert (study.state(victim), study.state(_ADDED[0])) == ("running", None)

    process = study.start()
    wait_until(lambda: study.state(victim) != "running" or process.poll() is not None, _PATIENCE_S)
    assert stop_study("mine", storage=study.storage, wait=120)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "`hylorada stop` has asked this study to stop" in err
    assert "Traceback" not in err
    study.run_to_the_end()
    return victim


def _check(study: Terminals, victim: str, unbroken: dict[str, Any]) -> None:
    trials = outcome(study.storage, "mine").trials
    stopped, whole = trials[victim], unbroken[victim]
    assert (stopped["state"], stopped["reason"]) == ("pruned", "stopped by the user")
    metrics = [r["metrics"] for r in stopped["reports"]]
    assert metrics == [r["metrics"] for r in whole["reports"][: len(metrics)]]
    assert len(metrics) < len(whole["reports"])
    same = [n for n, t in unbroken.items() if t["stage"] in ("search", "added") and n != victim]
    assert set(_ADDED) < set(same)
    assert {n: trials[n] for n in same} == {n: unbroken[n] for n in same}
    assert not list((study.folder / "requests").glob("*.json"))
    report = run_cli("report", "mine", f"--storage={study.storage}").out
    assert f"note: arm '{stopped['arm']}': a user stopped 1 of 2 search trials ({victim})" in report
    assert "note: arm 'fixed': a user added 1 trial" in report


def test_study_on_one_machine(toy_model: str, tmp_path: Path, unbroken: dict[str, Any]) -> None:
    with Terminals(tmp_path / "steered", toy_model) as study:
        _check(study, _steer(study), unbroken)


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Start a head without resources and two nodes, and return the cluster's address."""
    with Nodes(cpus=0) as nodes:
        for name, value in nodes.environment.items():
            monkeypatch.setenv(name, value)
        for name in ("one", "two"):
            nodes.add(name)
        yield nodes.address


def test_study_on_two_nodes(
    toy_model: str, tmp_path: Path, unbroken: dict[str, Any], address: str
) -> None:
    place = (f"--address={address}", "--wait=60")
    with Terminals(tmp_path / "steered", toy_model, *place) as study:
        _check(study, _steer(study), unbroken)
