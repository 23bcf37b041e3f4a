"""The host: the actor that owns the packs of one device.

Trials call a host's ``advance``. The host steps all trials in one pass and admits new ones at every
step. A trial that has reported trains on at once: while its report is written, stored by the driver
and answered, it takes the steps up to the one before its next report. It waits there until it is
asked for that report, so its checkpoint is never ahead of the driver by more than one report. Where
reports leave no steps in between, the host waits a moment for the answer, so that the pack stays
full.
"""

import asyncio
import importlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import ray
from ray import cloudpickle as pickle
from ray.experimental.internal_kv import _internal_kv_get

from studies.process.errors import DeviceLost, HostGone, SeatLost, Superseded
from studies.process.phases import phase
from studies.trials.messages import Job, Report

Result = TypeVar("Result")
ENGINE = "studies.engine.packs:Engine"
_POLL_S = 0.05  # between two checks for the text
_LINGER_S = 0.1  # longest wait for trials that have just been answered
_WRITE_S = 1.0  # longest wait for reports that are being written


class Host:
    """The actor that serves many trials with one engine; made by the registry.

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
        # Reports that become answers as soon as their files are written.
        self._saving: dict[str, asyncio.Task[None]] = {}
        # Ends of trials that diverged or failed running ahead; nobody has asked for them yet.
        self._early: dict[str, Report | Exception] = {}
        self._ended: list[str] = []  # trials that leave before the next pass
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
            self._expect(name, _LINGER_S)  # its first call of `advance` follows at once
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
        """Free the seat of a trial that is stopped or whose process is gone."""
        await self._between_passes(lambda: self._release(name, SeatLost(name)))

    async def advance(self, name: str, token: str) -> Report:
        """Train until the trial's next report.

        Raises:
            SeatLost: the trial has no seat here.
            Superseded: a newer process of the trial has the seat.
            DeviceLost: the device was lost in a pass of this trial.
            HostGone: the device was lost while the trial had no part in a pass.
        """
        if self._gone and name not in self._early:
            raise HostGone(name)
        if self._tokens.get(name) != token:
            raise Superseded(name) if name in self._tokens else SeatLost(name)
        self._waiting[name] = future = asyncio.get_running_loop().create_future()
        self._expected.pop(name, None)
        if name in self._early:
            self._answer(name, self._early.pop(name))
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

    def _expect(self, name: str, seconds: float) -> None:
        """Wait a moment for this trial before the next pass, unless it runs ahead."""
        self._expected[name] = time.monotonic() + seconds

    def _release(self, name: str, reason: Exception) -> None:
        self._tokens.pop(name, None)
        self._expected.pop(name, None)
        self._early.pop(name, None)
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
            if self._gone:
                for name in [n for n in self._waiting if n not in self._saving]:
                    self._answer(name, HostGone(name))
            names = self._next_pass()
            patience = self._patience() if names else None
            if patience is None or patience > 0:
                await self._sleep(patience)
                continue
            try:
                results = await asyncio.get_running_loop().run_in_executor(
                    self._thread, self._engine.advance, names
                )
            except Exception as error:
                results = self._results_of_failed(names, error)
            for name, result in results.items():
                if isinstance(result, Future):
                    saved = self._answer_when_saved(name, self._tokens[name], result)
                    self._saving[name] = asyncio.create_task(saved)
                    if not self._engine.is_done(name):
                        self._expect(name, _WRITE_S)
                elif result is not None:
                    self._answer(name, result)

    def _next_pass(self) -> list[str]:
        """Return all trials that can take a step, or a single suspect if there is one."""
        names = [] if self._gone else [n for n in self._tokens if self._can_step(n)]
        return [n for n in names if n in self._suspects][:1] or names

    def _can_step(self, name: str) -> bool:
        """Return whether a trial is asked for its next report or may run ahead of the question."""
        if name in self._early:
            return False
        asked = name in self._waiting and name not in self._saving
        return asked or self._engine.runs_ahead(name)

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
        self._wake.set()  # those that wait must hear of it, also if no pass is under way
        return DeviceLost(str(error).strip().splitlines()[0])

    def _run_operations(self) -> None:
        ended, self._ended = self._ended, []
        for name in ended:
            self._release(name, SeatLost(name))
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

    def _patience(self) -> float:
        """Return for how many seconds to wait for trials that have just reported.

        Those that run ahead aren't waited for.
        """
        now = time.monotonic()
        self._expected = {n: until for n, until in self._expected.items() if until > now}
        held = [t for n, t in self._expected.items() if not self._engine.runs_ahead(n)]
        return max(held, default=now) - now

    async def _sleep(self, seconds: float | None) -> None:
        self._wake.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)

    async def _answer_when_saved(self, name: str, token: str, saved: Future[Report]) -> None:
        """Answer with a report when its files are written, or with the error if they can't be."""
        result: Report | Exception
        try:
            result = await asyncio.wrap_future(saved)
        except Exception as error:  # e.g. a full disk, which must not fail the other trials
            result = error
        if self._saving.get(name) is asyncio.current_task():
            del self._saving[name]
        if self._tokens.get(name) == token:
            self._answer(name, result)

    def _answer(self, name: str, result: Report | Exception) -> None:
        """Give a trial its report or error, or keep it until the trial asks for it."""
        self._suspects.discard(name)
        if name not in self._waiting or name in self._saving:
            self._early[name] = result
            return
        waiting = self._waiting.pop(name)
        if waiting.done():
            return
        if isinstance(result, Exception):
            waiting.set_exception(result)
        else:
            waiting.set_result(result)
        if isinstance(result, Exception) or result.done:
            self._ended.append(name)  # its process may die before it calls `detach`
            self._start()
        else:
            self._expect(name, _LINGER_S)


@phase("host: wait for the text")
def _text(key: bytes) -> Any:
    """Wait until the driver has stored a reference to the text under this key, and return the text.

    Hosts start before the text is tokenised.
    """
    while (reference := _internal_kv_get(key)) is None:
        time.sleep(_POLL_S)
    return ray.get(pickle.loads(reference))
