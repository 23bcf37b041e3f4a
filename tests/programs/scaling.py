"""Growth of trials per second with the number of hosts, for an engine whose steps only wait.

Tune, registry, hosts and trials are those of a study. Every host runs on its own Ray node (real
``ray start`` processes, all on this machine). The measurement shows the cost of placement, messages
and the driver's decisions.

Usage: ``python tests/programs/scaling.py``
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster_nodes import Nodes

from studies.process.environment import prepare_environment
from studies.trials.messages import Job, Report

SEATS = 2
STEPS = 30  # steps of a trial
REPORT_EVERY = 10
TRIALS_A_SEAT = 5  # the first in each seat starts processes and is not counted
LEAST = 3.5  # smallest accepted rate of four hosts, in rates of one


class Waiting:
    """An engine whose steps only wait.

    Args:
        step_s: seconds of a step, however many trials are in it.
        device: unused.
        blocks: unused.
    """

    def __init__(self, step_s: float, device: str, blocks: object) -> None:
        self._step_s = step_s
        self._steps: dict[str, int] = {}
        self._jobs: dict[str, Job] = {}

    def build(self, job: Job) -> Job:
        return job

    def attach(self, job: Job) -> None:
        self._jobs[job.name], self._steps[job.name] = job, 0

    def detach(self, name: str) -> None:
        self._jobs.pop(name, None)

    def stored_report(self, name: str, after: int) -> Report | None:
        return None

    def runs_ahead(self, name: str) -> bool:
        due = self._jobs[name].report_steps
        return self._steps[name] < due[-1] and self._steps[name] + 1 not in due

    def advance(self, names: Sequence[str]) -> dict[str, Report | None]:
        time.sleep(self._step_s)
        return {name: self._step(name) for name in names}

    def _step(self, name: str) -> Report | None:
        self._steps[name] += 1
        step, due = self._steps[name], self._jobs[name].report_steps
        return Report(step=step, done=step == due[-1]) if step in due else None


@dataclass
class Trials:
    """A source of equal trials that notes when each ends."""

    count: int
    given: int = 0
    ends: list[float] = field(default_factory=list)

    def remaining(self) -> int:
        return self.count - self.given

    def next_job(self) -> tuple[Job, int] | None:
        if not self.remaining():
            return None
        self.given += 1
        steps = tuple(range(REPORT_EVERY, STEPS + 1, REPORT_EVERY))
        return Job(
            name=f"t{self.given}",
            adapter={},
            training={},
            seed=0,
            data_seed=0,
            report_steps=steps,
            folder="",
        ), 0

    def on_report(self, name: str, report: Report) -> bool:
        if report.done:
            self.ends.append(time.monotonic())
        return False

    def on_failure(self, name: str, reason: str, traceback: str) -> None:
        raise RuntimeError(traceback)

    def on_restart(self, name: str) -> None:
        raise RuntimeError(f"{name} lost its process")


def rate(address: str, hosts: int, step_s: float) -> float:
    """Return trials per second, counted after the first trial of each seat has ended."""
    from studies.engine.cluster import Cluster  # imports Ray, which reads the environment

    engine: Mapping[str, Any] = {"engine": "scaling:Waiting", "step_s": step_s}
    seats = hosts * SEATS
    with tempfile.TemporaryDirectory(dir="/tmp") as workspace:
        cluster = Cluster(
            address=address,
            seats=SEATS,
            batch_size=1,
            engine=engine,
            blocks={},
            workspace=Path(workspace),
        )
        try:
            trials = Trials(seats * TRIALS_A_SEAT)
            cluster.run(trials)
        finally:
            cluster.close()
    assert len(trials.ends) == trials.count
    return (trials.count - seats) / (trials.ends[-1] - trials.ends[seats - 1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--hosts", default="1,2,4", help="default: %(default)s")
    parser.add_argument("--step", type=float, default=0.1, help="seconds; default: %(default)s")
    args = parser.parse_args()
    here = Path(__file__).resolve()
    paths = (str(here.parent), str(here.parents[2]), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # for the nodes' processes
    prepare_environment()
    rates: dict[int, float] = {}
    with Nodes() as nodes:
        os.environ.update(nodes.environment)
        for hosts in (int(n) for n in args.hosts.split(",")):
            while len(nodes.nodes) < hosts:
                nodes.add(f"n{len(nodes.nodes)}")
            rates[hosts] = rate(nodes.address, hosts, args.step)
            ideal = hosts * SEATS / (STEPS * args.step)
            print(
                f"{hosts} hosts x {SEATS} seats: {rates[hosts]:.2f} trials/s of {ideal:.2f} "
                "that the waits allow",
                flush=True,
            )
    gain = rates[max(rates)] / rates[min(rates)]
    print(f"{min(rates)} -> {max(rates)} hosts: {gain:.2f} times the rate")
    return 0 if gain >= LEAST / 4 * max(rates) / min(rates) else 1


if __name__ == "__main__":
    sys.exit(main())
