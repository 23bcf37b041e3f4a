"""The loop that schedules a source's jobs with Ray Tune and passes their reports back."""

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
from studies.process.phases import phase
from studies.trials.messages import Job, Report

_CHECK_S = 1.0  # time between two checks without a report
_RESTARTS = 5  # restarts of one trial after deaths of its process, without a report in between
_LOST_STARTS = 5  # for each slot: trials that Tune could not start, with none ending in between


class Source(Protocol):
    """A source of jobs that also receives their reports."""

    def remaining(self) -> int:
        """Return the maximum number of jobs still to come from :meth:`next_job`; 0 at the end."""

    def next_job(self) -> tuple[Job, int] | None:
        """Return the next job and its last known step; None while no job is available."""

    def on_report(self, name: str, report: Report) -> bool:
        """Handle a report, and return whether to stop the trial."""

    def on_failure(self, name: str, reason: str, traceback: str) -> None:
        """Handle a trial that raised."""

    def on_restart(self, name: str) -> None:
        """Handle a trial whose process or machine was lost and that is about to be restarted."""


class _Local:
    """An object pickled without state: Tune pickles searcher and scheduler but never loads them."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Proposer(_Local, Searcher):
    """A Tune searcher that suggests the source's jobs.

    Args:
        source: source of the jobs.
        judge: scheduler that keeps faults raised here.
        slots: returns how many trials Tune may hold.
        common: part of the config that is the same for all trials.
    """

    def __init__(
        self, source: Source, judge: "_Judge", slots: Callable[[], int], common: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self._source, self._judge, self._slots, self._common = source, judge, slots, common
        self._live: dict[str, tuple[Job, int]] = {}
        self._returned: list[tuple[Job, int]] = []
        # Number of handled results when the source had no job; None while it has some. Each further
        # result may give it one.
        self._waits: int | None = None
        self._lost_starts = 0

    def suggest(self, trial_id: str) -> Any:
        """Return the config of the next trial, None if none can start now, or ``FINISHED``."""
        if self._judge.has_new_jobs():
            self._waits = None
        # Our own limit, because Tune's is fixed at the start while nodes join and leave.
        waits = self._waits == self._judge.handled
        if self._judge.fault is None and (waits or len(self._live) >= self._slots()):
            return None
        if self._lost_starts > _LOST_STARTS * self._slots():
            return Searcher.FINISHED
        next_job = self._returned.pop if self._returned else self._source.next_job
        job_and_step = self._judge.keeping_faults(next_job)
        if self._judge.fault is not None:
            return Searcher.FINISHED
        if job_and_step is None:
            if not self._live:
                return Searcher.FINISHED
            # While trials run, the source may still get jobs: a stage after theirs, or a user's.
            self._waits = self._judge.handled
            return None
        self._live[trial_id] = job, seen = job_and_step
        # The job goes as text, because Tune flattens, copies and keeps every config.
        return {"name": job.name, "job": json.dumps(job.to_dict()), "seen": seen, **self._common}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Free the trial's slot; the judge has already handled its end.

        Tune gives up a trial whose process dies before the trial has started in it, which can
        happen to an idle process kept for reuse. Such a job is suggested again first.
        After too many failed starts in a row, the run ends.
        """
        job_and_step, self._waits = self._live.pop(trial_id, None), None
        self._lost_starts = self._lost_starts + 1 if error else 0
        if error and job_and_step is not None:
            self._returned.append(job_and_step)

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: a study resumes from its own folder, never from Tune's."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing; see :meth:`save`."""


