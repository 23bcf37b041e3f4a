"""Run trials on a real host whose engine fails on purpose, and print how each ended.

``python hosts.py KIND FOLDER SEATS kill|spare|late|many``: ``kill`` ends every trial process when a
trial ends; ``late`` gives the last trial when the others have ended; ``many`` gives short ones
until as many processes as there are seats have been at work, or 1,000 trials.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from study_runs import mark_children, marked

from studies.process.environment import make_private, prepare_environment, short_folder
from studies.process.errors import StudyStopped
from studies.trials.messages import Job, Report

STEPS = 12
REPORTS = (4, 8, 12)
NAMES = ("a", "b", "c")


class Failing:
    """An engine that counts; passes fail at step 6 of trial ``b``, the device at step 10 of ``c``.

    Args:
        kind: ``once`` loses the device in one process, ``always`` in each; ``never`` never fails.
        folder: folder in which steps outlive the process: one file per trial, written at reports.
        device: unused.
        blocks: unused.
    """

    def __init__(self, kind: str, folder: str, device: str, blocks: object) -> None:
        self._kind, self._folder = kind, Path(folder)
        self._steps: dict[str, int] = {}
        self._lost = False

    def build(self, job: Job) -> Job:
        return job

    def attach(self, job: Job) -> None:
        path = self._folder / job.name
        self._steps[job.name] = int(path.read_text()) if path.exists() else 0

    def detach(self, name: str) -> None:
        self._steps.pop(name, None)

    def stored_report(self, name: str, after: int) -> Report | None:
        return None

    def runs_ahead(self, name: str) -> bool:
        return self._steps[name] < STEPS and self._steps[name] + 1 not in REPORTS

    def advance(self, names: Sequence[str]) -> dict[str, Report | None]:
        steps = {name: self._steps[name] for name in names}
        if steps.get("c") == 9 and self._kind != "never":
            self._lose_device()
        if self._lost:
            raise RuntimeError(
                "CUDA error: an illegal memory access was encountered\nsee the manual"
            )
        if steps.get("b") == 5 and self._kind != "never":
            raise ValueError("no such shape")
        return {name: self._step(name) for name in names}

    def _lose_device(self) -> None:
        mark = self._folder / "lost"
        self._lost = self._lost or self._kind == "always" or not mark.exists()
        mark.touch()

    def _step(self, name: str) -> Report | None:
        self._steps[name] += 1
        step = self._steps[name]
        if step not in REPORTS:
            return None
        (self._folder / name).write_text(str(step))
        return Report(step=step, metrics={}, done=step == STEPS)


class Trials:
    """A source of three trials that records their events.

    Args:
        at_end: called when a trial ends; its process then waits to be used by another.
        late: whether the last trial comes when the others have ended, as in the confirm stage.
    """

    def __init__(self, at_end: Callable[[], None], late: bool) -> None:
        self._left, self._at_end, self._late = list(NAMES), at_end, late
        self.ended: list[str] = []
        self.events: dict[str, list[Any]] = {name: [] for name in NAMES}
        self.processes: set[int] = set()  # processes of trials that have reported

    def remaining(self) -> int:
        return len(self._left)

    def next_job(self) -> tuple[Job, int] | None:
        if not self._left or (
            self._late and len(self._left) == 1 and len(self.ended) < len(NAMES) - 1
        ):
            return None
        name = self._left.pop(0)
        return Job(
            name=name, adapter={}, training={}, seed=0, data_seed=0, report_steps=REPORTS, folder=""
        ), 0

    def on_report(self, name: str, report: Report) -> bool:
        self.events[name].append(report.step)
        if report.done:
            self.ended.append(name)
            self._at_end()
        return False

    def on_failure(self, name: str, reason: str, traceback: str) -> None:
        self.events[name].append(reason)

    def on_restart(self, name: str) -> None:
        self.events[name].append("restarted")


class Many(Trials):
    """A source of trials that end faster than processes start."""

    def __init__(self, seats: int) -> None:
        super().__init__(lambda: None, late=False)
        self._seats = seats
        self.events = {}

    def remaining(self) -> int:
        return 0 if len(self.processes) == self._seats else 1000 - len(self.events)

    def next_job(self) -> tuple[Job, int] | None:
        if not self.remaining():
            return None
        name = f"t{len(self.events)}"
        self.events[name] = []
        return Job(
            name=name, adapter={}, training={}, seed=0, data_seed=0, report_steps=REPORTS, folder=""
        ), 0


def main() -> None:
    kind, folder, seats, how = sys.argv[1:]
    mark = mark_children()
    here = Path(__file__).resolve()
    # For Ray's workers.
    os.environ["PYTHONPATH"] = os.pathsep.join((str(here.parent), str(here.parents[2])))
    prepare_environment()
    workspace = short_folder()
    make_private(workspace)
    from studies.engine.cluster import Cluster  # imports Ray, which reads the environment
    from studies.engine.tune_loop import _Judge

    engine = {"engine": "hosts:Failing", "kind": kind, "folder": folder}
    cluster = Cluster(
        address=None, seats=int(seats), batch_size=1, engine=engine, blocks={}, workspace=workspace
    )

    def kill_trials() -> None:
        for pid in marked(mark, "ray::Trial") if how == "kill" else []:
            os.kill(pid, signal.SIGKILL)

    trials = Many(int(seats)) if how == "many" else Trials(kill_trials, late=how == "late")
    take = _Judge._take

    def note_process(judge: _Judge, name: str, result: Mapping[str, Any]) -> bool:
        trials.processes.add(result["pid"])
        return take(judge, name, result)

    _Judge._take = note_process  # type: ignore[assignment,method-assign]
    stopped = None
    try:
        while trials.remaining():
            cluster.run(trials)
    except StudyStopped as error:
        stopped = str(error)
    finally:
        cluster.close()
    print(
        json.dumps(
            {
                "events": trials.events,
                "ended": trials.ended,
                "stopped": stopped,
                "processes": len(trials.processes),
            }
        )
    )


if __name__ == "__main__":
    main()
