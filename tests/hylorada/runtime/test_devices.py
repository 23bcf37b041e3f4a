"""The meaning of CUDA's error messages."""

import pytest
import torch

from hylorada.runtime.devices import is_lost, is_out_of_memory


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="with a device that works none of these is lost"
)
@pytest.mark.parametrize(
    ("error", "lost", "memory"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True, False),
        (RuntimeError("CUDA error: device-side assert triggered"), True, False),
        (
            RuntimeError(
                "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
            ),
            False,
            True,
        ),
        (RuntimeError("CUDA driver error: an illegal memory access was encountered"), True, False),
        (
            RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
            True,
            False,
        ),
        (
            RuntimeError(
                "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
            ),
            False,
            True,
        ),
        (RuntimeError("CUDA error: out of memory"), False, True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), False, True),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate "
                "memory: you tried to allocate 8000000000000 bytes. Error code 12"
            ),
            False,
            True,
        ),
        (ValueError("shape mismatch"), False, False),
    ],
)
def test_lost_devices_and_lack_of_memory_are_told_apart(
    error: Exception, lost: bool, memory: bool
) -> None:
    assert (is_lost(error), is_out_of_memory(error)) == (lost, memory)


def test_cpu_without_memory_is_out_of_memory() -> None:
    with pytest.raises(RuntimeError, match="can't allocate memory") as caught:
        torch.empty(1 << 60, dtype=torch.int8)
    assert is_out_of_memory(caught.value)
