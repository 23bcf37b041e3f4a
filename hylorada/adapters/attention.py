"""Changes to the base's attention, through transformers' attention interface.

No model class is patched. While a pack with such changes runs, the base uses an attention
implementation registered here: it calls the base's own (``sdpa`` or ``eager``), within groups of
tokens for seats that train with shifted sparse attention, and adds the landmarks of the layer to
the output.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hylorada.adapters.landmarks.attention_integrated import HeadMix
from hylorada.adapters.shifted_sparse_attention import HeadGroups
from hylorada.errors import InputError

_SUPPORTED = ("sdpa", "eager")
_PREFIX = "hylorada_"


@dataclass(eq=False)
class AttentionSlot:
    """Changes to the attention of one layer: groups of tokens, then landmarks."""

    groups: HeadGroups | None
    landmarks: HeadMix | None

    def dynamic(self) -> list[tuple[Tensor, int]]:
        """Return each tensor with the dimensions that vary between packs."""
        return [
            dimension
            for part in (self.groups, self.landmarks)
            if part is not None
            for dimension in part.dynamic()
        ]


def attention_slots(
    groups: HeadGroups | None, mixes: Sequence[HeadMix], layers: int
) -> list[AttentionSlot]:
    """Return the changes to each layer's attention; empty if nothing changes.

    Args:
        groups: groups of tokens, the same in all layers; None without any.
        mixes: landmarks of each layer; empty without any.
        layers: number of layers.
    """
    if groups is None and not mixes:
        return []
    by_layer: Sequence[HeadMix | None] = mixes or [None] * layers
    return [AttentionSlot(groups, mix) for mix in by_layer]


def check_attention(base: PreTrainedModel, setting: str) -> None:
    """Check that this base's attention can be changed.

    Args:
        base: a supported model.
        setting: what changes it, for the message.

    Raises:
        InputError: the attention implementation is not supported.
    """
    implementation = base.config._attn_implementation.removeprefix(_PREFIX)
    if implementation not in _SUPPORTED:
        raise InputError(
            f"{setting} works with the attention implementations "
            f"{' and '.join(_SUPPORTED)}; the base has {implementation!r}: "
            "load it with attn_implementation='sdpa'"
        )
    if getattr(base.config, "reorder_and_upcast_attn", False):
        raise InputError(f"{setting} does not work with GPT-2's reorder_and_upcast_attn")


def fill_attention(module: nn.Module, slot: AttentionSlot | None) -> AttentionSlot | None:
    """Set what the next forward changes (None for nothing), and return what was set before."""
    before: AttentionSlot | None = vars(module).pop("attention_slot", None)
    if slot is not None:
        vars(module)["attention_slot"] = slot
    return before


@contextmanager
def attention_with_slots(base: PreTrainedModel) -> Iterator[None]:
    """Let the base's attention use what its modules were filled with, within this context."""
    before = base.config._attn_implementation
    base.config._attn_implementation = _PREFIX + before.removeprefix(_PREFIX)
    try:
        yield
    finally:
        base.config._attn_implementation = before


def _changed(implementation: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        own = (
            _eager_of(module)
            if implementation == "eager"
            else ALL_ATTENTION_FUNCTIONS[implementation]
        )

        def whole(
            query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
        ) -> tuple[Tensor, Tensor | None]:
            return own(module, query, key, value, mask, scaling=scaling, **kwargs)

        slot: Any = module.attention_slot
        if slot.groups is None:
            output, weights = whole(query, key, value, attention_mask)
        else:
            output, weights = slot.groups.attend(whole, query, key, value, attention_mask)
        if slot.landmarks is None:
            return output, weights
        factor = query.shape[-1] ** -0.5 if scaling is None else scaling
        return output + slot.landmarks.context(query, factor), weights

    return attend


def _eager_of(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the eager attention of the module's model file; each file has its own."""
    model_file = sys.modules[type(module).__module__]
    eager: Callable[..., tuple[Tensor, Tensor]] = vars(model_file)["eager_attention_forward"]
    return eager


for _name in _SUPPORTED:
    AttentionInterface.register(_PREFIX + _name, _changed(_name))
    AttentionMaskInterface.register(_PREFIX + _name, ALL_MASK_ATTENTION_FUNCTIONS[_name])
