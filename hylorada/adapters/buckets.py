"""Position buckets: their edges, and the bucket of a position, hard or soft.

p is a position in tokens, u = p / max_positions, B the number of buckets. A position's buckets are
always given as weights [..., B] that sum to 1; hard buckets are one-hot.
"""

import math
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from hylorada.config import BoundaryInit, BucketSpacing


def fixed_edges(num_buckets: int, max_positions: int, spacing: BucketSpacing) -> list[int]:
    """Return the first position of every bucket after the first (B-1 integers).

    ``linear`` spacing gives equal widths. ``log`` gives the first B/2 buckets one position each and
    spaces the rest logarithmically up to ``max_positions``, as T5's relative buckets do (Raffel et
    al. 2020, appendix: floor(log(p / half) / log(max / half) * (B - half)), solved for p). A single
    bucket has no edges.
    """
    if spacing == "linear":
        return [math.ceil(i * max_positions / num_buckets) for i in range(1, num_buckets)]
    if num_buckets == 1:
        return []
    half = num_buckets // 2
    ratio = max(1.0, max_positions / half)
    # 1e-9 keeps rounding from pushing a power that is an exact integer up to the next one.
    rest = [
        math.ceil(half * ratio ** ((i - half) / (num_buckets - half)) - 1e-9)
        for i in range(half + 1, num_buckets)
    ]
    return [*range(1, half + 1), *rest]


def hard_bucket(positions: Tensor, edges: Tensor) -> Tensor:
    """Return the index of each position's bucket: the number of edges at or below the position."""
    return torch.bucketize(positions.contiguous(), edges, right=True)  # else torch warns


class Positions:
    """Token positions of one pass, with each bucket lookup computed once for all seats.

    Args:
        positions: [1, T] if all rows of all seats share them, or [K * b, T].
        seats: number of seats K.
    """

    def __init__(self, positions: Tensor, seats: int) -> None:
        shared = len(positions) == 1
        self.by_seat = (positions if shared else positions.unflatten(0, (seats, -1))).view(
            1 if shared else seats, -1, positions.shape[-1]
        )  # [1 or K, 1 or b, T]
        self._known: dict[Any, Tensor] = {}

    def of(self, seat: int) -> Tensor:
        """Return the positions [1 or b, T] of a seat's rows."""
        return self.by_seat[seat if len(self.by_seat) > 1 else 0]

    def hard(self, seat: int, edges: Tensor, key: Hashable) -> Tensor:
        """Return the bucket [1 or b, T] of each position of a seat; ``key`` names the edges."""
        place = (key, seat if len(self.by_seat) > 1 else 0)
        if place not in self._known:
            self._known[place] = hard_bucket(self.of(seat), edges)
        return self._known[place]


def soft_bucket_weights(
    positions: Tensor, boundaries: Tensor, temperature: float | Tensor, max_positions: int | Tensor
) -> Tensor:
    """Return the weights [..., B] of the soft buckets between B-1 boundaries.

    With sorted boundaries b and s_i = sigmoid((u - b_i) / temperature), the weights are 1 - s_1,
    s_i - s_{i+1} and s_{B-1}. They telescope, so they sum to 1, and they become one-hot as the
    temperature goes to 0.

    Args:
        positions: token positions [...] of any shape; with S sets of boundaries, [1 or S, ...].
        boundaries: [B-1] in units of u, in any order, or [S, B-1]. A boundary at infinity adds an
            empty bucket at the end.
        temperature: softness in units of u, a number or [S].
        max_positions: block length T that u is relative to, a number or [S].

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
    """Return the initial boundaries [B-1], sorted, in units of u.

    An edge between positions e-1 and e becomes a boundary half-way, at (e - 0.5) / max_positions:
    then no position lies exactly on a boundary, and soft buckets approach hard ones everywhere.
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
    """Return the gaps [..., B] between neighbouring boundaries, with 0 and 1 as outermost ones."""
    ordered = boundaries.sort().values
    one, zero = torch.ones_like(ordered[..., :1]), torch.zeros_like(ordered[..., :1])
    return torch.cat([ordered, one], -1) - torch.cat([zero, ordered], -1)


def boundary_penalty(
    boundaries: Tensor, diversity: float | Tensor, repulsion: float | Tensor
) -> Tensor:
    """Return -diversity * std(b) - repulsion * (smallest gap) for boundaries b [..., B-1].

    The gradient of std is taken as 0 where std is 0 (all boundaries in one place, or B = 2).

    Args:
        boundaries: [..., B-1] in units of u.
        diversity: weight [...] of the spread.
        repulsion: weight [...] of the smallest gap.
    """
    variance = boundaries.var(-1, correction=0)
    spread = torch.where(variance > 0, variance, 1).sqrt() * (variance > 0)
    return -diversity * spread - repulsion * boundary_gaps(boundaries).amin(-1)
