"""The Ray that a study runs on: devices of this machine or of a cluster, with a host on each."""

import math
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import cloudpickle
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_put
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hylorada import InputError
from studies.analysis.forecast.forecast import Place
from studies.engine.nodes import Gate, nodes_with, training_nodes, wait_for
from studies.engine.ray_start import is_theirs, start_ray, stop_ray
from studies.engine.registry import start_registry
from studies.process.errors import HOST_TRIES, DeviceLost, HostGone, StudyStopped, host_died
from studies.process.phases import phase

if TYPE_CHECKING:
    from studies.engine.tune_loop import Source
    from studies.trials.messages import Job

_ANSWER_S = 2.0  # for a question to the hosts that nothing depends on
_CHECK_S = 1.0  # time between two checks of a run while it waits for a host
_GONE = (  # a node, or a process on it
    ray.exceptions.RayActorError,
    ray.exceptions.ActorUnschedulableError,
    ray.exceptions.TaskUnschedulableError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.WorkerCrashedError,
)


def _never() -> bool:
    """Do nothing: the default check of a run that only ends by itself."""
    return False


class Cluster:
    """Ray during a study: either a private Ray on this machine or an existing cluster.

    A private Ray needs :func:`make_private` before Ray is imported.

    Args:
        address: address of a cluster; None starts a private Ray.
        seats: trials in a pack; None means 4 on CPUs and a short measurement on GPUs.
        workspace: a folder with a short path for Ray's files.
        batch_size: batch size of most trials.
        engine: arguments of every host's engine.
        blocks: the tokenised text; None leaves it to :meth:`give`.
        gate: check that nodes must pass that join a cluster later.

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
        workspace: Path,
        blocks: Any = None,
        gate: Gate | None = None,
    ) -> None:
        self._address, self._folder, self._gate = address, workspace, gate
        if not ray.is_initialized():  # a cluster is already joined: its nodes were checked first
            start_ray(address, workspace)
        # Fixed from here on, whatever nodes join later.
        self._kind = "GPU" if nodes_with("GPU") else "CPU"
        spread = self._kind == "GPU" and engine.get("device_map", "none") != "none"
        self._gpus = visible_gpus(nodes_with("GPU")) if spread else ""
        self._name = f"hylorada-{uuid.uuid4().hex}"
        self._text_key = f"hylorada-text-{uuid.uuid4().hex}".encode()
        self._requested_seats, self._batch_size = seats, batch_size
        self._registry = start_registry(self._name, engine, self._text_key, gate, self._gpus)
        if address is None:  # the first host runs its imports while the driver runs its own
            here = ray.get_runtime_context().get_node_id()
            self._registry.host.remote(here, self._device(here))
        if blocks is not None:
            self.give(blocks)

    def give(self, blocks: Any) -> None:
        """Hand the tokenised text to the hosts, which wait for it.

        The reference, a few hundred bytes, stays in a joined cluster: deleting it could hang if the
        cluster is gone.
        """
        self._blocks = ray.put(blocks)  # lives as long as the driver
        _internal_kv_put(self._text_key, cloudpickle.dumps(self._blocks))

    @cached_property
    def seats(self) -> int:
        """Number of trials in a pack."""
        return self._requested_seats or (
            self._measured_seats(self._batch_size) if self._kind == "GPU" else 4
        )

    def _measured_seats(self, batch_size: int) -> int:
        return int(self._call_host("find_seats", batch_size))

    def _call_host(self, method: str, *arguments: Any, check: Callable[[], object] = _never) -> Any:
        """Call a method of any host and return its result; replace a host that dies meanwhile.

        Args:
            method: name of the host's method.
            arguments: its arguments.
            check: called every second; what it raises ends the wait, and the host works on.
        """
        number, lost, cause = None, None, None
        for attempt in range(HOST_TRIES):
            nodes = wait_for(lambda: nodes_with(self._kind), 60)
            if not nodes:
                raise StudyStopped("no node of the cluster is left to train on")
            # Try nodes in turn: Ray lists a dead node for a few more seconds.
            node = nodes[attempt % len(nodes)]["NodeID"]
            try:
                host, number = ray.get(self._registry.host.remote(node, self._device(node), lost))
                return _awaited(getattr(host, method).remote(*arguments), check)
            except (*_GONE, DeviceLost, HostGone) as error:
                lost, cause = number, error
        raise StudyStopped(host_died(cause or RuntimeError())) from cause

    def _device(self, node: str) -> str:
        """Return the id of a node's first GPU as trials on that node see it; empty on CPUs.

        Only a task on the node knows it: the user may have hidden some of its GPUs.
        """
        if self._kind == "CPU" or self._gpus:
            return self._gpus
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        task = ray.remote(_gpu_id).options(num_cpus=0, num_gpus=1e-4, scheduling_strategy=there)
        return str(ray.get(task.remote()))

    @phase("probe, after the host's start")
    def probe(self, jobs: Sequence["Job"], check: Callable[[], object] = _never) -> None:
        """Try jobs on a host before anything is trained.

        Args:
            jobs: the jobs.
            check: called every second; raises if the run should end, which leaves the probe to end
                with its host.

        Raises:
            InputError: a job can't run on this base; all problems are listed.
        """
        values = [job.to_dict() for job in jobs]
        if problems := self._call_host("probe", values, check=check):
            raise InputError(problems)

    @phase("base on the test split")
    def evaluate_base(self, split: str) -> dict[str, float]:
        """Return the metrics of the base alone on one split, computed by any host."""
        return dict(self._call_host("evaluate_base", split))

    @property
    def place(self) -> Place:
        """The devices that trials train on, as they are now."""
        amounts = [node["Resources"][self._kind] for node in nodes_with(self._kind)]
        units = max(1, round(sum(amounts)))
        hosts = units if self._kind == "GPU" and not self._gpus else max(1, len(amounts))
        return Place(self._kind, hosts, units)

    def peak_memory(self) -> int | None:
        """Return the peak memory of the largest host in bytes; None if no host answers at once."""
        with suppress(ray.exceptions.RayError):
            hosts = ray.get(self._registry.hosts.remote(), timeout=_ANSWER_S)
            peaks = ray.get([host.peak_memory.remote() for host in hosts], timeout=_ANSWER_S)
            return max(peaks, default=None)
        return None

    @property
    def resources(self) -> dict[str, float]:
        """Resources that each trial requests for the whole run.

        They are its share of a GPU, or of the cores that the smallest node has now.
        """
        if self._kind == "GPU":
            gpus = 1 + self._gpus.count(",")  # Ray gives no trial a share of several GPUs
            return {"cpu": 0, "gpu": share(1, math.ceil(self.seats / gpus))}
        return {
            "cpu": share(
                min((n["Resources"]["CPU"] for n in nodes_with("CPU")), default=1), self.seats
            ),
            "gpu": 0,
        }

    def free(self, name: str) -> None:
        """Free the seat of a trial that is stopped or whose process is gone."""
        # Should this fail, the seat is freed when its process leaves, or another takes it over.
        with suppress(ray.exceptions.RayError):
            for host in ray.get(self._registry.hosts.remote()):
                host.free.remote(name)

    def run(self, source: "Source", check: Callable[[], bool] = _never) -> None:
        """Run all jobs of a source and return when each has ended.

        Args:
            source: source of the jobs.
            check: called at each report and every second; raises if the run should end, and returns
                whether the source has new jobs.

        Raises:
            StudyStopped: a fault outside the trials keeps them from continuing.
        """
        # This import takes seconds, in which the hosts start.
        from studies.engine.tune_loop import run_trials

        waiting = 0 if self._gate is None else 1
        folder = self._folder / "t"
        run_trials(
            source,
            check,
            self.free,
            registry=self._name,
            resources=self.resources,
            waiting=waiting,
            folder=folder,
        )

    def close(self) -> None:
        """End the private Ray, or leave the cluster."""
        self.leave()
        stop_ray(self._address)

    def leave(self) -> None:
        """Stop the hosts on the calling program's Ray; any other Ray stops them at its own end."""
        if is_theirs():
            for host in ray.get(self._registry.hosts.remote()):
                ray.kill(host)
            ray.kill(self._registry)
            _internal_kv_del(self._text_key)


