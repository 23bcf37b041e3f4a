"""Dropout masks of the seats of a pack, each drawn from its seat's own random stream."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hylorada.adapters.adapter import Adapter
from hylorada.adapters.landmarks.base import Landmark


class Masks:
    """Draws inverted dropout masks for one place in the base.

    Args:
        adapters: adapters of the K seats.
        rates: dropout rate of each seat. A seat whose rate is 0 draws no numbers, so its stream
            doesn't depend on its neighbours.
    """

    def __init__(self, adapters: Sequence[Adapter], rates: Sequence[float]) -> None:
        self._seats = list(zip(adapters, rates, strict=True))

    def __call__(self, x: Tensor) -> Tensor:
        """Return the masks for an input x [K, b, T, ...]."""
        # numbers are drawn in the order of memory, which must not depend on the strides of x, and
        # on the device of the streams, from which layers may have been moved away
        device = self._seats[0][0].dropout_stream.device
        masks = torch.ones_like(x, memory_format=torch.contiguous_format, device=device)
        for mask, (adapter, rate) in zip(masks, self._seats, strict=True):
            if rate:
                mask.bernoulli_(1 - rate, generator=adapter.dropout_stream).div_(1 - rate)
        return masks.to(x.device)


def lora_masks(adapters: Sequence[Adapter], path: str) -> Masks | None:
    """Return the masks for the input of the adapted module at ``path``; None without dropout."""
    return _masks(adapters, [a.config.lora_dropout if path in a.targets else 0.0 for a in adapters])


def landmark_masks(adapters: Sequence[Adapter], modules: Sequence[Landmark | None]) -> Masks | None:
    """Return the masks for what landmarks add; None without dropout.

    Args:
        adapters: adapters of the K seats.
        modules: landmark module of each seat; None for a seat that adds nothing there.
    """
    pairs = zip(adapters, modules, strict=True)
    return _masks(adapters, [0.0 if m is None else a.config.landmark_dropout for a, m in pairs])


def draws_in_layers(adapter: Adapter) -> bool:
    """Return whether an adapter is training and then draws masks inside the decoder layers."""
    config = adapter.config
    inside = adapter.landmark is not None and not adapter.landmark.at_norm
    drops = config.lora_dropout or (inside and config.landmark_dropout)
    return adapter.training and bool(drops)


def _masks(adapters: Sequence[Adapter], rates: Sequence[float]) -> Masks | None:
    """Return the masks of the adapters in training mode; None if all their rates are 0."""
    rates = [p if a.training else 0.0 for a, p in zip(adapters, rates, strict=True)]
    return Masks(adapters, rates) if any(rates) else None
