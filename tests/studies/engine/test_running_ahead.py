"""Trials train on while their reports are written and answered, up to the step before the next."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from studies.engine import host as host_module
from studies.process.errors import DeviceLost, HostGone, SeatLost, Superseded
from studies.trials.messages import Job, Report

_DUE = (2, 5, 6)


class Scripted:
    """An engine that counts; trials report at steps 2, 5 and 6, and tests write the reports.

    Trial ``b`` diverges at step 4. The device is lost in the fourth step of trial ``c``, and when
    a seat of trial ``e`` is built.
    """

    def __init__(self, blocks: object) -> None:
        self.steps: dict[str, int] = {}
        self.passes: list[list[str]] = []
        self.written: dict[tuple[str, int], Future[Report]] = {}

    def build(self, job: Job) -> Job:
        if job.name == "e":
            raise RuntimeError("CUDA error: device-side assert triggered")
        return job

    def attach(self, job: Job) -> None:
        self.steps[job.name] = 0

    def detach(self, name: str) -> None:
        self.steps.pop(name, None)

    def stored_report(self, name: str, after: int) -> Report | None:
        return None

    def runs_ahead(self, name: str) -> bool:
        return self.steps[name] < _DUE[-1] and self.steps[name] + 1 not in _DUE

    def is_done(self, name: str) -> bool:
        return self.steps[name] == _DUE[-1]

    def advance(self, names: Sequence[str]) -> dict[str, Any]:
        self.passes.append(list(names))
        if self.steps.get("c") == 3:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return {name: self._step(name) for name in names}

    def _step(self, name: str) -> Report | Future[Report] | None:
        self.steps[name] += 1
        step = self.steps[name]
        if (name, step) == ("b", 4):
            return Report(step=4, done=True, diverged="non-finite training loss at step 4")
        if step not in _DUE:
            return None
        return self.written.setdefault((name, step), Future())

    def write(self, name: str, step: int) -> None:
        self.written[name, step].set_result(Report(step=step, done=step == _DUE[-1]))


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> host_module.Host:
    monkeypatch.setattr(host_module, "_text", lambda key: None)
    return host_module.Host({"engine": f"{__name__}:Scripted"}, b"")


def _run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


async def _seated(host: host_module.Host, name: str, token: str = "") -> asyncio.Task[Report]:
    """Return the task that waits for the first report of a trial that has just got a seat."""
    job = Job(name=name, adapter={}, training={}, seed=0, data_seed=0, report_steps=_DUE, folder="")
    await host.attach(job.to_dict(), token or name, 0)
    return asyncio.create_task(host.advance(name, token or name))


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def _at_rest(engine: Any) -> None:
    """Wait until the host takes no more steps."""
    before = -1
    while before != len(engine.passes):
        before = len(engine.passes)
        await asyncio.sleep(0.25)


def test_trial_trains_on_while_its_report_is_written_and_stops_before_the_next(
    host: host_module.Host,
) -> None:
    async def test() -> None:
        engine: Any = host._engine
        first = await _seated(host, "a")
        await _until(lambda: engine.steps["a"] == 4)
        await _at_rest(engine)
        assert (engine.steps["a"], first.done()) == (4, False)
        engine.write("a", 2)
        assert (await first).step == 2
        await _at_rest(engine)
        assert engine.steps["a"] == 4  # the driver has not asked for the report at step 5

    _run(test)


def test_reports_come_in_order_and_the_last_frees_the_seat(host: host_module.Host) -> None:
    async def test() -> None:
        engine: Any = host._engine
        task = await _seated(host, "a")
        for step in _DUE:
            await _until(functools.partial(engine.written.__contains__, ("a", step)))
            engine.write("a", step)
            assert (await task).step == step
            task = asyncio.create_task(host.advance("a", "a"))
        with pytest.raises(SeatLost):
            await task
        assert len(engine.passes) == _DUE[-1]
        assert not engine.steps

    _run(test)


def test_end_of_a_trial_that_ran_ahead_waits_for_the_question(host: host_module.Host) -> None:
    async def test() -> None:
        engine: Any = host._engine
        first = await _seated(host, "b")
        await _until(lambda: ("b", 2) in engine.written)
        await _until(lambda: engine.steps["b"] == 4)
        await _at_rest(engine)
        engine.write("b", 2)
        assert (await first).diverged is None
        assert (await host.advance("b", "b")).diverged == "non-finite training loss at step 4"
        await _until(lambda: not engine.steps)

    _run(test)


def test_report_that_cannot_be_written_fails_its_trial_alone(host: host_module.Host) -> None:
    async def test() -> None:
        engine: Any = host._engine
        tasks = [await _seated(host, name) for name in ("a", "d")]
        await _until(lambda: {("a", 2), ("d", 2)} <= engine.written.keys())
        engine.written["a", 2].set_exception(OSError("disk full"))
        engine.write("d", 2)
        with pytest.raises(OSError, match="disk full"):
            await tasks[0]
        assert (await tasks[1]).step == 2
        await _until(lambda: list(engine.steps) == ["d"])

    _run(test)


def test_freed_trial_stops_running_ahead(host: host_module.Host) -> None:
    async def test() -> None:
        engine: Any = host._engine
        first = await _seated(host, "a")
        await _until(lambda: ("a", 2) in engine.written)
        await host.free("a")
        passes = len(engine.passes)
        with pytest.raises(SeatLost):
            await first
        engine.write("a", 2)  # too late; nobody gets it
        await _at_rest(engine)
        assert not engine.steps
        assert len(engine.passes) == passes

    _run(test)


def test_device_lost_running_ahead_is_told_to_those_who_were_in_the_pass(
    host: host_module.Host,
) -> None:
    async def test() -> None:
        engine: Any = host._engine
        first = await _seated(host, "c")
        await _until(lambda: ("c", 2) in engine.written)
        await _at_rest(engine)
        engine.write("c", 2)
        assert (await first).step == 2
        with pytest.raises(DeviceLost, match="illegal memory access"):
            await host.advance("c", "c")
        with pytest.raises(HostGone):
            await host.advance("c", "c")

    _run(test)


async def _next(host: host_module.Host, name: str, step: int) -> asyncio.Task[Report]:
    """Write a report, wait until its trial has it, and ask for the next."""
    engine: Any = host._engine
    await _until(functools.partial(engine.written.__contains__, (name, step)))
    engine.write(name, step)
    await _until(lambda: name not in host._waiting)
    return asyncio.create_task(host.advance(name, name))


def test_last_report_of_a_trial_holds_up_no_other(
    host: host_module.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "_LINGER_S", 100.0)
    monkeypatch.setattr(host_module, "_WRITE_S", 100.0)

    async def test() -> None:
        engine: Any = host._engine
        tasks = [await _seated(host, "a")]
        for step in _DUE[:-1]:
            tasks.append(await _next(host, "a", step))
        await _until(lambda: ("a", _DUE[-1]) in engine.written)
        tasks.append(await _seated(host, "d"))
        await _until(lambda: engine.steps["d"] == 4)
        engine.write("a", _DUE[-1])

    _run(test)


def test_pack_stays_whole_where_files_take_longer_to_write_than_answers(
    host: host_module.Host,
) -> None:
    """Both trials report at steps 5 and 6; the files of one take three times as long."""

    async def test() -> None:
        engine: Any = host._engine
        tasks = [await _seated(host, name) for name in ("a", "d")]
        await _until(lambda: {("a", 2), ("d", 2)} <= engine.written.keys())
        tasks += [await _next(host, name, 2) for name in ("a", "d")]
        await _until(lambda: {("a", 5), ("d", 5)} <= engine.written.keys())
        passes = len(engine.passes)
        tasks.append(await _next(host, "a", 5))
        await asyncio.sleep(3 * host_module._LINGER_S)
        tasks.append(await _next(host, "d", 5))
        await _until(lambda: {("a", 6), ("d", 6)} <= engine.written.keys())
        assert [sorted(names) for names in engine.passes[passes:]] == [["a", "d"]]

    _run(test)


def test_trial_that_waits_hears_of_a_device_lost_between_passes(
    host: host_module.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "_LINGER_S", 100.0)

    async def test() -> None:
        engine: Any = host._engine
        answered = await _seated(host, "d")
        await _until(lambda: ("d", 2) in engine.written)
        await _until(lambda: engine.steps["d"] == 4)
        engine.write("d", 2)
        await answered  # the host now waits for its next question
        waiting = await _seated(host, "a")
        await _at_rest(engine)
        with pytest.raises(DeviceLost, match="device-side assert"):
            await _seated(host, "e")
        with pytest.raises(HostGone):
            await waiting

    _run(test)


def test_second_process_of_a_trial_gets_no_answer_of_the_first(host: host_module.Host) -> None:
    async def test() -> None:
        engine: Any = host._engine
        first = await _seated(host, "a")
        await _until(lambda: ("a", 2) in engine.written)
        written = engine.written.pop(("a", 2))
        second = await _seated(host, "a", "of the second")
        with pytest.raises(Superseded):
            await first
        written.set_result(Report(step=99))
        await _until(lambda: ("a", 2) in engine.written)
        engine.write("a", 2)
        assert (await second).step == 2

    _run(test)
