"""A process for each trial: N plain loops at once on equal shares of the device, under Ray."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from hylorada.runtime.cores import available_cores
from studies.bench.loops import Tokens
from studies.bench.options import Setting
from studies.engine.cluster import share
from studies.engine.ray_start import start_ray, stop_ray

_START_S = 0.2  # delay within which all processes receive the common start time


class _Worker:
    """A process with its own base and plain loop."""

    def __init__(self, setting: Setting, input_ids: Tokens, threads: int) -> None:
        import torch

        from studies.bench.loops import PlainLoop, bench_base

        torch.set_num_threads(threads)
        self._setting = setting
        self._loop = PlainLoop(bench_base(setting), setting, input_ids)

    def warm_up(self) -> None:
        """Train a few steps before the measurement."""
        from studies.bench.measure import WARM_STEPS, time_steps

        time_steps(self._loop, WARM_STEPS, self._setting.device)

    def run(self, start: float) -> tuple[float, float]:
        """Train from time ``start`` on, and return begin and end on the machine's common clock."""
        from studies.bench.measure import time_steps

        time.sleep(max(0.0, start - time.monotonic()))
        began = time.monotonic()
        time_steps(self._loop, self._setting.steps, self._setting.device)
        return began, time.monotonic()

    def release(self) -> None:
        """Free a GPU's cached memory, because rows measured in between need it."""
        import torch

        if self._setting.device == "cuda":
            torch.cuda.empty_cache()

    def peak_bytes(self) -> int:
        """Return the peak memory; on a GPU that of tensors, without the process's CUDA context."""
        import torch

        from hylorada.runtime.memory import process_peak

        if self._setting.device == "cuda":
            return int(torch.cuda.max_memory_allocated())
        return process_peak()


class RayWorkers:
    """The processes as Ray actors; see :class:`studies.bench.ladder.Workers`."""

    def __init__(self, setting: Setting, input_ids: Tokens, count: int) -> None:
        self.count = count
        whole = ray.cluster_resources()
        resources: dict[str, Any] = {"num_cpus": share(whole.get("CPU", 1), count)}
        if setting.device == "cuda":
            resources["num_gpus"] = share(1, count)
        tokens = ray.put(input_ids)
        make = ray.remote(_Worker).options(**resources).remote
        self._actors: list[Any] = [
            make(setting, tokens, max(1, available_cores() // count)) for _ in range(count)
        ]
        self._all("warm_up")
        self._all("release")

    def run(self) -> float:
        """Measure all processes at once, and return the seconds from first start to last end."""
        self._all("warm_up")
        spans = self._all("run", time.monotonic() + _START_S)
        self._all("release")
        return float(max(end for _, end in spans) - min(begin for begin, _ in spans))

    def peak_bytes(self) -> int:
        """Return the sum of the processes' peak memory."""
        return sum(self._all("peak_bytes"))

    def _all(self, method: str, *arguments: float) -> list[Any]:
        return list(ray.get([getattr(a, method).remote(*arguments) for a in self._actors]))


@contextmanager
def ray_workers(
    setting: Setting, input_ids: Tokens, count: int, workspace: Path
) -> Iterator[RayWorkers]:
    """Start the processes under a private Ray, and stop it afterwards.

    :func:`make_private` must have been called before.
    """
    start_ray(None, workspace)
    try:
        yield RayWorkers(setting, input_ids, count)
    finally:
        stop_ray()
