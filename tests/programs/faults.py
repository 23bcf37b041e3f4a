"""Killing parts of a running study at random moments, resuming it, and comparing the results.

A study that was killed and resumed must end as an uninterrupted one does.

The long version: ``python tests/programs/faults.py --kills 20``; the bounded one is test_faults.py.
"""

import argparse
import json
import math
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import optuna
from cluster_nodes import Nodes
from mlflow import MlflowClient
from study_runs import SMALL, Command, Done, read_trials, run_cli

from studies.trials.messages import CHECKPOINT
from studies.trials.records import OPEN

VICTIMS = ("driver", "machine", "host", "trial", "node")
NAME = "broken"
# Titles of processes, idle and at work.
_TITLES = {
    "host": ("ray::Host",),
    "trial": ("ray::Trial", "ray::ResourceTrainable"),
}
_DECIDED = {
    "params",
    "adapter",
    "training",
    "seed",
    "data_seed",
}
# Reports between kills, two of each trial in a pack: a trial whose hosts die 4 times before it
# reports stops the study, as it should.
_REST = 6
# Fields of a report or record that say when and where, not what, and checksums over them.
_PER_RUN = {"time", "seconds", "block_nll", "restarts", "seal", "reports_seal", "digests"}

# One trial at a time gives one order of reports, whatever dies: TPE and ASHA must then decide as
# in the uninterrupted run.
ONE_SEAT = (*SMALL, "--trials=6", "--seats=1")
# The first blocks are given, and the others follow from their number alone.
STARTED = (
    *SMALL,
    "--seats=1",
    "--sampler=qmc",
    "--set=start=[{learning_rate: 0.001, num_buckets: 4}, {arms: {learnable: {num_buckets: 4}}}]",
)
# After a death the reports of packs come in another order, so nothing here depends on it: proposals
# are drawn at random.
PACKED = (
    *SMALL,
    "--trials=3",
    "--seats=3",
    "--set=grace_steps=0",
    "--set=defaults.lora_dropout=0.1",
)
# Searches, finalists, a profile, and later looks. Such a small margin leaves every comparison
# undecided.
REPLICATED = (
    *SMALL,
    "--trials=2",
    "--seeds=1",
    "--seats=1",
    "--set=finalists=2",
    "--set=profile=[0.5, 1.0]",
    "--set=looks=[2, 3]",
    "--set=margin=1e-6",
)
_STUDIES = {
    "one seat": ONE_SEAT,
    "started": STARTED,
    "packs of 3": PACKED,
    "replicated": (*REPLICATED, "--searches=3"),
}


