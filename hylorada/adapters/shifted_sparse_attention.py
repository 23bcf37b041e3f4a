"""Shifted sparse attention (S2-Attn): while an adapter trains, a head sees one group of tokens.

LongLoRA (Chen et al. 2023) trains with attention within groups of G tokens. Half of the heads use
groups that are shifted by half a group, so that neighbouring groups exchange information;
evaluation attends fully. Key j is visible to query i if and only if

    j <= i    and    floor((j + s) / G) = floor((i + s) / G)

with s = 0 in the first half of the query heads and s = floor(G / 2) in the others. In shifted heads
the first and the last half of a group are thus groups of their own. LongLoRA rolls the tokens by s
instead, which puts these two halves into one group, so that its first tokens see the last ones.
Here no query sees a key that it would not see under full causal attention.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hylorada.adapters.buckets import Positions
from hylorada.errors import InputError
from hylorada.runtime.devices import to_device

# Computes attention from query, key, value [R, heads, T, head_dim] and a mask: the output
# [R, T, heads, head_dim] and the weights, if there are any.
Attention = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]


def visible_keys(positions: Tensor, group: int, heads: int) -> Tensor:
    """Return which keys are visible to which queries: [n, heads, T queries, T keys].

    Args:
        positions: token positions [n, T].
        group: number G of tokens in a group.
        heads: number of query heads; those from ``heads // 2`` on are shifted.
    """
    length, device = positions.shape[1], positions.device
    shifts = (torch.arange(heads, device=device) >= heads // 2) * (group // 2)
    groups = (positions[:, None] + shifts[:, None]) // group  # [n, heads, T]
    # "earlier" is decided by the place in the row, because positions may start again within it
    earlier = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return earlier & (groups[..., :, None] == groups[..., None, :])


@dataclass(eq=False)
class LikeSeats:
    """Seats of a pack whose heads attend within groups of the same size, or fully.

    Attributes:
        seats: [n], their numbers.
        mask: [1 or n * b, heads, T, T], 0 at visible keys and the lowest number at all others; None
            if they attend fully.
    """

    seats: Tensor
    mask: Tensor | None

    def combined(self, given: Tensor | None) -> Tensor | None:
        """Return the base's own mask (of a sliding window or pads) with the groups added."""
        if self.mask is None or given is None:
            return given if self.mask is None else self.mask
        lowest = torch.finfo(self.mask.dtype).min
        if given.dtype == torch.bool:
            return torch.where(given, self.mask, lowest)
        return torch.where(self.mask < 0, lowest, given)


@dataclass(eq=False)
class HeadGroups:
    """The groups of all seats of a pack. No tensor is a view.

    Attributes:
        parts: the seats by their size of group.
        order: [K], place of each seat in the concatenated parts.
        rows: rows b of each seat; None takes them from the input.
    """

    parts: list[LikeSeats]
    order: Tensor
    rows: int | None

    def dynamic(self) -> list[tuple[Tensor, int]]:
        """Return each tensor with the dimension that varies between packs: K or n."""
        return [(self.order, 0), *((part.seats, 0) for part in self.parts)]

    def attend(
        self, whole: Attention, query: Tensor, key: Tensor, value: Tensor, given: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the base's attention within groups.

        Args:
            whole: the base's own attention.
            query: [K * b, heads, T, head_dim].
            key: [K * b, key/value heads, T, head_dim].
            value: [K * b, key/value heads, T, head_dim].
            given: the base's mask [1 or K * b, 1 or heads, T, T], or None for plain causality.

        Raises:
            InputError: the call continues from a key/value cache.
        """
        if key.shape[2] != query.shape[2]:
            raise InputError(
                "shifted_sparse_attention can't train on a text that continues from a key/value "
                "cache; pass the whole text, or call eval() to attend fully"
            )
        if len(self.parts) == 1:
            return whole(query, key, value, self.parts[0].combined(given))
        outputs = []
        for part in self.parts:
            own = [self._rows_of(part, x) for x in (query, key, value)]
            shared = given is None or len(given) == 1
            mask = given if shared or given is None else self._rows_of(part, given)
            output, _ = whole(own[0], own[1], own[2], part.combined(mask))
            outputs.append(output.unflatten(0, (len(part.seats), -1)))
        return torch.cat(outputs).index_select(0, self.order).flatten(0, 1), None

    def _rows_of(self, part: LikeSeats, x: Tensor) -> Tensor:
        """Return the rows [n * b, ...] of some seats out of x [K * b, ...]."""
        seats = self.order.shape[0]
        rows = x.shape[0] // seats if self.rows is None else self.rows
        return x.unflatten(0, (seats, rows)).index_select(0, part.seats).flatten(0, 1)


def group_heads(
    groups: Sequence[int | None],
    positions: Positions,
    heads: int,
    dtype: torch.dtype,
    rows: int | None,
) -> HeadGroups | None:
    """Return what K seats add to the base's attention; None if all of them attend fully.

    Args:
        groups: tokens in a group for each seat; None attends fully.
        positions: of the tokens of the pass.
        heads: number of query heads.
        dtype: dtype of the base.
        rows: rows b of each seat, or None.
    """
    if all(group is None for group in groups):
        return None
    seats: dict[int | None, list[int]] = defaultdict(list)
    for seat, group in enumerate(groups):
        seats[group].append(seat)
    placed = [seat for members in seats.values() for seat in members]
    order = sorted(range(len(placed)), key=placed.__getitem__)
    device = positions.by_seat.device
    parts = []
    for group, members in seats.items():
        mask = None if group is None else _mask(positions, members, group, heads, dtype)
        parts.append(LikeSeats(to_device(members, device), mask))
    return HeadGroups(parts, to_device(order, device), rows)


def _mask(
    positions: Positions, seats: Sequence[int], group: int, heads: int, dtype: torch.dtype
) -> Tensor:
    """Return the additive mask of seats with groups of one size; see :class:`LikeSeats`."""
    shared = len(positions.by_seat) == 1
    own = positions.of(0) if shared else torch.cat([positions.of(seat) for seat in seats])
    visible = visible_keys(own, group, heads)
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)
