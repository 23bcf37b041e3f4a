"""Decoder layers compiled by ``torch.compile``: one serves all layers, adapters and pack sizes."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

# Limit on the compiled variants of a layer. Beyond torch's default of 8, it would silently run
# eagerly.
_VARIANTS = 64


class Part(Protocol):
    """The low-rank update and other additions that a pass makes to one module."""

    def dynamic(self) -> list[tuple[Tensor, int]]:
        """Return each tensor with the dimensions that vary between packs."""


def compiled(
    forward: Callable[..., Any], backend: str, runs_eagerly: Callable[[], bool]
) -> Callable[..., Any]:
    """Return a layer's forward that is compiled on first use.

    Args:
        forward: forward of the layer.
        backend: backend of ``torch.compile``.
        runs_eagerly: returns whether a call has to run uncompiled.
    """
    # torch._dynamo takes seconds to import, so it is imported only when needed
    from torch._dynamo import config, maybe_mark_dynamic

    # one variant each for training and evaluation, the first layer and the others, one seat
    # and many
    config.recompile_limit = max(config.recompile_limit, _VARIANTS)
    compiled_forward = torch.compile(forward, backend=backend)

    def call(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        if runs_eagerly():
            return forward(hidden_states, *args, **kwargs)
        maybe_mark_dynamic(hidden_states, 0)
        return compiled_forward(hidden_states, *args, **kwargs)

    return call


def mark_dynamic(*parts: Part) -> None:
    """Tell ``torch.compile`` which dimensions of these parts' tensors vary between packs."""
    from torch._dynamo import maybe_mark_dynamic

    for part in parts:
        for tensor, dimension in part.dynamic():
            maybe_mark_dynamic(tensor, dimension)
