"""Gradient checkpointing: decoder layers are computed again in the backward pass, as they were.

A recomputed layer must add what its first forward added, whatever the pack adds by then, and draw
the same dropout masks.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint

from hylorada.multi_adapter.dropout import draws_in_layers

if TYPE_CHECKING:
    from hylorada.multi_adapter.pack import Pack, Prepared

Contexts = tuple[AbstractContextManager[None], AbstractContextManager[None]]


class Recomputation:
    """Restores the additions and the dropout streams of a call; may be entered repeatedly.

    Args:
        pack: the pack that runs the call.
        prepared: what the pack adds in this call.
    """

    def __init__(self, pack: "Pack", prepared: "Prepared") -> None:
        self._pack, self._prepared = pack, prepared
        drawing = [a.dropout_stream for a in prepared.adapters if draws_in_layers(a)]
        self._streams = [(stream, stream.get_state()) for stream in drawing]

    def __enter__(self) -> None:
        self._stack = ExitStack()
        for stream, then in self._streams:
            self._stack.callback(stream.set_state, stream.get_state())
            stream.set_state(then)
        self._stack.enter_context(self._pack.filled(self._prepared))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)


def checkpointed(
    forward: Callable[..., Any], contexts: Callable[[], Contexts]
) -> Callable[..., Any]:
    """Return a layer's forward that keeps only its inputs for the backward pass.

    Where no gradient is wanted, it is the forward itself.

    Args:
        forward: forward of a layer.
        contexts: returns the contexts of a forward and of its recomputation; called at each
            forward.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        # The base draws no random numbers, and seats draw theirs from streams of their own.
        return checkpoint(
            forward,
            *args,
            use_reentrant=False,
            context_fn=contexts,
            preserve_rng_state=False,
            **kwargs,
        )

    return call
