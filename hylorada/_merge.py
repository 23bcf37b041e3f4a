"""Folds the LoRA part into the base's weights, where one weight can hold it."""

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ._adapter import Adapter
from ._errors import InputError
from ._lora import weight_of


@torch.no_grad()
def merged_weights(base: PreTrainedModel, adapter: Adapter) -> dict[str, Tensor]:
    """W + scaling * B @ A of every adapted module, by its path; summed in the adapter's dtype, then in the base's.

    With DoRA each row of the sum is brought to its trained magnitude.

    Raises:
        InputError: the adapter has a position bias or non-finite numbers.
    """
    if adapter.position_bias is not None:
        raise InputError(
            "an adapter with a position bias can't be merged: its update differs from position to position, "
            "so no one weight gives it"
        )
    folded, broken = {}, []
    for path in adapter.targets:
        lora, module = adapter.lora_at(path), base.get_submodule(path)
        assert lora is not None
        delta = adapter.config.scaling * (lora.lora_B @ lora.lora_A)  # [d_out, d_in]
        merged = weight_of(module).to(delta.dtype) + delta
        magnitude = adapter.magnitude_at(path)
        if magnitude is not None:
            merged *= (magnitude / torch.linalg.vector_norm(merged, dim=1))[:, None]
        weight = module.get_parameter("weight")
        folded[path] = (merged.T if isinstance(module, Conv1D) else merged).to(weight.dtype)
        if not folded[path].isfinite().all():
            broken.append(f"{path} would have non-finite weights after the merge")
    if broken:
        raise InputError(broken)
    return folded
