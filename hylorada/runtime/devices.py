"""Copies to a device that don't wait for it, threads of a lane, and errors of a device."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


def to_device(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor of ``values`` on a device, without waiting for the device.

    A plain copy would wait until a GPU has finished all its queued work.
    """
    tensor = torch.as_tensor(values, dtype=dtype)
    return (
        tensor.pin_memory().to(device, non_blocking=True)
        if device.type == "cuda"
        else tensor.to(device)
    )


@lru_cache(64)
def column(
    constants: tuple[tuple[float, ...], ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return C constants of S seats as a tensor [C, S], cached for the next steps."""
    with torch.inference_mode(False):  # a cached inference tensor could not be used in training
        return to_device(constants, device, dtype).T.contiguous()


def own_threads(count: int) -> None:
    """Fix the number of threads that torch uses for the calling thread's operations.

    Calls in other threads don't change it afterwards: torch keeps the number for each thread, but
    only once the thread has read it. Until then the thread adopts the latest number that any
    thread has set.
    """
    torch.get_num_threads()
    torch.set_num_threads(count)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that a device is out of memory.

    torch's allocator of CUDA raises an exception type of its own; errors of its allocator of the
    CPU and of libraries such as cuBLAS can be recognised by their message only.
    """
    words = (
        *("out of memory", "can't allocate memory"),
        *("ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED"),
    )
    return isinstance(error, torch.OutOfMemoryError) or any(w in str(error) for w in words)


def is_lost(error: BaseException) -> bool:
    """Return whether CUDA has failed for good: every later call of this process fails.

    Running out of memory is not such a failure.
    """
    words = ("CUDA error", "CUDA driver error", "Triton Error [CUDA]")
    return str(error).startswith(words) and not is_out_of_memory(error) and not _works()


def _works() -> bool:
    """Return whether the device still computes; without a device the error's message decides."""
    if not torch.cuda.is_available():
        return False
    try:
        torch.ones(1, device="cuda").add_(1)
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True