class _Judge(_Local, FIFOScheduler):
    """A Tune scheduler that passes reports to the source and its decisions to Tune.

    Attributes:
        fault: first exception of the driver's own work, or one that stops the study. It is kept,
            not raised: Tune would blame the trial and try again; :class:`_Stopper` ends the run.
        handled: number of results that the source has got.
        resetting: Tune's trials that wait for an idle process to take over; the controller's own
            set.
    """

    resetting: Collection[RayTrial] = ()

    def __init__(
        self, source: Source, free: Callable[[str], None], check: Callable[[], bool]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._source, self._free, self._check = source, free, check
        self._deaths: Counter[str] = Counter()
        self.fault: Exception | None = None
        self._new_jobs, self._check_at = False, 0.0
        self.handled = 0

    def check(self) -> None:
        """Call the check, at most once a second; Tune's loop calls this all the time."""
        if time.monotonic() >= self._check_at:
            self._check_at = time.monotonic() + _CHECK_S
            self.keeping_faults(self._call_check)

    def has_new_jobs(self) -> bool:
        """Return whether the source has got jobs since the last call."""
        new, self._new_jobs = self._new_jobs, False
        return new

    def _call_check(self) -> None:
        self._new_jobs = self._check() or self._new_jobs

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Pass a result on, and return Tune's code for stopping or continuing the trial.

        A trial that is stopped loses its seat at once. Otherwise it would train on until its
        process, which Tune keeps for another trial, calls the host again.
        """
        stops = self.keeping_faults(self._take, _trial_name(trial), result)
        if stops:
            self.keeping_faults(self._free, _trial_name(trial))
        return str(TrialScheduler.STOP if stops else TrialScheduler.CONTINUE)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Pass on the last result of a trial, which Tune doesn't give to :meth:`on_trial_result`.

        Tune's own copies of an ended trial's results are dropped, because the driver would grow.
        """
        self.keeping_faults(self._take, _trial_name(trial), result)
        trial.run_metadata.metric_analysis, trial.run_metadata.metric_n_steps = {}, {}
        trial.run_metadata.last_result = {}
        trial._default_result_or_future = None  # a result that Tune has fetched from the process

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """Handle the death of a trial's process, which Tune restarts; trials don't raise by design.

        The death of an idle process that had not yet taken the trial over doesn't count.
        """
        if trial in self.resetting:
            return
        self.keeping_faults(self._take_death, _trial_name(trial), trial.error_file)

    def keeping_faults(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the function and return its result; on the first exception and ever after, None."""
        if self.fault is None:
            try:
                return function(*arguments)
            except Exception as error:
                self.fault = error
        return None

    def _take(self, name: str, result: Mapping[str, Any]) -> bool:
        self._call_check()
        self.handled += 1
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
    """A Tune stopper that ends the run as soon as the judge holds a fault.

    Tune asks it in every turn of its loop, ten times a second or more, so it also sees that the
    run's time is up while no trial reports.
    """

    def __init__(self, judge: _Judge) -> None:
        self._judge = judge

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        """Let the judge check, and return whether it holds a fault."""
        self._judge.check()
        return self._judge.fault is not None


@phase("Tune")
def run_trials(
    source: Source,
    check: Callable[[], bool],
    free: Callable[[str], None],
    *,
    registry: str,
    resources: Mapping[str, float],
    waiting: int,
    folder: Path,
) -> None:
    """Run all jobs of a source and return when each has ended.

    Args:
        source: source of the jobs.
        check: called at each report and every second; raises if the run should end, and returns
            whether the source has new jobs.
        free: frees the seat of a trial that is stopped or whose process is gone.
        registry: name of the registry of hosts.
        resources: resources that each trial requests.
        waiting: number of trials that may wait for resources; see :class:`Slots`.
        folder: folder for Tune's own files.

    Raises:
        StudyStopped: a fault outside the trials keeps them from continuing.
    """
    if not source.remaining():
        return
    judge = _Judge(source, free, check)
    tuner = tune.Tuner(
        Trial,
        tune_config=tune.TuneConfig(
            search_alg=_Proposer(
                source, judge, Slots(resources, waiting), {"registry": registry, **resources}
            ),
            scheduler=judge,
            num_samples=-1,  # as many as the source has: it may get more jobs meanwhile
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
            progress_reporter=_NoProgress(),
        ),
    )
    with controlled():
        tuner.fit()
    if judge.fault is not None:
        raise judge.fault
    check()
    shutil.rmtree(folder, ignore_errors=True)


class _NoProgress(tune.ProgressReporter):
    """A reporter that reports nothing: in a notebook, Tune's own would clear the cell's output."""

    def should_report(self, trials: list[Any], done: bool = False) -> bool:
        return False

    def report(self, trials: list[Any], done: bool, *sys_info: str) -> None:
        pass


class Slots:
    """Count the trials Tune may hold: those that can run now plus `waiting` more.

    Args:
        resources: resources that each trial requests.
        waiting: number of trials that may wait. On a cluster it is 1, which makes an autoscaler add
            a node. On a private Ray it is 0, and the one node is counted only once.
    """

    def __init__(self, resources: Mapping[str, float], waiting: int) -> None:
        self._kind = "GPU" if resources["gpu"] else "CPU"
        self._share = resources[self._kind.lower()]
        self._waiting = waiting
        self._until, self._count = 0.0, 1

    def __call__(self) -> int:
        """Return the number, counted anew at most every 0.5 s: Tune calls this at every event."""
        if time.monotonic() > self._until:
            amounts = [n["Resources"][self._kind] for n in nodes_with(self._kind)]
            self._until = time.monotonic() + 0.5 if self._waiting or not amounts else math.inf
            at_once = sum(int(amount / self._share + 1e-6) for amount in amounts)
            self._count = max(1, at_once + self._waiting)
        return self._count


def _trial_name(trial: Any) -> str:
    return str(trial.config["name"])
