"""Landmarks inside the base's attention, through transformers' attention interface.

No model class is patched. While a pack with such landmarks runs, the base uses an attention
implementation registered here: it calls the base's own (``sdpa`` or ``eager``) unchanged and adds
the landmarks of the layer to the output.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hylorada.adapters.landmarks.attention_integrated import HeadMix
from hylorada.errors import InputError

_SUPPORTED = ("sdpa", "eager")
_PREFIX = "hylorada_"


def check_attention(base: PreTrainedModel) -> None:
    """Check that landmarks can be added to this base's attention.

    Raises:
        InputError: the attention implementation is not supported.
    """
    implementation = base.config._attn_implementation.removeprefix(_PREFIX)
    if implementation not in _SUPPORTED:
        raise InputError(
            "landmark_design 'attention' works with the attention implementations "
            f"{' and '.join(_SUPPORTED)}; the base has {implementation!r}: "
            "load it with attn_implementation='sdpa'"
        )
    if getattr(base.config, "reorder_and_upcast_attn", False):
        raise InputError(
            "landmark_design 'attention' does not work with GPT-2's reorder_and_upcast_attn"
        )


def fill_attention(module: nn.Module, mix: HeadMix | None) -> HeadMix | None:
    """Set what the next forward adds (None for nothing), and return what was set before."""
    before: HeadMix | None = vars(module).pop("head_mix", None)
    if mix is not None:
        vars(module)["head_mix"] = mix
    return before


@contextmanager
def attention_with_landmarks(base: PreTrainedModel) -> Iterator[None]:
    """Let the base's attention add what its modules were filled with, within this context."""
    before = base.config._attn_implementation
    base.config._attn_implementation = _PREFIX + before.removeprefix(_PREFIX)
    try:
        yield
    finally:
        base.config._attn_implementation = before


def _adding(implementation: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        whole = (
            _eager_of(module)
            if implementation == "eager"
            else ALL_ATTENTION_FUNCTIONS[implementation]
        )
        output, weights = whole(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        mix: Any = module.head_mix
        return output + mix.context(
            query, query.shape[-1] ** -0.5 if scaling is None else scaling
        ), weights

    return attend


def _eager_of(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the eager attention of the module's model file; each file has its own."""
    model_file = sys.modules[type(module).__module__]
    eager: Callable[..., tuple[Tensor, Tensor]] = vars(model_file)["eager_attention_forward"]
    return eager


for _name in _SUPPORTED:
    AttentionInterface.register(_PREFIX + _name, _adding(_name))
    AttentionMaskInterface.register(_PREFIX + _name, ALL_MASK_ATTENTION_FUNCTIONS[_name])
