"""The actor that makes the hosts of all devices."""

import asyncio
import os
import uuid
from collections.abc import Mapping
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hylorada.runtime.cores import available_cores
from studies.engine.host import Host
from studies.engine.nodes import Gate, node_of
from studies.process.environment import ALLOCATOR
from studies.process.errors import StudyStopped
from studies.process.phases import phase


class Registry:
    """The actor that makes a host for each device on demand, and a new one when it has died.

    Args:
        engine: arguments of every host's engine. A key ``engine`` with ``module:Class`` replaces
            the default engine class.
        text_key: key in Ray's internal key-value store under which hosts find the text, as soon as
            the driver has it.
        gate: check for nodes that join later; None where no node can join.
        gpus: ids of the GPUs that one host owns together; empty for a host on each GPU.
    """

    @phase("registry: setup")
    def __init__(
        self, engine: Mapping[str, Any], text_key: bytes, gate: Gate | None, gpus: str
    ) -> None:
        self._engine, self._text_key, self._gate, self._gpus = engine, text_key, gate, gpus
        self._hosts: dict[tuple[str, str], tuple[Any, str]] = {}
        self._lock = asyncio.Lock()

    async def host(self, node: str, gpu: str, lost: str | None = None) -> tuple[Any, str]:
        """Return the host of a device.

        Args:
            node: Ray's id of the node.
            gpu: id of the GPU on it; empty for the CPU.
            lost: id of a host that the caller knows to be dead.

        Returns:
            The actor's handle and its id, which no later host of the device shares.

        Raises:
            StudyStopped: the node has joined since the start and does not pass the gate.
        """
        gpu = self._gpus or gpu
        async with self._lock:
            await self._admit(node)
            known = self._hosts.get((node, gpu))
            if known is not None and known[1] == lost:
                ray.kill(known[0])  # a host whose device is lost still runs and holds memory
                known = None
            if known is None:
                known = self._hosts[node, gpu] = self._make(node, gpu), uuid.uuid4().hex
            return known

    async def _admit(self, node: str) -> None:
        if self._gate is None or node in self._gate.admitted:
            return
        if problems := await asyncio.to_thread(self._gate.admit, [node_of(node)]):
            raise StudyStopped("\n".join(problems))

    async def hosts(self) -> list[Any]:
        """Return the handles of all hosts made so far."""
        return [handle for handle, _ in self._hosts.values()]

    def _make(self, node: str, gpu: str) -> Any:
        engine = {**self._engine, "device": "cuda" if gpu else "cpu"}
        actor = ray.remote(Host).options(
            num_cpus=0,
            max_concurrency=1000,
            runtime_env={
                "env_vars": {
                    "CUDA_VISIBLE_DEVICES": gpu,
                    "OMP_NUM_THREADS": str(available_cores()),
                    **({} if gpu else {k: os.environ.get(k, v) for k, v in ALLOCATOR.items()}),
                }
            },
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        return actor.remote(engine, self._text_key)


def start_registry(
    name: str, engine: Mapping[str, Any], text_key: bytes, gate: Gate | None, gpus: str = ""
) -> Any:
    """Start the registry on this node, so that it lives as long as the driver."""
    here = ray.get_runtime_context().get_node_id()
    actor = ray.remote(Registry).options(
        name=name,
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
    )
    return actor.remote(engine, text_key, gate, gpus)
