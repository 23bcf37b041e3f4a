"""A running study in the user's hands, on one machine and on two nodes.

It is watched, reported, stopped and added to from another terminal, and its process is killed
between a request and what the request asks for. It then ends as an unbroken study does.
"""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster_nodes import Nodes
from faults import outcome
from study_runs import SMALL, Command, read_trials, run_cli, wait_until

pytestmark = [pytest.mark.timeout(900), pytest.mark.faults]

# Nothing depends on the order of reports: proposals are drawn at random, without ASHA, and each
# pack has one trial.
_WIDE = (
    *SMALL,
    "--name=mine",
    "--trials=3",
    "--seats=1",
    "--set=grace_steps=0",
    "--set=defaults.max_steps=24",
)
_ADDITIONS = (
    ("--clone=fixed-0000", "--set=lora_dropout=0.1"),
    ("--arm=learnable", "--set=learning_rate=0.004", "--set=r=4"),
)
_ADDED = ("fixed-added-0001", "learnable-added-0001")


@dataclass
class Terminals:
    """One terminal that runs a study, and others that steer it.

    Attributes:
        storage: storage folder.
        model: base of the study.
        options: further options of ``hylorada run``.
    """

    storage: Path
    model: str
    options: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return self.storage / "studies" / "mine"

    def start(self) -> Command:
        place = (f"--model={self.model}", f"--storage={self.storage}")
        return Command("run", "learnable_bucketing", *place, *_WIDE, *self.options)

    def other(self, command: str, *options: str, code: int = 0) -> str:
        """Run a command in another terminal, and return what it printed."""
        done = run_cli(command, "mine", *options, f"--storage={self.storage}")
        assert done.code == code, done.err
        return done.out

    def run_to_the_end(self) -> None:
        process = self.start()
        _, err = process.communicate(timeout=400)
        assert process.returncode == 0, err

    def add_all(self) -> None:
        for options in _ADDITIONS:
            self.other("add", *options)

    def under_way(self) -> str | None:
        """Return a search trial that has reported, and has reports to come."""
        for trial in read_trials(self.folder):
            path = self.folder / "trials" / trial["name"] / "reports.jsonl"
            is_open = (trial["state"], trial["stage"]) == ("running", "search")
            if is_open and path.exists() and path.read_bytes().count(b"\n") < 8:
                return str(trial["name"])
        return None

    def state(self, name: str) -> dict[str, Any]:
        path = self.folder / "trials" / name / "trial.json"
        state: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"state": None}
        return state


def _freeze(process: Command) -> None:
    """Stop the driver's process, so that it reads no request."""
    os.kill(process.pid, signal.SIGSTOP)


def _kill(process: Command) -> None:
    for pid in process.pids():
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=60)


@pytest.fixture(scope="module")
def unbroken(toy_model: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the trials of a study that ran alone, to which two were added afterwards."""
    study = Terminals(tmp_path_factory.mktemp("unbroken"), toy_model)
    study.run_to_the_end()
    study.add_all()
    study.run_to_the_end()
    return outcome(study.storage, "mine").trials


def _steer(study: Terminals) -> str:
    """Run a study to its end under requests and kills, and return the trial that was stopped."""
    process = study.start()
    wait_until(lambda: study.under_way() is not None or process.poll() is not None)
    _freeze(process)
    victim = study.under_way()
    assert victim is not None
    watching = Command("watch", "mine", f"--storage={study.storage}")
    partial = json.loads(study.other("report", "--json"))
    assert (partial["partial"], partial["running"]) == (True, True)
    assert partial["stages"]["search"][1] == 9
    study.add_all()
    _kill(process)
    out, err = watching.communicate(timeout=60)
    assert (watching.returncode, err) == (0, "")
    assert out.startswith("mine: search: ")
    assert out.endswith("Not running. Resume with: hylorada run mine\n")

    process = study.start()
    wait_until(lambda: study.state(_ADDED[0])["state"] is not None or process.poll() is not None)
    _freeze(process)
    assert study.other("stop", f"--trial={victim}") == f"{victim} stops at its next report\n"
    _kill(process)
    assert study.state(victim)["state"] == "running"

    process = study.start()
    wait_until(lambda: study.state(victim)["state"] != "running" or process.poll() is not None)
    assert "its state is saved" in study.other("stop", "--wait=120")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "`hylorada stop` has asked this study to stop" in err
    assert "Traceback" not in err
    study.run_to_the_end()
    return victim


def _check(study: Terminals, victim: str, unbroken: dict[str, Any]) -> None:
    trials = outcome(study.storage, "mine").trials
    stopped = trials[victim]
    assert (stopped["state"], stopped["reason"]) == ("pruned", "stopped by the user")
    whole = unbroken[victim]["reports"]
    assert len(stopped["reports"]) < len(whole)
    assert [r["metrics"] for r in stopped["reports"]] == [
        r["metrics"] for r in whole[: len(stopped["reports"])]
    ]
    same = [n for n, t in unbroken.items() if t["stage"] in ("search", "added") and n != victim]
    assert set(_ADDED) < set(same)
    assert {n: trials[n] for n in same} == {n: unbroken[n] for n in same}
    assert not list((study.folder / "requests").glob("*.json"))
    report = study.other("report")
    assert f"note: arm '{stopped['arm']}': a user stopped 1 of 3 search trials ({victim})" in report
    assert "note: arm 'fixed': a user added 1 trial" in report


def test_study_on_one_machine(toy_model: str, tmp_path: Path, unbroken: dict[str, Any]) -> None:
    study = Terminals(tmp_path / "steered", toy_model)
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
    study = Terminals(tmp_path / "steered", toy_model, (f"--address={address}", "--wait=60"))
    _check(study, _steer(study), unbroken)
