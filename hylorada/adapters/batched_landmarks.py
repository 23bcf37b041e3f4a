"""The landmarks of all seats of a pack at once; each seat's numbers are those of its module's own ``forward``.

Seats of unequal L and B are padded: a padded landmark has weight 0 and a padded bucket no position. A seat without
landmarks of the design at hand gets landmarks of zeros.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from hylorada.adapters.buckets import Positions, soft_bucket_weights
from hylorada.adapters.landmarks import (
    AttentionIntegratedLandmark,
    Landmark,
    LandmarkLoRA,
    LearnableBucketLandmark,
    NormLandmark,
    PerLayerLandmark,
    PositionAdaptiveLandmark,
    PositionLandmark,
)
from hylorada.adapters.running_pools import Tokens
from hylorada.runtime.devices import column, to_device

LandmarkT = TypeVar("LandmarkT", bound=Landmark)


def mix_at_norm(
    modules: Sequence[NormLandmark | None], hidden: Tensor, positions: Positions, tokens: Tokens
) -> Tensor:
    """Add to each seat's rows its own landmarks after the final norm.

    Args:
        modules: of the K seats.
        hidden: [K * b, T, d], of any floating dtype.
        positions: of the pass.
        tokens: of the pass.

    Returns:
        [K * b, T, d] in the dtype of ``hidden``.
    """
    landmarks = _most(modules)
    content = _stacked(modules, lambda m: m.content_gate).to(hidden.dtype)  # [K, L, d]
    vectors = _stacked(modules, lambda m: m.scale * m.landmarks).to(hidden.dtype)  # [K, L, d]
    h = hidden.view(len(modules), -1, hidden.shape[-1])  # [K, b * T, d]
    source = _pooled_for_global(modules, hidden, tokens).view(h.shape)
    logits = torch.bmm(source, content.mT).view(
        len(modules), -1, hidden.shape[1], landmarks
    )  # [K, b, T, L]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if any(isinstance(m, PositionLandmark) for m in modules):
        logits = logits + _position_logits(modules, positions, logits)
    if len({m.num_landmarks for m in modules if m is not None}) > 1:
        logits = logits + _padding(modules, logits)[:, None, None]
    weights = torch.softmax(logits, dim=-1).to(hidden.dtype)
    return torch.baddbmm(h, weights.view(*h.shape[:2], landmarks), vectors).view(hidden.shape)


@dataclass(eq=False)
class LayerMix:
    """Landmarks at the MLP output of one layer. All are tensors of their own, no views (see :class:`Slot`).

    Attributes:
        gate: [K, L, d].
        vectors: [K, L, d], scaled.
        padding: [K, L], -inf at padded landmarks.
        noncausal: [K], true for seats that pool over the whole block; None without such.
        rows: b; None takes it from the input.
        tokens: of the pass.
        layer: its number.
    """

    gate: Tensor
    vectors: Tensor
    padding: Tensor
    noncausal: Tensor | None
    rows: int | None
    tokens: Tokens
    layer: int

    def dynamic(self) -> list[tuple[Tensor, int]]:
        """Tensors and their dimensions that differ from pack to pack: K and L."""
        found = [(t, i) for t in (self.gate, self.vectors, self.padding) for i in (0, 1)]
        return found if self.noncausal is None else [*found, (self.noncausal, 0)]

    def add_to(self, output: Tensor) -> Tensor:
        """[K * b, T, d]"""
        seats, length, size = self.gate.shape[0], output.shape[1], output.shape[2]
        rows = output.shape[0] // seats if self.rows is None else self.rows
        # the layer is not read without need: compiled code would then tell the layers apart
        index = 0 if self.tokens.history is None else self.layer
        pooled = self.tokens.running_maximum(output, index=index).view(seats, rows, length, size)
        if self.noncausal is not None:
            pooled = torch.where(self.noncausal[:, None, None, None], pooled[:, :, -1:], pooled)
        logits = torch.bmm(pooled.view(seats, rows * length, size), self.gate.mT)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        weights = torch.softmax(logits + self.padding[:, None], dim=-1)
        return output + torch.bmm(weights.to(output.dtype), self.vectors).view(output.shape)


def layer_mixes(
    modules: Sequence[PerLayerLandmark | None], dtype: torch.dtype, rows: int | None, tokens: Tokens
) -> list[LayerMix]:
    """By layer the landmarks of K seats, in the dtype of the base."""
    gates = _stacked(modules, lambda m: m.gates)  # [K, layers, L, d]
    vectors = _stacked(modules, lambda m: m.scale[:, None, None] * m.landmarks)
    columns = zip(_by_layer(gates.to(dtype)), _by_layer(vectors.to(dtype)), strict=True)
    padding = _padding(modules, gates)
    noncausal = None
    if any(m is not None and m.noncausal for m in modules):
        noncausal = to_device([m is not None and m.noncausal for m in modules], gates.device)
    return [
        LayerMix(gate, bank, padding, noncausal, rows, tokens, layer)
        for layer, (gate, bank) in enumerate(columns)
    ]


@dataclass(eq=False)
class HeadMix:
    """Landmarks of one layer's attention heads; tensors of their own.

    Attributes:
        keys: [K, key/value heads, L, head_dim].
        values: the same, scaled.
        padding: [K, L], -inf at padded landmarks.
        rows: b; None takes it from the input.
    """

    keys: Tensor
    values: Tensor
    padding: Tensor
    rows: int | None

    def dynamic(self) -> list[tuple[Tensor, int]]:
        """Tensors and their dimensions that differ from pack to pack: K and L."""
        banks = [(t, i) for t in (self.keys, self.values) for i in (0, 2)]
        return [*banks, (self.padding, 0), (self.padding, 1)]

    def context(self, query: Tensor, scaling: float) -> Tensor:
        """What is added to the attention's output.

        Args:
            query: [K * b, query heads, T, head_dim].
            scaling: of the logits.

        Returns:
            [K * b, T, query heads, head_dim].
        """
        seats, heads, length, size = (
            self.keys.shape[0],
            query.shape[1],
            query.shape[2],
            query.shape[3],
        )
        rows = query.shape[0] // seats if self.rows is None else self.rows
        kv_heads, landmarks = self.keys.shape[1], self.keys.shape[2]
        shape = (
            seats,
            rows,
            kv_heads,
            heads // kv_heads * length,
            size,
        )  # a head's queries follow each other
        q = query.reshape(shape).transpose(1, 2).reshape(seats * kv_heads, -1, size)
        logits = scaling * torch.bmm(q, self.keys.view(seats * kv_heads, landmarks, size).mT)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).view(
            seats, -1, landmarks
        )
        weights = torch.softmax(logits + self.padding[:, None], dim=-1)
        weights = weights.to(query.dtype).view(seats * kv_heads, -1, landmarks)
        mixed = torch.bmm(weights, self.values.view(seats * kv_heads, landmarks, size))
        mixed = mixed.view(seats, kv_heads, rows, -1, size).transpose(1, 2)
        return mixed.reshape(query.shape).transpose(1, 2)


def head_mixes(
    modules: Sequence[AttentionIntegratedLandmark | None], dtype: torch.dtype, rows: int | None
) -> list[HeadMix]:
    """By layer the landmarks of K seats, in the dtype of the base."""
    keys = _stacked(modules, lambda m: m.keys)  # [K, layers, heads, L, head_dim]
    values = _stacked(modules, lambda m: m.scale[:, None, None, None] * m.values)
    columns = zip(_by_layer(keys.to(dtype)), _by_layer(values.to(dtype)), strict=True)
    padding = _padding(modules, keys)
    return [HeadMix(k, v, padding, rows) for k, v in columns]


def _by_layer(x: Tensor) -> Sequence[Tensor]:
    """[K, layers, ...] as one tensor a layer."""
    found: Sequence[Tensor] = torch.ops.aten.unbind_copy(x, 1)
    return found


def _most(modules: Sequence[LandmarkT | None]) -> int:
    return max(m.num_landmarks for m in modules if m is not None)


def _stacked(modules: Sequence[LandmarkT | None], get: Callable[[LandmarkT], Tensor]) -> Tensor:
    """A tensor [..., L, d] of each seat as [K, ..., max L, d]; zeros for a seat without."""
    landmarks = _most(modules)
    found = [
        None if m is None else F.pad(get(m), (0, 0, 0, landmarks - m.num_landmarks))
        for m in modules
    ]
    shape = next(x for x in found if x is not None)
    return torch.stack([torch.zeros_like(shape) if x is None else x for x in found])


def _padding(modules: Sequence[Landmark | None], like: Tensor) -> Tensor:
    """[K, max L]: 0 for a seat's own landmarks, -inf for padding."""
    landmarks = _most(modules)
    return _mask(
        tuple(landmarks if m is None else m.num_landmarks for m in modules), like.dtype, like.device
    )


