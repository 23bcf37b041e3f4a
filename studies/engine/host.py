"""The actor that owns the packs of one device (the host), and the registry of all hosts.

Trials call a host's ``advance``. The host steps all waiting trials in one pass, admits new trials
at every step, and waits a moment for trials that have just reported, so that the pack stays full.
"""

import asyncio
import importlib
import os
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import ray
from ray import cloudpickle as pickle
from ray.experimental.internal_kv import _internal_kv_get
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hylorada.runtime.cores import available_cores
from studies.engine.nodes import Gate, node_of
from studies.process.environment import ALLOCATOR
from studies.process.errors import DeviceLost, HostGone, SeatLost, StudyStopped, Superseded
from studies.process.phases import phase
from studies.trials.messages import Job, Report

Result = TypeVar("Result")
ENGINE = "studies.engine.packs:Engine"
_POLL_S = 0.05  # between two checks for the text
_LINGER_S = 0.1  # longest wait for trials that have just reported


class Host:
    """The actor that serves many trials with one engine; made by the :class:`Registry`.

    Every process of a trial has its own token. Tune may start a process for a trial, give the trial
    to another one, and stop the first, whose late calls must not disturb the second.
    """

    def __init__(self, engine: Mapping[str, Any], text_key: bytes) -> None:
        options = dict(engine)
        module, _, name = options.pop("engine", ENGINE).partition(":")
        with phase("host: torch and transformers"):
            make = getattr(importlib.import_module(module), name)  # only the host imports torch
        # Only one thread computes: on a CPU, a second team of OpenMP threads would halve the speed
        # of both.
        self._thread = ThreadPoolExecutor(1)
        text = _text(text_key)
        with phase("host: base"):
            self._engine = self._thread.submit(lambda: make(**options, blocks=text)).result()
        self._builder = ThreadPoolExecutor(1)  # builds seats while other trials train
        self._tokens: dict[str, str] = {}
        self._waiting: dict[str, asyncio.Future[Report]] = {}
        # Trials that have just reported, each with the time at which to stop waiting for it.
        self._expected: dict[str, float] = {}
        # Trials of a pass that failed. Each trains alone until its next report.
        self._suspects: set[str] = set()
        self._operations: list[tuple[asyncio.Future[Any], Callable[[], Any]]] = []
        self._wake = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None
        self._gone = False  # whether the device is lost

    async def attach(
        self, job: dict[str, Any], token: str, seen: int, alone: bool = False
    ) -> Report | None:
        """Take a seat for a trial; a second process of the trial takes over from the first.

        Args:
            job: the job to train.
            token: token of the trial's process.
            seen: the last step that the driver knows.
            alone: whether the trial must train alone until its next report, because it may be the
                one that makes hosts lose their devices.

        Returns:
            The report in the checkpoint, if it is newer than the last step that the driver knows.
        """
        name = job["name"]
        if name in self._tokens:  # the checkpoint must not change while it is read
            await self._between_passes(lambda: self._release(name, Superseded(name)))
        occupant = await self._compute(self._engine.build, Job.from_dict(job), thread=self._builder)

        def take() -> Report | None:
            self._release(name, Superseded(name))
            self._engine.attach(occupant)
            self._tokens[name] = token
            self._expect(name)  # its first call of `advance` follows at once
            if alone:
                self._suspects.add(name)
            stored: Report | None = self._engine.stored_report(name, seen)
            return stored

        return await self._between_passes(take)

    async def detach(self, name: str, token: str) -> None:
        """Release the seat of a trial, unless a newer process of the trial holds it."""

        def leave() -> None:
            if self._tokens.get(name) == token:
                self._release(name, SeatLost(name))

        await self._between_passes(leave)

    async def free(self, name: str) -> None:
        """Free the seat of a trial whose process is gone."""
        await self._between_passes(lambda: self._release(name, SeatLost(name)))

    async def advance(self, name: str, token: str) -> Report:
        """Train until the trial's next report.

        Raises:
            SeatLost: the trial has no seat here.
            Superseded: a newer process of the trial has the seat.
            DeviceLost: the device was lost in this pass.
            HostGone: the device was lost before this call, or while it waited for its pass.
        """
        if self._gone:
            raise HostGone(name)
        if self._tokens.get(name) != token:
            raise Superseded(name) if name in self._tokens else SeatLost(name)
        self._waiting[name] = future = asyncio.get_running_loop().create_future()
        self._expected.pop(name, None)
        self._start()
        report: Report = await future
        return report

    async def evaluate_base(self, split: str) -> dict[str, float]:
        """Return the metrics of the base alone on one split."""
        return await self._compute(self._engine.evaluate_base, split)

    async def probe(self, jobs: list[dict[str, Any]]) -> list[str]:
        """Return the problems of these jobs on this base; an empty list if there are none."""
        from hylorada import InputError

        def check() -> list[str]:
            try:
                self._engine.probe([Job.from_dict(job) for job in jobs])
            except InputError as error:
                return error.problems
            return []

        return await self._compute(check)

    async def peak_memory(self) -> int:
        """Return the peak memory so far in bytes, at once, also during a pass."""
        return int(self._engine.peak_memory())

    async def find_seats(self, batch_size: int) -> int:
        """Return the pack size with the highest throughput on this device."""
        return await self._compute(self._engine.find_seats, batch_size)

    async def _compute(
        self,
        function: Callable[..., Result],
        *arguments: Any,
        thread: ThreadPoolExecutor | None = None,
    ) -> Result:
        """Return a function's result; by default it runs between two passes, in their thread."""
        if self._gone:
            raise HostGone
        try:
            return await asyncio.get_running_loop().run_in_executor(
                thread or self._thread, function, *arguments
            )
        except Exception as error:
            if (translated := self._note_loss(error)) is error:
                raise
            raise translated from error

    def _expect(self, name: str) -> None:
        """Wait a moment for this trial before the next pass."""
        self._expected[name] = time.monotonic() + _LINGER_S

    def _release(self, name: str, reason: Exception) -> None:
        self._tokens.pop(name, None)
        self._expected.pop(name, None)
        waiting = self._waiting.pop(name, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(reason)
        self._engine.detach(name)

    def _start(self) -> None:
        self._wake.set()
        if self._loop_task is None or self._loop_task.done():
            self._loop_task = asyncio.create_task(self._serve())

    async def _between_passes(self, operation: Callable[[], Result]) -> Result:
        """Run an operation when no pass is under way, in the event loop, which owns all state."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._operations.append((future, operation))
        self._start()
        return await future

    async def _serve(self) -> None:
        while True:
            self._run_operations()
            if self._operations:
                continue
            if not self._waiting or self._expects():
                await self._sleep()
                continue
            names = self._next_pass()
            try:
                results = await asyncio.get_running_loop().run_in_executor(
                    self._thread, self._engine.advance, names
                )
            except Exception as error:
                results = self._results_of_failed(names, error)
            for name, result in results.items():
                self._answer(name, result)
            if self._gone:
                for name in list(self._waiting):
                    self._answer(name, HostGone(name))

    def _next_pass(self) -> list[str]:
        """Return all waiting trials, or a single suspect if there is one."""
        names = [n for n in self._waiting if n in self._tokens]
        return [n for n in names if n in self._suspects][:1] or names

    def _results_of_failed(self, names: list[str], error: Exception) -> dict[str, Any]:
        """Return the results of a pass that failed as a whole.

        A trial that was alone, or whose device was lost, gets the error. Several trials lose their
        seats and come back from their checkpoints, one at a time: some of them may have been
        updated in the failed pass and some not.
        """
        error = self._note_loss(error)
        if len(names) == 1 or isinstance(error, DeviceLost):
            return dict.fromkeys(names, error)
        self._suspects.update(names)
        for name in names:
            self._release(name, SeatLost(name))
        return {}

    def _note_loss(self, error: Exception) -> Exception:
        """Mark the host as gone if the error says that its device is lost, and return `DeviceLost`.

        Any other error is returned as it is.
        """
        from hylorada.runtime.devices import is_lost  # imports torch, as only the host may

        if not is_lost(error):
            return error
        self._gone = True
        return DeviceLost(str(error).strip().splitlines()[0])

    def _run_operations(self) -> None:
        operations, self._operations = self._operations, []
        for future, operation in operations:
            if future.done():  # the caller is gone
                continue
            try:
                if self._gone:
                    raise HostGone
                future.set_result(operation())
            except Exception as error:
                future.set_exception(self._note_loss(error))

    def _expects(self) -> bool:
        """Return whether a trial that has just reported is still worth waiting for."""
        now = time.monotonic()
        self._expected = {n: until for n, until in self._expected.items() if until > now}
        return bool(self._expected)

    async def _sleep(self) -> None:
        self._wake.clear()
        now = time.monotonic()
        timeout = max(self._expected.values()) - now if self._waiting and self._expected else None
        try:
            await asyncio.wait_for(self._wake.wait(), timeout)
        except TimeoutError:
            self._expected.clear()

    def _answer(self, name: str, result: Report | Exception | None) -> None:
        if result is None:
            return
        waiting = self._waiting.pop(name, None)
        self._suspects.discard(name)
        if waiting is None or waiting.done():
            return
        if isinstance(result, Exception):
            waiting.set_exception(result)
        else:
            waiting.set_result(result)
        if isinstance(result, Exception) or result.done:
            self._release(name, SeatLost(name))  # its process may die before it calls `detach`
        else:
            self._expect(name)


@phase("host: wait for the text")
def _text(key: bytes) -> Any:
    """Wait until the driver has stored a reference to the text under this key, and return the text.

    Hosts start before the text is tokenised.
    """
    while (reference := _internal_kv_get(key)) is None:
        time.sleep(_POLL_S)
    return ray.get(pickle.loads(reference))


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
