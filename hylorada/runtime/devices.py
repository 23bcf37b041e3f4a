"""Small constants on their way to a GPU: a plain copy would wait until the GPU has done all its work."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


def to_device(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor of ``values`` on a device, without waiting for the device."""
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
    """Constants of S seats as a tensor [C, S], kept for the next steps."""
    with torch.inference_mode(False):  # what is kept must serve training too
        return to_device(constants, device, dtype).T.contiguous()


def own_threads(count: int) -> None:
    """Let the calling thread compute with so many, whatever number other threads take later.

    The number is each thread's own only once it has been asked for: until then a thread takes over what any other has
    set last.
    """
    torch.get_num_threads()
    torch.set_num_threads(count)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device lacked memory: the allocator has a type for it, libraries such as cuBLAS only words."""
    words = ("out of memory", "ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED")
    return isinstance(error, torch.OutOfMemoryError) or any(w in str(error) for w in words)


def is_lost(error: BaseException) -> bool:
    """Whether CUDA has failed in a way that stays with its process: all later calls fail; not so lack of memory."""
    words = ("CUDA error", "CUDA driver error", "Triton Error [CUDA]")
    return str(error).startswith(words) and not is_out_of_memory(error) and not _works()


def _works() -> bool:
    """Whether the device still takes work; without one, what its errors say must be believed."""
    if not torch.cuda.is_available():
        return False
    try:
        torch.ones(1, device="cuda").add_(1)
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True