def visible_gpus(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Return the ids of this machine's GPUs, separated by commas, as Ray and CUDA name them.

    Args:
        nodes: Ray's nodes with GPUs.

    Raises:
        InputError: there are other nodes.
    """
    if len(nodes) > 1:
        raise InputError("device_map uses the GPUs of one machine; this Ray has several with GPUs")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = sum(round(node["Resources"]["GPU"]) for node in nodes)
    return hidden or ",".join(map(str, range(count)))


def _awaited(reference: Any, check: Callable[[], object]) -> Any:
    """Return a result of Ray, and call a check every second until it is there."""
    while not ray.wait([reference], timeout=_CHECK_S)[0]:
        check()
    return ray.get(reference)


def _gpu_id() -> str:
    return str(ray.get_gpu_ids()[0])


def admit(gate: Gate, wait: float) -> None:
    """Check that trials can run on the nodes of the joined cluster.

    Args:
        gate: check that the nodes must pass.
        wait: seconds to wait for the first node.

    Raises:
        InputError: no node appears in time, or a node fails the check.
    """
    nodes = wait_for(training_nodes, wait)
    if not nodes:
        largest = "largest node has 0 CPU and 0 GPU; --wait SECONDS waits for nodes to join"
        raise InputError(f"each trial needs a share of a CPU or of a GPU; {largest}")
    if problems := gate.admit(nodes):
        raise InputError(problems)


def share(whole: float, parts: int) -> float:
    """Return one of ``parts`` equal parts of a resource, rounded down to Ray's unit of 1e-4.

    Rounded up, the last part would not fit.
    """
    return math.floor(1e4 * whole / parts) / 1e4
