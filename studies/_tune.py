"""Ray Tune: schedules a source's jobs over the devices of this machine or a cluster, and tells it what came."""

import json
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import ray
from ray import cloudpickle, tune
from ray.tune.experiment import Trial as RayTrial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hylorada import InputError

from ._controller import controlled
from ._faults import DeviceLost, HostGone, StudyStopped
from ._host import start_registry
from ._job import Job, Report
from ._nodes import Gate, nodes_with, training_nodes, wait_for
from ._trial import HOST_TRIES, Trial, host_died

_GONE = (  # a node, or a process on it
    ray.exceptions.RayActorError,
    ray.exceptions.ActorUnschedulableError,
    ray.exceptions.TaskUnschedulableError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.WorkerCrashedError,
)
_RESTARTS = 5  # of one trial, by deaths of its process, without a report in between


def _never() -> None:
    """The check of a run that nothing but its own end ends."""


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

    def __init__(self, source: Source, judge: "_Judge", slots: Callable[[], int], common: Mapping[str, Any]) -> None:
        super().__init__()
        self._source, self._judge, self._slots, self._common = source, judge, slots, common
        self._live: dict[str, tuple[Job, int]] = {}
        self._again: list[tuple[Job, int]] = []
        self._waits = False  # for a trial to end: until then the source has nothing to give

    def suggest(self, trial_id: str) -> Any:
        if self._judge.fault is None and (self._waits or len(self._live) >= self._slots()):
            return None  # Tune's own limit is fixed at the start, and nodes come and go
        given = self._again.pop() if self._again else self._judge.keeping_faults(self._source.next_job)
        if self._judge.fault is not None:
            return Searcher.FINISHED
        if given is None:
            self._waits = bool(self._live) and self._source.remaining() > 0
            return None if self._waits else Searcher.FINISHED
        self._live[trial_id] = job, seen = given
        # the job as text: Tune flattens and copies what it is given, and keeps all of it
        return {"name": job.name, "job": json.dumps(job.to_dict()), "seen": seen, **self._common}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
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

    def __init__(self, source: Source, free: Callable[[str], None], check: Callable[[], None]) -> None:
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
        trial._default_result_or_future = None  # the answer of the trial's process to a question of Tune's

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
            died = f"the process of {name} died {self._deaths[name]} times in a row without a report"
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


