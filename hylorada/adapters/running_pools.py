"""Causal running means and maxima over tokens; they ignore pads and use the key/value cache."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from hylorada.errors import InputError


class History:
    """Running pools over earlier tokens, stored as extra layers of the key/value cache.

    The cache treats them as it treats keys and values: beam search reorders them, cropping shortens
    them, and repeating rows repeats them.

    Args:
        cache: key/value cache of the earlier tokens.
        first: number of layers of the base; the pools follow them in the cache.
        statistics: number of pools.

    Raises:
        InputError: the cache has a fixed size, or its tokens were computed without these pools.
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

    def extend(
        self, index: int, pooled: Tensor, count: Tensor, *, largest: bool
    ) -> tuple[Tensor, Tensor]:
        """Combine a pool of this call's tokens with that of earlier ones, and store the result.

        Args:
            index: number of the pool.
            pooled: [R, T, d] over the tokens of this call.
            count: [R, T] number of these tokens.
            largest: combine by maximum instead of sum.

        Returns:
            Pool and count over all tokens, in the same shapes.
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
    """The tokens of one pass.

    Attributes:
        mask: [R, T], 0 at pads; None without pads.
        history: pools over earlier tokens; None if there are no earlier tokens.
    """

    mask: Tensor | None = None
    history: History | None = None

    def of(self, seat: int, seats: int) -> "Tokens":
        """Return the tokens of one of K seats; only a single seat has earlier tokens."""
        if self.mask is None or seats == 1:
            return self
        return Tokens(self.mask.unflatten(0, (seats, -1))[seat], self.history)

    def running_mean(self, x: Tensor, *, index: int = 0) -> Tensor:
        """Return the mean [R, T, d] over each token and those before it, in fp32 or better.

        It is 0 where there are only pads so far.
        """
        values = x.to(torch.promote_types(x.dtype, torch.float32))
        values = values if self.mask is None else values.masked_fill(self.mask[..., None] == 0, 0)
        total, count = self._with_history(index, values.cumsum(1), x, largest=False)
        return total / count.clamp(min=1)[..., None]

    def running_maximum(self, x: Tensor, *, index: int = 0) -> Tensor:
        """Return each feature's maximum [R, T, d] over each token and those before it.

        It is 0 where there are only pads so far.
        """
        values = x if self.mask is None else x.masked_fill(self.mask[..., None] == 0, -torch.inf)
        largest, count = self._with_history(index, values.cummax(1).values, x, largest=True)
        return largest if self.mask is None else largest.masked_fill(count[..., None] == 0, 0)

    def _with_history(
        self, index: int, pooled: Tensor, x: Tensor, *, largest: bool
    ) -> tuple[Tensor, Tensor]:
        if self.mask is None:
            count = torch.arange(1, x.shape[1] + 1, dtype=pooled.dtype, device=x.device)[None]
        else:
            count = self.mask.to(pooled.dtype).cumsum(1)
        if self.history is None:
            return pooled, count
        return self.history.extend(index, pooled, count.expand(len(x), -1), largest=largest)
