"""Time and memory of one loop, and the matmul rate of the device."""

import ctypes
import gc
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from hylorada.runtime.devices import is_out_of_memory
from hylorada.runtime.memory import process_peak
from studies.bench.loops import Loop, PackLoop, PlainLoop, Tokens, bench_base, bench_lanes
from studies.bench.options import Setting

WARM_STEPS = 3
_MEMORY_STEPS = 2
_MATMUL_SECONDS = 0.3


@dataclass(frozen=True)
class Memory:
    """Memory of one loop in bytes, base included.

    Attributes:
        peak: peak memory: on a GPU that of tensors; on a CPU that of a separate process, code
            included.
        resident: memory held between two steps.
    """

    peak: int
    resident: int


def synchronize(device: str) -> None:
    """Wait until a GPU has finished its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def release(device: str) -> None:
    """Free a GPU's memory for other processes, and for tensors of other sizes."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def time_steps(loop: Loop, steps: int, device: str) -> float:
    """Return the seconds of ``steps`` steps, from an idle device to an idle device."""
    synchronize(device)
    began = time.perf_counter()
    for _ in range(steps):
        loop.step()
    loop.finish()
    synchronize(device)
    return time.perf_counter() - began


def matmul_rate(setting: Setting) -> float:
    """Return the operations per second of a large square matrix product in the base's dtype.

    It is the median over about a third of a second.
    """
    size = 8192 if setting.device == "cuda" else 1024
    dtype = getattr(torch, setting.dtype)
    left, right = (torch.randn(size, size, device=setting.device).to(dtype) for _ in range(2))
    product = torch.empty_like(left)
    repeats = 10 if setting.device == "cuda" else 1
    seconds: list[float] = []
    while len(seconds) < 3 or sum(seconds) < _MATMUL_SECONDS:
        synchronize(setting.device)
        began = time.perf_counter()
        for _ in range(repeats):
            torch.matmul(left, right, out=product)
        synchronize(setting.device)
        seconds.append((time.perf_counter() - began) / repeats)
    return 2 * size**3 / statistics.median(seconds[1:])  # without the first, which warms up


def gpu_memory(make: Callable[[], Loop], base_bytes: int) -> tuple[Loop, Memory]:
    """Make and warm up a loop; return it with its memory, base included, other tensors excluded."""
    release("cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() - base_bytes
    loop = make()
    time_steps(loop, WARM_STEPS, "cuda")
    return loop, Memory(
        torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before
    )


def cpu_memory(
    setting: Setting, input_ids: Tokens, trials: int, design: str | None
) -> Memory | None:
    """Measure the memory of a pack of ``trials``, or of the plain loop if ``design`` is None.

    Returns:
        The memory of a separate process, or None if it has run out of memory or was killed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # imports torch once for all processes
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(_own_memory, setting, input_ids, trials, design).result()
        except (BrokenProcessPool, MemoryError):
            return None
        except RuntimeError as error:
            if is_out_of_memory(error):
                return None
            raise


def _own_memory(setting: Setting, input_ids: Tokens, trials: int, design: str | None) -> Memory:
    base = bench_base(setting)
    loop: Loop
    if design is None:
        loop = PlainLoop(base, setting, input_ids)
    else:
        loop = PackLoop(bench_lanes(base, setting), setting, input_ids, range(trials), design)
    time_steps(loop, _MEMORY_STEPS, setting.device)
    peak = process_peak()
    gc.collect()
    with suppress(OSError, AttributeError):  # only glibc can return freed memory
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    resident = _resident()
    return Memory(max(peak, resident), resident)  # the kernel counts the two separately


def _resident() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return process_peak()
    return pages * resource.getpagesize()
