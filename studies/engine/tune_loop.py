"""Ray Tune: schedules a source's jobs over the devices of this machine or a cluster, and tells it what came."""

import json
import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

from ray import tune
from ray.tune.experiment import Trial as RayTrial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from studies.engine.controller import controlled
from studies.engine.nodes import nodes_with
from studies.engine.trainable import Trial
from studies.process.errors import StudyStopped
from studies.trials.messages import Job, Report

_RESTARTS = 5  # of one trial, by deaths of its process, without a report in between


class Source(Protocol):
    """Where jobs come from and reports go to."""

    def remaining(self) -> int:
        """How many jobs :meth:`next_job` may still give; 0 when there are no more."""

    def next_job(self) -> tuple[Job, int] | None:
        """The next job and the last step of it that is known; None while there is none to give."""

    def on_report(self, name: str, report: Report) -> bool:
        """Take a report; True stops the trial."""

    def on_failure(self, name: str, reason: str, traceback: str) -> None:
        """A trial that raised."""

    def on_restart(self, name: str) -> None:
        """A trial whose process or machine was lost, and that goes on elsewhere."""


class _Local:
    """State that must not travel: Tune pickles its searcher and scheduler, though nobody reads that pickle back."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Proposer(_Local, Searcher):
    """Gives Tune the source's jobs.

    Args:
        source: of the jobs.
        judge: keeps what comes up here.
        slots: how many trials Tune may hold.
        common: what every trial's config holds beside its job.
    """

    def __init__(
        self, source: Source, judge: "_Judge", slots: Callable[[], int], common: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self._source, self._judge, self._slots, self._common = source, judge, slots, common
        self._live: dict[str, tuple[Job, int]] = {}
        self._again: list[tuple[Job, int]] = []
        self._waits = False  # for a trial to end: until then the source has nothing to give

    def suggest(self, trial_id: str) -> Any:
        if self._judge.fault is None and (self._waits or len(self._live) >= self._slots()):
            return None  # Tune's own limit is fixed at the start, and nodes come and go
        given = (
            self._again.pop() if self._again else self._judge.keeping_faults(self._source.next_job)
        )
        if self._judge.fault is not None:
            return Searcher.FINISHED
        if given is None:
            self._waits = bool(self._live) and self._source.remaining() > 0
            return None if self._waits else Searcher.FINISHED
        self._live[trial_id] = job, seen = given
        # the job as text: Tune flattens and copies what it is given, and keeps all of it
        return {"name": job.name, "job": json.dumps(job.to_dict()), "seen": seen, **self._common}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Its place is free; the judge has heard of the end.

        Tune gives a trial up whose process is gone before it has started there, as one that waits to be used again may
        be: it comes again, before all that come after it.
        """
        given, self._waits = self._live.pop(trial_id, None), False
        if error and given is not None:
            self._again.append(given)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the study folder is the truth."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: see :meth:`save`."""


