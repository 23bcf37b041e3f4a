"""Ray for the length of a study: the devices of this machine or of a cluster, and a host on each."""

import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import cloudpickle
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_put
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hylorada import InputError
from studies.engine.host import start_registry
from studies.engine.nodes import Gate, nodes_with, training_nodes, wait_for
from studies.engine.ray_start import is_theirs, start_ray, stop_ray
from studies.process.errors import HOST_TRIES, DeviceLost, HostGone, StudyStopped, host_died

if TYPE_CHECKING:
    from studies.engine.tune_loop import Source
    from studies.trials.messages import Job

_GONE = (  # a node, or a process on it
    ray.exceptions.RayActorError,
    ray.exceptions.ActorUnschedulableError,
    ray.exceptions.TaskUnschedulableError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.WorkerCrashedError,
)


def _never() -> None:
    """The check of a run that nothing but its own end ends."""


class Cluster:
    """Ray for the length of a study: a private one on this machine, or a cluster that is joined.

    The private one needs :func:`make_private` before Ray is imported.

    Args:
        address: of a cluster; None starts a private Ray.
        seats: trials in a pack; None is 4 on CPUs, and what a few steps on a GPU show to be best there.
        workspace: a folder with a short path for Ray's files.
        batch_size: of most trials.
        engine: arguments of every host's engine.
        blocks: the tokenised text; None leaves it to :meth:`give`.
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
        workspace: Path,
        blocks: Any = None,
        gate: Gate | None = None,
    ) -> None:
        self._address, self._folder, self._gate = address, workspace, gate
        if not ray.is_initialized():  # a cluster has been joined before, to look at its nodes
            start_ray(address, workspace)
        self._kind = (
            "GPU" if nodes_with("GPU") else "CPU"
        )  # for good: what joins later is no reason to change
        self._name = f"hylorada-{uuid.uuid4().hex}"
        self._text_key = f"hylorada-text-{uuid.uuid4().hex}".encode()
        self._asked_seats, self._batch_size = seats, batch_size
        self._registry = start_registry(self._name, engine, self._text_key, gate)
        if address is None:  # the first host imports what it needs while the driver does
            here = ray.get_runtime_context().get_node_id()
            self._registry.host.remote(here, self._device(here))
        if blocks is not None:
            self.give(blocks)

    def give(self, blocks: Any) -> None:
        """Hand over the tokenised text, for which hosts wait.

        Its reference, some hundred bytes, stays in a joined cluster: taking it back could hang where that is gone.
        """
        self._blocks = ray.put(blocks)  # lives as long as the driver
        _internal_kv_put(self._text_key, cloudpickle.dumps(self._blocks))

    @cached_property
    def seats(self) -> int:
        """Trials in a pack."""
        return self._asked_seats or (
            self._measured_seats(self._batch_size) if self._kind == "GPU" else 4
        )

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

    def probe(self, jobs: Sequence["Job"]) -> None:
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
        return {
            "cpu": share(
                min((n["Resources"]["CPU"] for n in nodes_with("CPU")), default=1), self.seats
            ),
            "gpu": 0,
        }

    def free(self, name: str) -> None:
        """Empty the seat of a trial whose process is gone."""
        for host in ray.get(self._registry.hosts.remote()):
            host.free.remote(name)

    def run(self, source: "Source", check: Callable[[], None] = _never) -> None:
        """Run all jobs of a source; returns when each has ended.

        Args:
            source: of the jobs.
            check: raises if the run is to end.

        Raises:
            StudyStopped: something outside the trials keeps them from going on.
        """
        from studies.engine.tune_loop import (
            run_trials,
        )  # takes seconds to import; hosts start meanwhile

        waiting = 0 if self._gate is None else 1
        folder = self._folder / "t"
        run_trials(
            source,
            check,
            self.free,
            registry=self._name,
            asked=self.resources,
            waiting=waiting,
            folder=folder,
        )

    def close(self) -> None:
        """End the private Ray, or leave the cluster."""
        self.leave()
        stop_ray(self._address)

    def leave(self) -> None:
        """End the hosts on a Ray that goes on; another ends them itself."""
        if is_theirs():
            for host in ray.get(self._registry.hosts.remote()):
                ray.kill(host)
            ray.kill(self._registry)
            _internal_kv_del(self._text_key)


def _gpu_id() -> str:
    return str(ray.get_gpu_ids()[0])


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


def share(whole: float, parts: int) -> float:
    """One part of a resource, rounded down to the 1e-4 that Ray counts in: rounded up, the last part would not fit."""
    return math.floor(1e4 * whole / parts) / 1e4
