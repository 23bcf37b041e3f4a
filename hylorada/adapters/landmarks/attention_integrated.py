"""The ``attention`` design: trained keys and values for the heads of every layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from hylorada.adapters.landmarks.base import (
    DrawMasks,
    Landmark,
    by_layer,
    dropped,
    initial_gates,
    stacked,
)
from hylorada.adapters.landmarks.base import padding as padding_of
from hylorada.config import HyLoRADAConfig


class AttentionIntegratedLandmark(Landmark):
    """L trained keys and values for each key/value head of every layer.

    A head's output becomes o' = o + scale * softmax(q K^T / sqrt(head_dim)) V over its landmarks.
    The base's attention to the text is unchanged, as in LLaMA-Adapter's zero-initialised attention
    (Zhang et al. 2023). Queries are those of the base's attention, rotated where the base does so.

    Args:
        num_layers: number of layers of the base.
        num_heads: number of key/value heads.
        head_dim: size of a head.
        num_landmarks: number of landmarks L.
        seed: seed of the initial keys.
        dtype: dtype of all parameters.
    """

    design = "attention"

    def __init__(
        self,
        *,
        num_layers: int,
        num_heads: int,
        head_dim: int,
        num_landmarks: int = 8,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        shape = (num_layers, num_heads, num_landmarks, head_dim)
        self.keys = initial_gates(*shape, seed=seed, name="keys", dtype=dtype)
        self.values = nn.Parameter(torch.zeros(shape, dtype=dtype))
        self.scale = nn.Parameter(torch.ones(num_layers, dtype=dtype))

    @classmethod
    def build(
        cls, config: HyLoRADAConfig, base: PretrainedConfig, *, seed: int, dtype: torch.dtype
    ) -> "AttentionIntegratedLandmark":
        heads = getattr(base, "num_key_value_heads", None) or base.num_attention_heads
        size = getattr(base, "head_dim", None) or base.hidden_size // base.num_attention_heads
        return cls(
            num_layers=base.num_hidden_layers,
            num_heads=heads,
            head_dim=size,
            num_landmarks=config.num_landmarks,
            seed=seed,
            dtype=dtype,
        )

    @property
    def num_landmarks(self) -> int:
        return self.keys.shape[2]

    def forward(self, query: Tensor, layer: int, scaling: float | None = None) -> Tensor:
        """Return what the landmarks add to the attention's output.

        Args:
            query: [b, query heads, T, head_dim], of any floating dtype.
            layer: number of the layer.
            scaling: factor of the logits; 1 / sqrt(head_dim) by default.

        Returns:
            [b, query heads, T, head_dim] in the dtype of ``query``.
        """
        groups = query.shape[1] // self.keys.shape[1]
        keys, values = (x[layer].repeat_interleave(groups, dim=0) for x in (self.keys, self.values))
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        weights = torch.softmax(scaling * (query.to(keys.dtype) @ keys.mT), dim=-1)
        return (self.scale[layer] * (weights @ values)).to(query.dtype)


@dataclass(eq=False)
class HeadMix:
    """The landmarks of K seats in the attention of one layer. No tensor is a view.

    Attributes:
        keys: [K, key/value heads, L, head_dim].
        values: [K, key/value heads, L, head_dim], scaled.
        padding: [K, L], -inf at padded landmarks.
        rows: rows b of each seat; None takes them from the input.
        masks: draws the seats' dropout masks; None without dropout.
    """

    keys: Tensor
    values: Tensor
    padding: Tensor
    rows: int | None
    masks: DrawMasks | None = None

    def dynamic(self) -> list[tuple[Tensor, int]]:
        """Return each tensor with the dimensions that vary between packs: K and L."""
        banks = [(t, i) for t in (self.keys, self.values) for i in (0, 2)]
        return [*banks, (self.padding, 0), (self.padding, 1)]

    def context(self, query: Tensor, scaling: float) -> Tensor:
        """Return what the landmarks add to the attention's output.

        Args:
            query: [K * b, query heads, T, head_dim].
            scaling: factor of the logits.

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
        return dropped(mixed.reshape(query.shape).transpose(1, 2), seats, self.masks)


def head_mixes(
    modules: Sequence[AttentionIntegratedLandmark | None],
    dtype: torch.dtype,
    rows: int | None,
    masks: DrawMasks | None = None,
) -> list[HeadMix]:
    """Return the landmarks of K seats for each layer, in the dtype of the base."""
    keys = stacked(modules, lambda m: m.keys)  # [K, layers, heads, L, head_dim]
    values = stacked(modules, lambda m: m.scale[:, None, None, None] * m.values)
    columns = zip(by_layer(keys.to(dtype)), by_layer(values.to(dtype)), strict=True)
    padding = padding_of(modules, keys)
    return [HeadMix(k, v, padding, rows, masks) for k, v in columns]
