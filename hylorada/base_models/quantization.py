"""Bases whose linear weights bitsandbytes stores in 4 bits (Dettmers et al. 2023, QLoRA).

Nothing here imports bitsandbytes unless such a base is asked for.
"""

import contextlib
import importlib.util
import io
import math
import sys
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from hylorada.base_models.base_labels import QUANTIZATIONS
from hylorada.base_models.error_texts import first_line
from hylorada.errors import InputError, nearest

_PACKAGES = ("bitsandbytes", "accelerate")
_INSTALL = "pip install -e '.[quantization]'"
_BLOCK = 64  # weights that share a scale


def linear_4bit() -> type[nn.Linear] | None:
    """Return bitsandbytes' class of 4-bit linear modules; None if nothing has imported it."""
    library = sys.modules.get("bitsandbytes.nn")
    return None if library is None else library.Linear4bit


def is_4bit(module: nn.Module) -> bool:
    """Return whether a linear module stores its weight in 4 bits."""
    kind = linear_4bit()
    return kind is not None and isinstance(module, kind)


def dequantized(weight: Any) -> Tensor:
    """Return the weight [d_out, d_in] that the bits of a module stand for, in its base's dtype.

    On CPUs it reads the bits itself: bitsandbytes 0.50's kernel for CPUs takes wrong scales where
    d_in is no multiple of a block.
    """
    state = weight.quant_state
    if weight.device.type == "cpu" and not state.nested:
        return _read(weight.data, state)
    from bitsandbytes.functional import dequantize_4bit

    full: Tensor = dequantize_4bit(weight.data, state)
    return full


def _read(packed: Tensor, state: Any) -> Tensor:
    """Look up two values in each byte, and scale them by blocks, which run on from row to row."""
    byte = packed.view(-1)
    values = state.code[torch.stack((byte >> 4, byte & 15), 1).view(-1).int()]
    scales = state.absmax.repeat_interleave(state.blocksize)
    count = math.prod(state.shape)
    full: Tensor = (values[:count] * scales[:count]).view(state.shape).to(state.dtype)
    return full


def is_repacked(module: nn.Module) -> bool:
    """Return whether bitsandbytes has repacked a weight for a CPU, which rounds its scales.

    Its own forward does so in eval mode on CPUs that compute in bf16.
    """
    state = getattr(module.get_parameter("weight"), "quant_state", None)
    return bool(getattr(state, "packing_format_for_cpu", False))


def check_quantization(
    quantization: str, model: str, gguf_file: str | None, dtype: torch.dtype = torch.float32
) -> None:
    """Check that a base can be loaded with its weights quantized.

    Args:
        quantization: see :func:`hylorada.load_base`.
        model: name of the base.
        gguf_file: the GGUF file that holds its weights; None for other formats.
        dtype: dtype in which the base computes.

    Raises:
        InputError: the quantization is unknown or doesn't fit the base or its dtype, packages are
            missing, or bitsandbytes doesn't work on this machine.
    """
    if quantization not in QUANTIZATIONS:
        raise InputError(
            f"quantization {quantization!r} is unknown; {nearest(quantization, QUANTIZATIONS)}"
        )
    if quantization == "none":
        return
    if problem := _problem(gguf_file, dtype) or _machine_problem():
        raise InputError(f"model {model!r}: quantization {quantization!r} {problem}")


def _problem(gguf_file: str | None, dtype: torch.dtype) -> str | None:
    if gguf_file is not None:
        return "can't be applied to a GGUF file; name a folder or a base of the hub"
    if dtype == torch.float64:
        return "computes in float32 or bfloat16, not in float64"
    return None


def _machine_problem() -> str | None:
    """Return what this machine lacks to quantize a base; None if bitsandbytes works on it."""
    if missing := [name for name in _PACKAGES if importlib.util.find_spec(name) is None]:
        return f"needs {' and '.join(missing)}: {_INSTALL}"
    try:
        functional = _imported()
        packed, state = functional.quantize_4bit(torch.ones(1, _BLOCK), quant_type="nf4")
        functional.dequantize_4bit(packed, state)
    except Exception as error:  # a library of C code raises errors of every kind
        return f"needs bitsandbytes, which fails on this machine: {first_line(error)}"
    return None


def _imported() -> Any:
    """Return bitsandbytes' functions, imported without what it prints about other kernels."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore", DeprecationWarning)  # it uses what torch deprecates
        import bitsandbytes.functional
        import bitsandbytes.nn
    return bitsandbytes.functional


def loading_options(dtype: torch.dtype, device_map: Any) -> dict[str, Any]:
    """Return the options by which transformers loads a base in 4 bits."""
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
    )
    return {"quantization_config": config, "device_map": device_map}


def keep_weights(base: nn.Module) -> None:
    """Keep bitsandbytes from repacking the weights of a base when it runs without an adapter."""
    for module in base.modules():
        if is_4bit(module):
            vars(module)["support_avx512bf16_for_cpu"] = False


def quantization_of(base: nn.Module) -> str:
    """Return how the linear weights of a base are stored, as :func:`hylorada.load_base` takes it.

    Formats that it doesn't load, of a base that was loaded otherwise, have names of their own.
    """
    modules = [m for m in base.modules() if isinstance(m, nn.Linear) and is_4bit(m)]
    kinds = {str(vars(m.weight)["quant_type"]) for m in modules}
    if not kinds:
        return "none"
    return "4bit" if kinds == {"nf4"} else f"4bit {' and '.join(sorted(kinds))}"
