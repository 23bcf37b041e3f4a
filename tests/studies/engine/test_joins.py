"""How trials get their seats on a host whose passes are released one by one."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from studies.engine import host as host_module
from studies.process.errors import Superseded
from studies.trials.messages import Job, Report


class Gated:
    """An engine whose passes wait to be released; every trial reports at its third step."""

    def __init__(self, blocks: object) -> None:
        self.steps: dict[str, int] = {}
        self.built = threading.Event()
        self.under_way = threading.Semaphore(0)
        self.through = threading.Semaphore(0)
        self.passes: list[list[str]] = []

    def build(self, job: Job) -> Job:
        self.built.set()
        return job

    def attach(self, job: Job) -> None:
        self.steps[job.name] = 0

    def detach(self, name: str) -> None:
        self.steps.pop(name, None)

    def stored_report(self, name: str, after: int) -> Report | None:
        return None

    def runs_ahead(self, name: str) -> bool:
        return self.steps[name] < 2

    def advance(self, names: Sequence[str]) -> Mapping[str, Report | None]:
        self.passes.append(sorted(names))
        self.under_way.release()
        assert self.through.acquire(timeout=20)
        return {name: self._step(name) for name in names}

    def _step(self, name: str) -> Report | None:
        self.steps[name] += 1
        return Report(step=3, metrics={}, done=True) if self.steps[name] == 3 else None


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> host_module.Host:
    monkeypatch.setattr(host_module, "_text", lambda key: None)
    return host_module.Host({"engine": f"{__name__}:Gated"}, b"")


def _job(name: str) -> dict[str, Any]:
    return Job(
        name=name, adapter={}, training={}, seed=0, data_seed=0, report_steps=(3,), folder=""
    ).to_dict()


async def _wait(semaphore: threading.Semaphore) -> None:
    assert await asyncio.to_thread(semaphore.acquire, timeout=20)


async def _first_pass(host: host_module.Host) -> tuple[Any, asyncio.Task[Report]]:
    """Return the engine in its first pass, of trial ``a``, and the task of that trial."""
    engine: Any = host._engine
    await host.attach(_job("a"), "1", 0)
    first = asyncio.create_task(host.advance("a", "1"))
    await _wait(engine.under_way)
    engine.built.clear()
    return engine, first


def test_seat_is_built_beside_a_pass_and_taken_at_its_end(host: host_module.Host) -> None:
    async def run() -> None:
        engine, first = await _first_pass(host)
        second = asyncio.create_task(host.attach(_job("b"), "2", 0))
        assert await asyncio.to_thread(engine.built.wait, 20)  # the pass is still under way
        engine.through.release()
        assert await second is None
        other = asyncio.create_task(host.advance("b", "2"))
        for _ in range(3):
            engine.through.release()
            await _wait(engine.under_way)
        engine.through.release()
        assert (await first).done
        assert (await other).done
        assert engine.passes == [["a"], ["a", "b"], ["a", "b"], ["b"]]

    asyncio.run(asyncio.wait_for(run(), 60))


def test_second_process_of_a_trial_takes_its_seat_over(host: host_module.Host) -> None:
    """The first leaves before the second reads the checkpoint, so that it no longer changes."""

    async def run() -> None:
        engine, first = await _first_pass(host)
        second = asyncio.create_task(host.attach(_job("a"), "2", 0))
        # Not while the first process may still report.
        assert not await asyncio.to_thread(engine.built.wait, 0.3)
        engine.through.release()
        with pytest.raises(Superseded):
            await first
        assert await second is None
        other = asyncio.create_task(host.advance("a", "2"))
        for _ in range(3):
            engine.through.release()
        assert (await other).done
        assert engine.passes == [["a"]] * 4

    asyncio.run(asyncio.wait_for(run(), 60))
