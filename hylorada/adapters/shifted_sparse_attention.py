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

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hylorada.adapters.buckets import Positions
from hylorada.errors import InputError

# Computes attention from query, key and value [R, heads, T, head_dim] and a mask. Returns the
# output [R, T, heads, head_dim], and the weights if it has any.
Attention = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]


def visible_keys(positions: Tensor, group: int | None, heads: int) -> Tensor:
    """Return which keys are visible to which queries: [n, heads, T queries, T keys].

    Args:
        positions: token positions [n, T].
        group: number G of tokens in a group; None attends fully.
        heads: number of query heads; those from ``heads // 2`` on are shifted.
    """
    rows, length = positions.shape
    # Positions may start again within a row, so a token's place decides what is earlier.
    places = torch.arange(length, device=positions.device)
    earlier = places <= places[:, None]
    if group is None:
        return earlier.expand(rows, heads, length, length)
    shifts = (torch.arange(heads, device=positions.device) >= heads // 2) * (group // 2)
    groups = (positions[:, None] + shifts[:, None]) // group  # [n, heads, T]
    return earlier & (groups[..., :, None] == groups[..., None, :])


@dataclass(eq=False)
class HeadGroups:
    """What the heads of all seats see. The tensor is not a view.

    Attributes:
        mask: [1, K or K * b, heads, T, T], 0 at visible keys and the lowest number at all others.
            One row serves all seats if they have equal groups; K rows serve b rows each.
    """

    mask: Tensor

    def dynamic(self) -> list[tuple[Tensor, int]]:
        """Return each tensor with the dimension that varies between packs."""
        return [(self.mask, 0)]

    def attend(
        self, whole: Attention, query: Tensor, key: Tensor, value: Tensor, given: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the base's attention within the groups.

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
        return whole(query, key, value, self._combined(given, query.shape[0]))

    def _combined(self, given: Tensor | None, rows: int) -> Tensor:
        """Return the mask for all rows, with what the base itself hides (pads, a window) added."""
        mask, lowest = self.mask, torch.finfo(self.mask.dtype).min
        if mask.shape[0] not in (1, rows):
            mask = mask.repeat_interleave(rows // mask.shape[0], dim=0)
        if given is None:
            return mask
        if given.dtype == torch.bool:
            return torch.where(given, mask, lowest)
        return torch.where(mask < 0, lowest, given)


def group_heads(
    groups: Sequence[int | None],
    positions: Positions,
    heads: int,
    dtype: torch.dtype,
    rows: int | None,
) -> HeadGroups | None:
    """Return what changes in the base's attention for K seats; None if all attend fully.

    Args:
        groups: tokens in a group for each seat; None attends fully.
        positions: of the tokens of the pass.
        heads: number of query heads.
        dtype: dtype of the base.
        rows: rows b of each seat, or None.
    """
    if all(group is None for group in groups):
        return None
    if len(set(groups)) == len(positions.by_seat) == 1:
        own = positions.of(0)
        if len(own) > 1 and bool((own == own[:1]).all()):  # a batch whose rows have no pads
            own = own[:1]
        visible = visible_keys(own, groups[0], heads)
    else:
        seats = [visible_keys(positions.of(k), group, heads) for k, group in enumerate(groups)]
        visible = torch.cat([v.expand(max(rows or 1, len(v)), -1, -1, -1) for v in seats])
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return HeadGroups(mask.masked_fill_(~visible, torch.finfo(dtype).min))