@lru_cache(64)
def _mask(counts: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # what is kept must serve training too
        own = torch.arange(max(counts), device=device) < to_device(counts, device)[:, None]
        return torch.zeros(own.shape, dtype=dtype, device=device).masked_fill_(~own, -torch.inf)


def _pooled_for_global(
    modules: Sequence[NormLandmark | None], hidden: Tensor, tokens: Tokens
) -> Tensor:
    """What the content gates look at: the hidden states themselves, their running mean for ``global`` seats."""
    seats = [k for k, m in enumerate(modules) if isinstance(m, LandmarkLoRA)]
    if not seats:
        return hidden
    mean: Tensor = (
        tokens.running_mean(hidden).to(hidden.dtype).unflatten(0, (len(modules), -1))
    )  # [K, b, T, d]
    noncausal = [isinstance(m, LandmarkLoRA) and m.noncausal for m in modules]
    if any(noncausal):
        mean = torch.where(
            to_device(noncausal, hidden.device)[:, None, None, None], mean[:, :, -1:], mean
        )
    if len(seats) == len(modules):
        return mean.flatten(0, 1)
    chosen = to_device([isinstance(m, LandmarkLoRA) for m in modules], hidden.device)
    source: Tensor = torch.where(chosen[:, None, None, None], mean, hidden.view(mean.shape))
    return source.flatten(0, 1)


def _position_logits(
    modules: Sequence[NormLandmark | None], positions: Positions, like: Tensor
) -> Tensor:
    """[K, 1 or b, T, L]; zeros for a seat without position buckets."""
    landmarks = like.shape[-1]
    buckets = max(m.num_buckets for m in modules if isinstance(m, PositionLandmark))
    none = like.new_zeros(buckets, landmarks)
    gates = torch.stack(
        [_padded_gates(m, none) if isinstance(m, PositionLandmark) else none for m in modules]
    )
    return _bucket_weights(modules, buckets, positions, gates) @ gates[:, None]


def _padded_gates(module: PositionLandmark, like: Tensor) -> Tensor:
    gates = module.position_gates
    return F.pad(gates, (0, like.shape[1] - gates.shape[1], 0, like.shape[0] - gates.shape[0]))


def _bucket_weights(
    modules: Sequence[NormLandmark | None], buckets: int, positions: Positions, like: Tensor
) -> Tensor:
    """Weights [K, 1 or b, T, B] of every seat; zeros for a seat without buckets."""
    soft = [(k, m) for k, m in enumerate(modules) if isinstance(m, LearnableBucketLandmark)]
    weights: dict[int, Tensor] = {}
    if soft:
        boundaries = torch.stack(
            [F.pad(m.boundaries, (0, buckets - m.num_buckets), value=torch.inf) for _, m in soft]
        )
        constants = tuple((m.temperature, float(m.max_positions)) for _, m in soft)
        temperature, lengths = column(constants, like.dtype, like.device)
        at = torch.stack([positions.of(k) for k, _ in soft])
        found = soft_bucket_weights(at, boundaries, temperature, lengths)
        weights |= dict(zip((k for k, _ in soft), found.unbind(), strict=True))
    for k, module in enumerate(modules):
        if isinstance(module, PositionAdaptiveLandmark):
            index = positions.hard(k, module.edges, module.edges_key)
            weights[k] = F.one_hot(index, buckets).to(like.dtype)
        elif k not in weights:
            weights[k] = like.new_zeros(*positions.of(k).shape, buckets)
    return torch.stack([weights[k] for k in range(len(modules))])