@dataclass
class Broken:
    """A study that is interrupted at random moments.

    Attributes:
        storage: its storage folder.
        model: its base.
        options: further options of ``hylorada run``.
        chance: random generator of the moments.
        kills: victims so far, each with the number of reports at which it was killed.
        resolving: whether ``hylorada resolve`` resumes it instead of ``hylorada run``.
    """

    storage: Path
    model: str
    options: Sequence[str]
    chance: random.Random
    kills: list[tuple[str, int]]
    resolving: bool = False

    @property
    def folder(self) -> Path:
        return self.storage / "studies" / NAME

    def command(self) -> list[str]:
        if self.resolving:
            return ["resolve", NAME, f"--storage={self.storage}", "--margin=1e-6", "--seats=1"]
        place = (f"--model={self.model}", f"--storage={self.storage}", f"--name={NAME}")
        return ["run", "learnable_bucketing", *place, *self.options]

    def run_to_the_end(self) -> Done:
        done = run_cli(*self.command(), timeout=400)
        assert done.code == 0, done.err
        return done

    def break_off(self, victim: str) -> bool:
        """Start it and kill the driver or all processes at some moment; False if it ended first."""
        process = Command(*self.command())
        self._wait(process)
        if process.poll() is None:
            self.kills.append((victim, self.steps()))
            for pid in [process.pid] if victim == "driver" else process.pids():
                _kill(pid)
        _, err = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), err
        return process.returncode != 0

    def wound(self, victims: Sequence[str], kills: int) -> int:
        """Run it to its end while hosts or trial processes are killed; return the kills."""

        def strike(process: Command) -> str | None:
            victim = self.chance.choice(list(victims))
            pids = process.pids(_TITLES[victim])
            if pids:
                _kill(self.chance.choice(pids))
            return victim if pids else None

        return self._run_under(strike, kills)

    def lose_nodes(self, count: int, kills: int) -> int:
        """Run it to its end on a cluster whose nodes are killed and replaced; return the kills."""
        with Nodes(cpus=0) as nodes, patch.dict(os.environ, nodes.environment):
            alive = [nodes.add(f"node-{number}") for number in range(count)]

            def strike(_: Command) -> str:
                alive.pop(self.chance.randrange(count)).kill()
                time.sleep(self.chance.uniform(0, 5))
                alive.append(nodes.add(f"node-{len(nodes.nodes)}"))
                return "node"

            return self._run_under(strike, kills, f"--address={nodes.address}", "--wait=60")

    def _run_under(self, strike: Callable[[Command], str | None], kills: int, *options: str) -> int:
        """Run it to its end under this many strikes; ``strike`` returns its victim, if any."""
        process = Command(*self.command(), *options)
        before, rested, strikes = len(self.kills), self.steps(), 0
        end = time.monotonic() + 1800
        while process.poll() is None and len(self.kills) - before < kills:
            assert time.monotonic() < end, "it does not go on"
            time.sleep(self.chance.uniform(0.5, 3.0))
            steps = self.steps()
            if steps >= rested + _REST:
                rested, strikes = steps, 0
            if strikes < 2 and (victim := strike(process)) is not None:
                self.kills.append((victim, steps))
                strikes += 1
        _, err = process.communicate(timeout=400)
        assert process.returncode == 0, err
        return len(self.kills) - before

    def steps(self) -> int:
        """Return the number of reports on disk."""
        return sum(p.read_bytes().count(b"\n") for p in self.folder.glob("trials/*/reports.jsonl"))

    def _wait(self, process: Command) -> None:
        """Wait for a random moment, in the start or after the first new report."""
        began, known = time.monotonic(), self.steps()
        start_up = self.chance.uniform(0, 8) if self.chance.random() < 0.2 else None
        while process.poll() is None:
            if start_up is not None and time.monotonic() - began > start_up:
                return
            if self.steps() > known:
                time.sleep(self.chance.uniform(0, 2.5))
                return
            time.sleep(0.02)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


