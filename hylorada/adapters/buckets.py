"""Position buckets: where their edges lie, and which bucket a position is in, hard or soft.

p is a position in tokens, u = p / max_positions, B the number of buckets. A bucket assignment is always a matrix of
weights [..., B] that sum to 1; hard buckets are one-hot.
"""

import math
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from hylorada.config import BoundaryInit, BucketSpacing


def fixed_edges(num_buckets: int, max_positions: int, spacing: BucketSpacing) -> list[int]:
    """First position of each bucket but the first (B-1 whole numbers).

    ``linear`` gives equal widths. ``log`` gives the first B/2 buckets one position each and spaces the rest
    logarithmically up to ``max_positions``, as T5's relative buckets do (Raffel et al. 2020, appendix; its formula
    floor(log(p / half) / log(max / half) * (B - half)) solved for p).
    """
    if spacing == "linear":
        return [math.ceil(i * max_positions / num_buckets) for i in range(1, num_buckets)]
    half = num_buckets // 2
    ratio = max(1.0, max_positions / half)
    # 1e-9: a power that is a whole number in exact arithmetic must not be pushed to the next one by rounding
    rest = [
        math.ceil(half * ratio ** ((i - half) / (num_buckets - half)) - 1e-9)
        for i in range(half + 1, num_buckets)
    ]
    return [*range(1, half + 1), *rest]


def hard_bucket(positions: Tensor, edges: Tensor) -> Tensor:
    """Index of each position's bucket: the number of edges at or below it; beyond the last edge, the last bucket."""
    return torch.bucketize(positions.contiguous(), edges, right=True)  # torch warns of others


class Positions:
    """The token positions of one pass; what many seats look up is computed once.

    Args:
        positions: [1, T] for all rows of all seats, or [K * b, T].
        seats: K.
    """

    def __init__(self, positions: Tensor, seats: int) -> None:
        shared = len(positions) == 1
        self.by_seat = (positions if shared else positions.unflatten(0, (seats, -1))).view(
            1 if shared else seats, -1, positions.shape[-1]
        )  # [1 or K, 1 or b, T]
        self._known: dict[Any, Tensor] = {}

    def of(self, seat: int) -> Tensor:
        """[1 or b, T]"""
        return self.by_seat[seat if len(self.by_seat) > 1 else 0]

    def hard(self, seat: int, edges: Tensor, key: Hashable) -> Tensor:
        """Bucket of each position of a seat, [1 or b, T]; ``key`` names the edges."""
        place = (key, seat if len(self.by_seat) > 1 else 0)
        if place not in self._known:
            self._known[place] = hard_bucket(self.of(seat), edges)
        return self._known[place]


def soft_bucket_weights(
    positions: Tensor, boundaries: Tensor, temperature: float | Tensor, max_positions: int | Tensor
) -> Tensor:
    """Weights [..., B] of the soft buckets between B-1 boundaries.

    With sorted boundaries b and s_i = sigmoid((u - b_i) / temperature) the weights are 1 - s_1, s_i - s_{i+1}, s_{B-1}:
    a telescoping sum, hence exactly 1 in exact arithmetic. As the temperature goes to 0 they become one-hot.

    Args:
        positions: token positions [...], any shape; with S sets of boundaries [1 or S, ...].
        boundaries: [B-1] in units of u, in any order, or [S, B-1]; one at infinity adds an empty bucket at the end.
        temperature: softness in units of u; a number, or one for each set [S].
        max_positions: T, the length that u is relative to; a number or [S].

    Returns:
        [..., B], or [S, ..., B].
    """
    ordered = boundaries.sort().values
    u = positions.to(boundaries.dtype)
    if boundaries.ndim == 2:
        sets = (-1, *[1] * (positions.ndim - 1))
        ordered = ordered.view(*sets, boundaries.shape[-1])
        assert isinstance(max_positions, Tensor)
        assert isinstance(temperature, Tensor)
        max_positions, temperature = max_positions.view(sets), temperature.view(*sets, 1)
    s = torch.sigmoid(((u / max_positions)[..., None] - ordered) / temperature)
    one, zero = torch.ones_like(s[..., :1]), torch.zeros_like(s[..., :1])
    return torch.cat([one, s], -1) - torch.cat([s, zero], -1)


def initial_boundaries(
    init: BoundaryInit,
    num_buckets: int,
    max_positions: int,
    generator: torch.Generator,
    dtype: torch.dtype,
) -> Tensor:
    """Starting boundaries [B-1], sorted, in units of u.

    An edge between positions e-1 and e is put half-way, at (e - 0.5) / max_positions, so that no position sits exactly
    on a boundary and the soft buckets tend to the hard ones everywhere.
    """
    if init == "random":
        return (
            torch.rand(num_buckets - 1, generator=generator, dtype=torch.float64)
            .sort()
            .values.to(dtype)
        )
    edges = fixed_edges(num_buckets, max_positions, "linear" if init == "uniform" else "log")
    return ((torch.tensor(edges, dtype=torch.float64) - 0.5) / max_positions).to(dtype)


def boundary_gaps(boundaries: Tensor) -> Tensor:
    """Gaps [..., B] between sorted neighbours, with the edges 0 and 1 as neighbours of the outermost boundaries."""
    ordered = boundaries.sort().values
    one, zero = torch.ones_like(ordered[..., :1]), torch.zeros_like(ordered[..., :1])
    return torch.cat([ordered, one], -1) - torch.cat([zero, ordered], -1)


def boundary_penalty(
    boundaries: Tensor, diversity: float | Tensor, repulsion: float | Tensor
) -> Tensor:
    """Regularizer -diversity * std(b) - repulsion * min gap, for boundaries [..., B-1] and weights [...].

    The gradient of std at its zero (all boundaries in one place, B = 2 included) is taken as 0.
    """
    variance = boundaries.var(-1, correction=0)
    spread = torch.where(variance > 0, variance, 1).sqrt() * (variance > 0)
    return -diversity * spread - repulsion * boundary_gaps(boundaries).amin(-1)
