"""Means and maxima over the tokens so far: causal, blind to pads, and going on where a key/value cache goes on."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from hylorada.errors import InputError


class History:
    """What was pooled before the tokens of this call, kept in the key/value cache as layers of its own.

    The cache then does to it what it does to keys and values: beams reorder it, cropping shortens it, rows repeat it.

    Args:
        cache: of the tokens before these.
        first: the base's number of layers; the statistics lie behind them.

    Raises:
        InputError: a cache of fixed size, or one whose tokens were computed without these statistics.
    """

    def __init__(self, cache: DynamicCache, first: int, statistics: int) -> None:
        if not isinstance(cache, DynamicCache) or cache.offloading:
            kind = "an offloaded one" if isinstance(cache, DynamicCache) else type(cache).__name__
            raise InputError(
                f"landmarks that pool over the tokens so far need a DynamicCache, got {kind}"
            )
        own = [layer for layer in cache.layers[first:] if isinstance(layer, DynamicLayer)]
        if {layer.get_seq_length() for layer in own} not in ({cache.get_seq_length()}, set()) or (
            cache.get_seq_length() and len(own) != statistics
        ):
            raise InputError(
                "this cache was filled without the adapter's landmarks; start with an empty one"
            )
        while len(cache.layers) < first + statistics:
            cache.layers.append(DynamicLayer())
        self._layers: list[DynamicLayer] = cache.layers[first:]  # type: ignore[assignment]

    def go_on(
        self, index: int, pooled: Tensor, count: Tensor, *, largest: bool
    ) -> tuple[Tensor, Tensor]:
        """Join what was pooled before, and keep the result.

        Args:
            index: of the statistic.
            pooled: [R, T, d] over the tokens of this call.
            count: [R, T] of these tokens.
            largest: join by maximum instead of sum.

        Returns:
            Both over all tokens, in the same shapes.
        """
        layer = self._layers[index]
        if layer.keys is not None and layer.values is not None:
            before, tokens = layer.keys[:, 0, -1:], layer.values[:, 0, -1:, 0]
            pooled, count = (
                torch.maximum(before, pooled) if largest else before + pooled,
                tokens + count,
            )
        layer.update(pooled[:, None], count[:, None, :, None])
        return pooled, count


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens of a pass.

    Attributes:
        mask: [R, T], 0 at pads; None where there are none.
        history: of the tokens before these; None where these are the first.
    """

    mask: Tensor | None = None
    history: History | None = None

    def running_mean(self, x: Tensor, *, index: int = 0) -> Tensor:
        """Mean [R, T, d] of x at this token and those before it; 0 where there are only pads. In fp32 or better."""
        values = x.to(torch.promote_types(x.dtype, torch.float32))
        values = values if self.mask is None else values.masked_fill(self.mask[..., None] == 0, 0)
        total, count = self._go_on(index, values.cumsum(1), x, largest=False)
        return total / count.clamp(min=1)[..., None]

    def running_maximum(self, x: Tensor, *, index: int = 0) -> Tensor:
        """Maximum [R, T, d] of each feature at this token and those before it; 0 where there are only pads."""
        values = x if self.mask is None else x.masked_fill(self.mask[..., None] == 0, -torch.inf)
        largest, count = self._go_on(index, values.cummax(1).values, x, largest=True)
        return largest if self.mask is None else largest.masked_fill(count[..., None] == 0, 0)

    def _go_on(
        self, index: int, pooled: Tensor, x: Tensor, *, largest: bool
    ) -> tuple[Tensor, Tensor]:
        if self.mask is None:
            count = torch.arange(1, x.shape[1] + 1, dtype=pooled.dtype, device=x.device)[None]
        else:
            count = self.mask.to(pooled.dtype).cumsum(1)
        if self.history is None:
            return pooled, count
        return self.history.go_on(index, pooled, count.expand(len(x), -1), largest=largest)