class Cluster:
    """Ray for the length of a study: a private one on this machine, or a cluster that is joined.

    The private one needs :func:`make_private` before Ray is imported.

    Args:
        address: of a cluster; None starts a private Ray.
        seats: trials in a pack; None is 4 on CPUs, and what a few steps on a GPU show to be best there.
        workspace: a folder with a short path for Ray's files.
        batch_size: of most trials.
        engine: arguments of every host's engine.
        blocks: the tokenised text.
        gate: of a cluster; what nodes must pass that join later.

    Raises:
        InputError: the cluster can't be reached.
    """

    def __init__(
        self,
        *,
        address: str | None,
        seats: int | None,
        batch_size: int,
        engine: Mapping[str, Any],
        blocks: Any,
        workspace: Path,
        gate: Gate | None = None,
    ) -> None:
        self._folder, self._gate = workspace, gate
        if not ray.is_initialized():  # a cluster has been joined before, to look at its nodes
            start_ray(address, workspace)
        self._kind = "GPU" if nodes_with("GPU") else "CPU"  # for good: what joins later is no reason to change
        self._name = f"hylorada-{os.getpid()}"
        self._blocks = ray.put(blocks)
        self._registry = start_registry(self._name, engine, cloudpickle.dumps(self._blocks), gate)
        self.seats = seats or (self._measured_seats(batch_size) if self._kind == "GPU" else 4)
        if address is None and self._kind == "CPU":  # start the one host there will be while Tune starts its trials
            self._registry.host.remote(ray.get_runtime_context().get_node_id(), "")

    def _measured_seats(self, batch_size: int) -> int:
        return int(self._ask("find_seats", batch_size))

    def _ask(self, method: str, *arguments: Any) -> Any:
        """The answer of any host; one that dies over it is replaced."""
        number, lost, cause = None, None, None
        for attempt in range(HOST_TRIES):
            nodes = wait_for(lambda: nodes_with(self._kind), 60)
            if not nodes:
                raise StudyStopped("no node of the cluster is left to train on")
            # in turn: a node that has just died is listed for some seconds
            node = nodes[attempt % len(nodes)]["NodeID"]
            try:
                host, number = ray.get(self._registry.host.remote(node, self._device(node), lost))
                return ray.get(getattr(host, method).remote(*arguments))
            except (*_GONE, DeviceLost, HostGone) as error:
                lost, cause = number, error
        raise StudyStopped(host_died(cause or RuntimeError())) from cause

    def _device(self, node: str) -> str:
        """Id of a node's first GPU, as trials there get it: users may have hidden some; empty on CPUs."""
        if self._kind == "CPU":
            return ""
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        asked = ray.remote(_gpu_id).options(num_cpus=0, num_gpus=1e-4, scheduling_strategy=there)
        return str(ray.get(asked.remote()))

    def probe(self, jobs: Sequence[Job]) -> None:
        """Try out jobs on a host before anything is trained.

        Raises:
            InputError: what is not as it must be.
        """
        if problems := self._ask("probe", [job.to_dict() for job in jobs]):
            raise InputError(problems)

    def evaluate_base(self, split: str) -> dict[str, float]:
        """The base's figures, from any host."""
        return dict(self._ask("evaluate_base", split))

    @property
    def resources(self) -> dict[str, float]:
        """What one trial asks for, in a whole run: its share of a GPU, or of the cores of the smallest node now."""
        if self._kind == "GPU":
            return {"cpu": 0, "gpu": share(1, self.seats)}
        return {"cpu": share(min((n["Resources"]["CPU"] for n in nodes_with("CPU")), default=1), self.seats), "gpu": 0}

    def free(self, name: str) -> None:
        """Empty the seat of a trial whose process is gone."""
        for host in ray.get(self._registry.hosts.remote()):
            host.free.remote(name)

    def run(self, source: Source, check: Callable[[], None] = _never) -> None:
        """Run all jobs of a source; returns when each has ended.

        Args:
            source: of the jobs.
            check: raises if the run is to end.

        Raises:
            StudyStopped: something outside the trials keeps them from going on.
        """
        count = source.remaining()
        if not count:
            return
        judge = _Judge(source, self.free, check)
        asked = self.resources
        slots = Slots(asked, waiting=0 if self._gate is None else 1)
        tuner = tune.Tuner(
            Trial,
            tune_config=tune.TuneConfig(
                search_alg=_Proposer(source, judge, slots, {"registry": self._name, **asked}),
                scheduler=judge,
                num_samples=count,
                reuse_actors=True,
                trial_name_creator=_trial_name,
                trial_dirname_creator=_trial_name,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(self._folder / "t"),
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
        shutil.rmtree(self._folder / "t", ignore_errors=True)

    def close(self) -> None:
        """End the private Ray, or leave the cluster."""
        stop_ray()


def _gpu_id() -> str:
    return str(ray.get_gpu_ids()[0])


def start_ray(address: str | None, workspace: Path) -> None:
    """Join a cluster, or start a private Ray with its files in ``workspace``.

    Raises:
        InputError: it can't be reached.
    """
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        options |= {"address": "local", "include_dashboard": False, "_temp_dir": str(workspace)}
    else:
        options["address"] = address
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.AuthenticationError) as error:
        where = "this machine" if address is None else f"address {address!r}"
        raise InputError(f"{where}: Ray can't be reached: {str(error).strip().splitlines()[-1]}") from error


def stop_ray() -> None:
    """End the private Ray, or leave the cluster; without effect where there is none."""
    ray.shutdown()


def admit(gate: Gate, wait: float) -> None:
    """See that trials can run on the nodes of the cluster that was joined.

    Args:
        gate: that the nodes must pass.
        wait: seconds to wait for the first of them.

    Raises:
        InputError: there is none in time, or one does not fit.
    """
    nodes = wait_for(training_nodes, wait)
    if not nodes:
        largest = "largest node has 0 CPU and 0 GPU; --wait SECONDS waits for nodes that are still to come"
        raise InputError(f"each trial asks a share of a CPU or of a GPU; {largest}")
    if problems := gate.admit(nodes):
        raise InputError(problems)


class Slots:
    """How many trials Tune may hold: those that can run at once on the nodes there are now, and some that wait.

    Args:
        asked: what a trial asks for.
        waiting: trials that wait; on a cluster one, which is what makes an autoscaler add a node.
    """

    def __init__(self, asked: Mapping[str, float], waiting: int) -> None:
        self._kind, self._asked = ("GPU", asked["gpu"]) if asked["gpu"] else ("CPU", asked["cpu"])
        self._waiting = waiting
        self._until, self._count = 0.0, 1

    def __call__(self) -> int:
        if time.monotonic() > self._until:  # Tune asks at every event
            self._until = time.monotonic() + 0.5
            there = [n["Resources"][self._kind] for n in nodes_with(self._kind)]
            self._count = max(1, sum(int(whole / self._asked + 1e-6) for whole in there) + self._waiting)
        return self._count


def _trial_name(trial: Any) -> str:
    return str(trial.config["name"])


def share(whole: float, parts: int) -> float:
    """One part of a resource, rounded down to the 1e-4 that Ray counts in: rounded up, the last part would not fit."""
    return math.floor(1e4 * whole / parts) / 1e4
