"""Fold the LoRA part of an adapter into the base's weights, where a single weight can hold it."""

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from hylorada.adapters.adapter import Adapter
from hylorada.adapters.lora import weight_of
from hylorada.errors import InputError


@torch.no_grad()
def merge_into(base: PreTrainedModel, adapter: Adapter) -> dict[str, Tensor]:
    """Put :func:`merged_weights` into the base and mark it as merged until :func:`restore`.

    Returns:
        The base's own weights, keyed by the module's path.

    Raises:
        InputError: the base is merged already, or :func:`merged_weights` raises it; the base is
            left as it was.
    """
    # Of two merges, undoing the first one first would leave weights that belong to neither.
    if "merged" in vars(base):
        raise InputError(
            "the base is merged already, with the adapter of another model; unmerge that one first"
        )
    folded = merged_weights(base, adapter)
    originals = {path: base.get_parameter(f"{path}.weight").detach().clone() for path in folded}
    _overwrite(base, folded)
    vars(base)["merged"] = True
    return originals


def restore(base: PreTrainedModel, originals: Mapping[str, Tensor]) -> None:
    """Restore the base's own weights bit for bit; with no ``originals``, keep the merged ones."""
    _overwrite(base, originals)
    del vars(base)["merged"]


@torch.no_grad()
def _overwrite(base: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
    for path, weight in weights.items():
        base.get_parameter(f"{path}.weight").copy_(weight)


@torch.no_grad()
def merged_weights(base: PreTrainedModel, adapter: Adapter) -> dict[str, Tensor]:
    """Return W + scaling * B @ A of every adapted module, keyed by its path.

    The sum is computed in the adapter's dtype and cast to the base's. With DoRA each row of the sum
    is scaled to its trained magnitude.

    Raises:
        InputError: the adapter has a position bias, or merged weights would not be finite.
    """
    if adapter.position_bias is not None:
        raise InputError(
            "an adapter with a position bias can't be merged: its update differs from position to "
            "position, so no single weight can hold it"
        )
    folded, broken = {}, []
    for path in adapter.targets:
        lora, module = adapter.lora_at(path), base.get_submodule(path)
        assert lora is not None
        delta = adapter.config.scaling * (lora.lora_B @ lora.lora_A)  # [d_out, d_in]
        merged = weight_of(module).to(delta) + delta
        magnitude = adapter.magnitude_at(path)
        if magnitude is not None:
            norms = torch.linalg.vector_norm(merged, dim=1)
            norms.clamp_min_(torch.finfo(norms.dtype).tiny ** 0.5)  # as the forward pass does
            merged *= (magnitude / norms)[:, None]
        weight = module.get_parameter("weight")
        folded[path] = (merged.T if isinstance(module, Conv1D) else merged).to(weight)
        if not folded[path].isfinite().all():
            broken.append(f"{path} would have non-finite weights after the merge")
    if broken:
        raise InputError(broken)
    return folded
