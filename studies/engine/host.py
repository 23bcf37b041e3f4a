"""The host: the actor that owns the packs of one device, and the registry that makes one host for each device.

Trials ask a host to advance; it steps all that wait in one pass, admits joins at every step, and lingers a moment for
trials that have just reported, so that the pack stays full.
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
from studies.process.errors import DeviceLost, HostGone, SeatLost, StudyStopped, Superseded
from studies.trials.messages import Job, Report

Result = TypeVar("Result")
ENGINE = "studies.engine.packs:Engine"
_ON_CPUS = {
    # glibc would give the memory of a step back to the system, and get it anew, page by page, in the next
    "MALLOC_MMAP_THRESHOLD_": os.environ.get(
        "MALLOC_MMAP_THRESHOLD_", str(1 << 25)
    ),  # the most it takes
    "MALLOC_TRIM_THRESHOLD_": os.environ.get("MALLOC_TRIM_THRESHOLD_", str(1 << 32)),
}
_LOOK_S = 0.05  # between two looks for the text
_LINGER_S = 0.1  # longest wait for trials that are between two reports


class Host:
    """Serves ``attach``, ``advance`` and ``detach`` of many trials with one engine; made by the :class:`Registry`.

    Every incarnation of a trial process has its own token: Tune may start a process for a trial, hand the trial to
    another, and stop the first, whose late messages must not disturb the second.
    """

    def __init__(self, engine: Mapping[str, Any], text_key: bytes) -> None:
        options = dict(engine)
        module, _, name = options.pop("engine", ENGINE).partition(":")
        make = getattr(importlib.import_module(module), name)  # torch is imported in the host alone
        # one thread computes: on a CPU a second one with a team of OpenMP threads would halve the speed of both
        self._thread = ThreadPoolExecutor(1)
        text = _text(text_key)
        self._engine = self._thread.submit(lambda: make(**options, blocks=text)).result()
        self._builder = ThreadPoolExecutor(1)  # makes seats while the others go on
        self._tokens: dict[str, str] = {}
        self._waiting: dict[str, asyncio.Future[Report]] = {}
        self._between: dict[
            str, float
        ] = {}  # trials that have just reported -> when to stop waiting for them
        self._suspects: set[str] = (
            set()
        )  # trials of a pass that failed; each goes alone until its next report
        self._operations: list[tuple[asyncio.Future[Any], Callable[[], Any]]] = []
        self._wake = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None
        self._gone = False  # its device is lost

    async def attach(
        self, job: dict[str, Any], token: str, seen: int, alone: bool = False
    ) -> Report | None:
        """Take a seat; a second incarnation of a trial takes over from the first.

        Args:
            job: to train.
            token: of the incarnation.
            seen: the last step that the driver knows.
            alone: whether it is to train alone until its next report, for it may be what costs hosts their devices.

        Returns:
            The report that the checkpoint holds, if the driver has seen less than it.
        """
        name = job["name"]
        if name in self._tokens:  # its checkpoint is not to change while it is read
            await self._between_passes(lambda: self._release(name, Superseded(name)))
        occupant = await self._compute(self._engine.build, Job.from_dict(job), thread=self._builder)

        def take() -> Report | None:
            self._release(name, Superseded(name))
            self._engine.attach(occupant)
            self._tokens[name] = token
            self._expect(name)  # it will ask to advance at once
            if alone:
                self._suspects.add(name)
            stored: Report | None = self._engine.stored_report(name, seen)
            return stored

        return await self._between_passes(take)

    async def detach(self, name: str, token: str) -> None:
        """Leave the seat; without effect for an incarnation that has been superseded."""

        def leave() -> None:
            if self._tokens.get(name) == token:
                self._release(name, SeatLost(name))

        await self._between_passes(leave)

    async def free(self, name: str) -> None:
        """Empty the seat of a trial whose process is gone."""
        await self._between_passes(lambda: self._release(name, SeatLost(name)))

    async def advance(self, name: str, token: str) -> Report:
        """Train until the trial's next report.

        Raises:
            SeatLost: the trial has no seat here.
            Superseded: a newer process of the trial has it.
            DeviceLost: the device takes no more work.
            HostGone: it has been so since before.
        """
        if self._gone:
            raise HostGone(name)
        if self._tokens.get(name) != token:
            raise Superseded(name) if name in self._tokens else SeatLost(name)
        self._waiting[name] = future = asyncio.get_running_loop().create_future()
        self._between.pop(name, None)
        self._start()
        report: Report = await future
        return report

    async def evaluate_base(self, split: str) -> dict[str, float]:
        """The figures of the base alone on one split."""
        return await self._compute(self._engine.evaluate_base, split)

    async def probe(self, jobs: list[dict[str, Any]]) -> list[str]:
        """What is not as it must be with these jobs on this base; nothing, if all is well."""
        from hylorada import InputError

        def check() -> list[str]:
            try:
                self._engine.probe([Job.from_dict(job) for job in jobs])
            except InputError as error:
                return error.problems
            return []

        return await self._compute(check)

    async def find_seats(self, batch_size: int) -> int:
        """The pack size at which this device does most."""
        return await self._compute(self._engine.find_seats, batch_size)

    async def _compute(
        self,
        function: Callable[..., Result],
        *arguments: Any,
        thread: ThreadPoolExecutor | None = None,
    ) -> Result:
        """The function's result; by default from the thread of the passes, after the one under way."""
        if self._gone:
            raise HostGone
        try:
            return await asyncio.get_running_loop().run_in_executor(
                thread or self._thread, function, *arguments
            )
        except Exception as error:
            if (told := self._told(error)) is error:
                raise
            raise told from error

    def _expect(self, name: str) -> None:
        """Linger for this trial."""
        self._between[name] = time.monotonic() + _LINGER_S

    def _release(self, name: str, reason: Exception) -> None:
        self._tokens.pop(name, None)
        self._between.pop(name, None)
        waiting = self._waiting.pop(name, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(reason)
        self._engine.detach(name)

    def _start(self) -> None:
        self._wake.set()
        if self._loop_task is None or self._loop_task.done():
            self._loop_task = asyncio.create_task(self._serve())

    async def _between_passes(self, operation: Callable[[], Result]) -> Result:
        """Run an operation when no pass is under way; on the loop, where all book-keeping is done."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._operations.append((future, operation))
        self._start()
        return await future

    async def _serve(self) -> None:
        while True:
            self._run_operations()
            if self._operations:
                continue
            if not self._waiting or self._lingers():
                await self._sleep()
                continue
            names = self._next_pass()
            try:
                results = await asyncio.get_running_loop().run_in_executor(
                    self._thread, self._engine.advance, names
                )
            except Exception as error:
                results = self._part(names, error)
            for name, result in results.items():
                self._answer(name, result)
            if self._gone:
                for name in list(self._waiting):
                    self._answer(name, HostGone(name))

    def _next_pass(self) -> list[str]:
        """All that wait, or one of those that may have broken a pass."""
        names = [n for n in self._waiting if n in self._tokens]
        return [n for n in names if n in self._suspects][:1] or names

    def _part(self, names: list[str], error: Exception) -> dict[str, Any]:
        """What trials are told whose pass failed as a whole: one that was alone, why; more than one, to come again."""
        told = self._told(error)
        if len(names) == 1 or isinstance(told, DeviceLost):
            return dict.fromkeys(names, told)
        self._suspects.update(names)
        for (
            name
        ) in names:  # some may have been updated, some not: they go on from their checkpoints
            self._release(name, SeatLost(name))
        return {}

    def _told(self, error: Exception) -> Exception:
        """What a caller is told; with its device the host is lost."""
        from hylorada.runtime.devices import is_lost  # imports torch, as the host alone may

        if not is_lost(error):
            return error
        self._gone = True
        return DeviceLost(str(error).strip().splitlines()[0])

    def _run_operations(self) -> None:
        operations, self._operations = self._operations, []
        for future, operation in operations:
            if future.done():  # its caller has gone
                continue
            try:
                if self._gone:
                    raise HostGone
                future.set_result(operation())
            except Exception as error:
                future.set_exception(self._told(error))

    def _lingers(self) -> bool:
        """Whether a trial that has just reported is still worth waiting for."""
        now = time.monotonic()
        self._between = {n: until for n, until in self._between.items() if until > now}
        return bool(self._between)

    async def _sleep(self) -> None:
        self._wake.clear()
        now = time.monotonic()
        timeout = max(self._between.values()) - now if self._waiting and self._between else None
        try:
            await asyncio.wait_for(self._wake.wait(), timeout)
        except TimeoutError:
            self._between.clear()

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
            self._release(name, SeatLost(name))  # its process may die before it says so
        else:
            self._expect(name)


def _text(key: bytes) -> Any:
    """The text, once the driver has put its reference there: hosts start before it is tokenised."""
    while (found := _internal_kv_get(key)) is None:
        time.sleep(_LOOK_S)
    return ray.get(pickle.loads(found))


class Registry:
    """Knows the host of each device; makes it on demand, and again when it has died.

    Args:
        engine: arguments of every host's engine, and in ``engine``, as ``module:Class``, which it is, if not ours.
        text_key: where in Ray's own store of keys hosts find the text, as soon as the driver has it.
        gate: for nodes that join later; None where there can't be any.
    """

    def __init__(self, engine: Mapping[str, Any], text_key: bytes, gate: Gate | None) -> None:
        self._engine, self._text_key, self._gate = engine, text_key, gate
        self._hosts: dict[tuple[str, str], tuple[Any, str]] = {}
        self._lock = asyncio.Lock()

    async def host(self, node: str, gpu: str, lost: str | None = None) -> tuple[Any, str]:
        """The host of a device.

        Args:
            node: Ray's id of the node.
            gpu: id of the GPU on it; empty for the CPU.
            lost: id of the host that the caller has found dead.

        Returns:
            The actor's handle and its id, which no later host of the device shares.

        Raises:
            StudyStopped: the node has joined since the start, and does not fit.
        """
        async with self._lock:
            await self._admit(node)
            known = self._hosts.get((node, gpu))
            if known is not None and known[1] == lost:
                ray.kill(known[0])  # one whose device is lost is still there, and holds memory
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
        """Handles of all hosts made so far."""
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
                    **({} if gpu else _ON_CPUS),
                }
            },
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        return actor.remote(engine, self._text_key)


def start_registry(name: str, engine: Mapping[str, Any], text_key: bytes, gate: Gate | None) -> Any:
    """Start the registry on this node, where it lives as long as the driver."""
    here = ray.get_runtime_context().get_node_id()
    actor = ray.remote(Registry).options(
        name=name,
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
    )
    return actor.remote(engine, text_key, gate)