# --- the outcome of a study -------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """The outcome of a study, without times and paths.

    Attributes:
        trials: files of each trial: record and reports.
        optuna: parameters, state, value and intermediate values of each trial of each arm.
        mlflow: status and every metric's series of each run, by name.
        results: table, comparisons and verdict.
    """

    trials: dict[str, Any]
    optuna: dict[str, Any]
    mlflow: dict[str, Any]
    results: dict[str, Any]


def outcome(storage: Path, name: str = NAME) -> Outcome:
    """Read the outcome of a study, and check that nothing exists twice and nothing is left open."""
    folder = storage / "studies" / name
    assert not (folder / OPEN).exists()
    results = json.loads((folder / "results.json").read_text())
    arms = [{k: v for k, v in arm.items() if k != "trial_seconds"} for arm in results["arms"]]
    kept = {k: results[k] for k in ("base_ppl", "tokens", "comparisons", "verdict", "notes")}
    return Outcome(
        trials={t["name"]: _trial(folder, t) for t in read_trials(folder)},
        optuna={
            n: _optuna(folder, n)
            for n in optuna.get_all_study_names(f"sqlite:///{folder / 'optuna.db'}")
        },
        mlflow=_mlflow(storage, name),
        results={**kept, "arms": arms},
    )


def _trial(folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    path = folder / "trials" / record["name"] / "reports.jsonl"
    # A trial that fails at its first report has no file.
    lines = path.read_text().splitlines() if path.exists() else []
    reports = [{k: v for k, v in json.loads(line).items() if k not in _PER_RUN} for line in lines]
    steps = [r["step"] for r in reports]
    assert steps == sorted(set(steps)), record["name"]
    assert record["state"] != "running", record["name"]
    assert record["stage"] == "confirm" or not path.with_name(CHECKPOINT).exists(), record["name"]
    return {**{k: v for k, v in record.items() if k not in _PER_RUN}, "reports": reports}


def _optuna(folder: Path, arm: str) -> list[Any]:
    study = optuna.load_study(study_name=arm, storage=f"sqlite:///{folder / 'optuna.db'}")
    assert all(t.state.is_finished() for t in study.trials)
    assert len({t.user_attrs["mlflow_run"] for t in study.trials}) == len(study.trials)
    return [
        {
            "number": t.number,
            "params": t.params,
            "state": t.state.name,
            "value": t.value if t.state.name == "COMPLETE" else None,
            "reports": t.intermediate_values,
            "shown": {k: v for k, v in t.user_attrs.items() if k != "mlflow_run"},
        }
        for t in study.trials
    ]


def _mlflow(storage: Path, name: str) -> dict[str, Any]:
    client = MlflowClient(f"sqlite:///{storage / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(name)
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    counts = Counter(r.data.tags["mlflow.runName"] for r in runs)
    assert set(counts.values()) == {1}, counts
    return {r.data.tags["mlflow.runName"]: (r.info.status, dict(_series(client, r))) for r in runs}


def _series(client: MlflowClient, run: Any) -> Iterator[tuple[str, list[tuple[int, float]]]]:
    for key in sorted(run.data.metrics):
        if not key.startswith("time/"):
            yield key, [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, key)]


# --- the long version -------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=20, help="of each kind; default: %(default)s")
    parser.add_argument("--victims", default=",".join(VICTIMS), help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the moments; default: %(default)s")
    parser.add_argument("--model", default="tiny", help="base; default: %(default)s")
    parser.add_argument("--studies", default=",".join(_STUDIES), help="default: %(default)s")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        for label in args.studies.split(","):
            options = _STUDIES[label]
            whole = Broken(Path(place) / label, args.model, options, random.Random(), [])
            began = time.monotonic()
            whole.run_to_the_end()
            expected = outcome(whole.storage)
            seconds = time.monotonic() - began
            print(
                f"{label}: uninterrupted, {len(expected.trials)} trials in {seconds:.0f} s",
                flush=True,
            )
            for victim in args.victims.split(","):
                _campaign(Path(place) / f"{label} {victim}", victim, options, expected, args)
    return 0


def _campaign(
    place: Path, victim: str, options: Sequence[str], expected: Outcome, args: argparse.Namespace
) -> None:
    chance = random.Random(f"{args.seed} {victim}")
    kills: list[tuple[str, int]] = []
    studies = 0
    began = time.monotonic()
    while len(kills) < args.kills:
        broken = Broken(place / str(studies), args.model, options, chance, kills)
        if victim == "node":  # with one node at a time, trials keep one order
            broken.lose_nodes(1 if "--seats=1" in options else 2, args.kills - len(kills))
        elif victim in _TITLES:
            broken.wound([victim], args.kills - len(kills))
        else:
            while len(kills) < args.kills and broken.break_off(victim):
                pass
            broken.run_to_the_end()
        assert_same(outcome(broken.storage), expected, exact="--seats=1" in options)
        studies += 1
    moments = ", ".join(str(steps) for _, steps in kills)
    spent = time.monotonic() - began
    print(
        f"  {victim}: {len(kills)} kills in {studies} studies, all equal to the uninterrupted one; "
        f"{spent:.0f} s; after {moments} reports",
        flush=True,
    )


def assert_same(actual: Outcome, expected: Outcome, *, exact: bool) -> None:
    """Compare two outcomes bit for bit, or within a tolerance if trials had other pack members.

    Other members of a pack change the last bits, which Adam may amplify to 1e-3.
    """
    if exact:
        assert actual.results == expected.results
    for part in ("trials", "optuna", "mlflow"):
        _compare(getattr(actual, part), getattr(expected, part), part, 0.0 if exact else 1e-3)


def _compare(actual: Any, expected: Any, where: str, tolerance: float) -> None:
    if isinstance(expected, float) and isinstance(actual, float):
        assert math.isclose(actual, expected, rel_tol=tolerance, abs_tol=tolerance), (
            where,
            actual,
            expected,
        )
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys(), where
        for key, value in expected.items():
            _compare(actual[key], value, f"{where}.{key}", 0.0 if key in _DECIDED else tolerance)
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected), where
        for index, value in enumerate(expected):
            _compare(actual[index], value, f"{where}[{index}]", tolerance)
    else:
        assert actual == expected, where


if __name__ == "__main__":
    sys.exit(main())