class _Judge(_Local, FIFOScheduler):
    """Passes reports to the source and its answer to Tune.

    Attributes:
        fault: what came up in the driver's own work, or ends the study. It is kept, not raised: Tune would take it for
            the trial's and try again; :class:`_Stopper` ends the run.
        resetting: Tune's trials that wait for an idle process to take them on; the controller's own set.
    """

    resetting: Collection[RayTrial] = ()

    def __init__(
        self, source: Source, free: Callable[[str], None], check: Callable[[], None]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._source, self._free, self._check = source, free, check
        self._deaths: Counter[str] = Counter()
        self.fault: Exception | None = None

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        stops = self.keeping_faults(self._take, _trial_name(trial), result)
        return str(TrialScheduler.STOP if stops else TrialScheduler.CONTINUE)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Tune comes here, and not to :meth:`on_trial_result`, with the last result of a trial that is done.

        What Tune would keep of each trial is dropped: it makes the driver grow.
        """
        self.keeping_faults(self._take, _trial_name(trial), result)
        trial.run_metadata.metric_analysis, trial.run_metadata.metric_n_steps = {}, {}
        trial.run_metadata.last_result = {}
        trial._default_result_or_future = (
            None  # the answer of the trial's process to a question of Tune's
        )

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """The trial's process is gone; Tune starts another, for trials themselves don't raise.

        One that was idle, and gone before it had taken the trial on, is nothing to the trial.
        """
        if trial in self.resetting:
            return
        self.keeping_faults(self._take_death, _trial_name(trial), trial.error_file)

    def keeping_faults(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The function's answer; None once anything has come up."""
        if self.fault is None:
            try:
                return function(*arguments)
            except Exception as error:
                self.fault = error
        return None

    def _take(self, name: str, result: Mapping[str, Any]) -> bool:
        self._check()
        if stopped := result.get("stopped"):
            raise StudyStopped(stopped)
        if failed := result.get("failed"):
            self._source.on_failure(name, **json.loads(failed))
            return False
        del self._deaths[name]
        return self._source.on_report(name, Report.from_json(result["report"]))

    def _take_death(self, name: str, log: str | None) -> None:
        self._deaths[name] += 1
        if self._deaths[name] > _RESTARTS:
            lines = Path(log).read_text().strip().splitlines() if log else []
            died = (
                f"the process of {name} died {self._deaths[name]} times in a row without a report"
            )
            raise StudyStopped(": ".join([died, *lines[-1:]]))
        self._free(name)
        self._source.on_restart(name)


class _Stopper(_Local, tune.Stopper):
    """Ends the run once the judge has kept a fault."""

    def __init__(self, judge: _Judge) -> None:
        self._judge = judge

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._judge.fault is not None


def run_trials(
    source: Source,
    check: Callable[[], None],
    free: Callable[[str], None],
    *,
    registry: str,
    asked: Mapping[str, float],
    waiting: int,
    folder: Path,
) -> None:
    """Run all jobs of a source; returns when each has ended.

    Args:
        source: of the jobs.
        check: raises if the run is to end.
        free: empties the seat of a trial whose process is gone.
        registry: name of the registry of hosts.
        asked: what a trial asks for.
        waiting: trials that may wait for a place; see :class:`Slots`.
        folder: for Tune's own files.

    Raises:
        StudyStopped: something outside the trials keeps them from going on.
    """
    count = source.remaining()
    if not count:
        return
    judge = _Judge(source, free, check)
    tuner = tune.Tuner(
        Trial,
        tune_config=tune.TuneConfig(
            search_alg=_Proposer(
                source, judge, Slots(asked, waiting), {"registry": registry, **asked}
            ),
            scheduler=judge,
            num_samples=count,
            reuse_actors=True,
            trial_name_creator=_trial_name,
            trial_dirname_creator=_trial_name,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder),
            failure_config=tune.FailureConfig(max_failures=-1),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            stop=_Stopper(judge),
            verbose=0,
        ),
    )
    with controlled():
        tuner.fit()
    if judge.fault is not None:
        raise judge.fault
    check()
    shutil.rmtree(folder, ignore_errors=True)


class Slots:
    """How many trials Tune may hold: those that can run at once on the nodes there are now, and some that wait.

    Args:
        asked: what a trial asks for.
        waiting: trials that wait; on a cluster one, which is what makes an autoscaler add a node. A private Ray has
            none, and its one node is looked at once.
    """

    def __init__(self, asked: Mapping[str, float], waiting: int) -> None:
        self._kind, self._asked = ("GPU", asked["gpu"]) if asked["gpu"] else ("CPU", asked["cpu"])
        self._waiting = waiting
        self._until, self._count = 0.0, 1

    def __call__(self) -> int:
        if time.monotonic() > self._until:  # Tune asks at every event
            there = [n["Resources"][self._kind] for n in nodes_with(self._kind)]
            self._until = time.monotonic() + 0.5 if self._waiting or not there else math.inf
            self._count = max(
                1, sum(int(whole / self._asked + 1e-6) for whole in there) + self._waiting
            )
        return self._count


def _trial_name(trial: Any) -> str:
    return str(trial.config["name"])
