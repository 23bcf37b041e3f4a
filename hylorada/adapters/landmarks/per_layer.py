"""The ``per_layer`` design: landmarks at each layer's MLP output, gated by its running maximum."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
from hylorada.adapters.running_pools import Tokens
from hylorada.config import HyLoRADAConfig
from hylorada.runtime.devices import to_device


class PerLayerLandmark(Landmark):
    """m' = m + scale * softmax(gate(running maximum of m)) @ landmarks at each MLP output m.

    Args:
        num_layers: number of layers of the base.
        hidden_size: size d of the hidden states.
        num_landmarks: number of landmarks L.
        share_landmarks: use one bank of landmarks for all layers.
        share_gates: use one gate and one scale for all layers.
        noncausal: take the maximum over the whole block, future tokens included; only to repeat
            published figures.
        seed: seed of the initial gates.
        dtype: dtype of all parameters.
    """

    design = "per_layer"

    def __init__(
        self,
        *,
        num_layers: int,
        hidden_size: int,
        num_landmarks: int = 8,
        share_landmarks: bool = False,
        share_gates: bool = False,
        noncausal: bool = False,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.num_layers = num_layers
        self.noncausal = noncausal
        banks = 1 if share_landmarks else num_layers
        gates = 1 if share_gates else num_layers
        self.landmarks = nn.Parameter(torch.zeros(banks, num_landmarks, hidden_size, dtype=dtype))
        self.gates = initial_gates(
            gates, num_landmarks, hidden_size, seed=seed, name="gates", dtype=dtype
        )
        self.scale = nn.Parameter(torch.ones(gates, dtype=dtype))

    @classmethod
    def build(
        cls, config: HyLoRADAConfig, base: PretrainedConfig, *, seed: int, dtype: torch.dtype
    ) -> "PerLayerLandmark":
        return cls(
            num_layers=base.num_hidden_layers,
            hidden_size=base.hidden_size,
            num_landmarks=config.num_landmarks,
            share_landmarks=config.share_landmarks,
            share_gates=config.share_gates,
            noncausal=config.replication_noncausal_pooling,
            seed=seed,
            dtype=dtype,
        )

    @property
    def num_pools(self) -> int:
        return self.num_layers

    def applied(self) -> dict[str, Any]:
        shown = {**super().applied(), "replication_noncausal_pooling": self.noncausal}
        if self.num_layers > 1:  # with one layer, sharing makes no difference
            shown["share_landmarks"] = len(self.landmarks) == 1
            shown["share_gates"] = len(self.gates) == 1
        return shown

    @property
    def num_landmarks(self) -> int:
        return self.gates.shape[1]

    def forward(self, output: Tensor, layer: int, mask: Tensor | None = None) -> Tensor:
        """Return the layer's MLP output with its gated landmarks added.

        Args:
            output: [b, T, d] of the layer's MLP, of any floating dtype.
            layer: number of the layer.
            mask: [b, T], 0 at pads.

        Returns:
            [b, T, d] in the dtype of ``output``.
        """
        largest = Tokens(mask).running_maximum(output)
        pooled = largest[:, -1:] if self.noncausal else largest
        gate, bank, scale = (
            own[layer if len(own) > 1 else 0] for own in (self.gates, self.landmarks, self.scale)
        )
        weights = torch.softmax(pooled.to(gate.dtype) @ gate.T, dim=-1)
        return output + (scale * (weights @ bank)).to(output.dtype)


@dataclass(eq=False)
class LayerMix:
    """The landmarks of K seats at the MLP output of one layer. No tensor is a view.

    Attributes:
        gate: [K, L, d].
        vectors: [K, L, d], scaled.
        padding: [K, L], -inf at padded landmarks.
        noncausal: [K], true for seats that pool over the whole block; None without any.
        rows: rows b of each seat; None takes them from the input.
        tokens: tokens of the pass.
        layer: number of the layer.
        masks: draws the seats' dropout masks; None without dropout.
    """

    gate: Tensor
    vectors: Tensor
    padding: Tensor
    noncausal: Tensor | None
    rows: int | None
    tokens: Tokens
    layer: int
    masks: DrawMasks | None = None

    def dynamic(self) -> list[tuple[Tensor, int]]:
        """Return each tensor with the dimensions that vary between packs: K and L."""
        banks = [(t, i) for t in (self.gate, self.vectors, self.padding) for i in (0, 1)]
        return banks if self.noncausal is None else [*banks, (self.noncausal, 0)]

    def add_to(self, output: Tensor) -> Tensor:
        """Return the output [K * b, T, d] with the gated landmarks added."""
        seats, length, size = self.gate.shape[0], output.shape[1], output.shape[2]
        rows = output.shape[0] // seats if self.rows is None else self.rows
        # reading the layer number would make torch.compile compile every layer separately
        index = 0 if self.tokens.history is None else self.layer
        pooled = self.tokens.running_maximum(output, index=index).view(seats, rows, length, size)
        if self.noncausal is not None:
            pooled = torch.where(self.noncausal[:, None, None, None], pooled[:, :, -1:], pooled)
        logits = torch.bmm(pooled.view(seats, rows * length, size), self.gate.mT)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        weights = torch.softmax(logits + self.padding[:, None], dim=-1)
        added = torch.bmm(weights.to(output.dtype), self.vectors).view(output.shape)
        return output + dropped(added, seats, self.masks)


def layer_mixes(
    modules: Sequence[PerLayerLandmark | None],
    dtype: torch.dtype,
    rows: int | None,
    tokens: Tokens,
    masks: DrawMasks | None = None,
) -> list[LayerMix]:
    """Return the landmarks of K seats for each layer, in the dtype of the base."""
    # [K, layers, L, d] each; what a seat shares over layers is repeated
    gates = stacked(modules, lambda m: m.gates.expand(m.num_layers, -1, -1))
    vectors = stacked(
        modules, lambda m: (m.scale[:, None, None] * m.landmarks).expand(m.num_layers, -1, -1)
    )
    columns = zip(by_layer(gates.to(dtype)), by_layer(vectors.to(dtype)), strict=True)
    padding = padding_of(modules, gates)
    noncausal = None
    if any(m is not None and m.noncausal for m in modules):
        noncausal = to_device([m is not None and m.noncausal for m in modules], gates.device)
    return [
        LayerMix(gate, bank, padding, noncausal, rows, tokens, layer, masks)
        for layer, (gate, bank) in enumerate(columns)
    ]
