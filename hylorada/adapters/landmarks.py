"""Landmarks: L trained vectors that are mixed into the hidden states, h' = h + scale * context, by design.

Of every design the landmarks (for ``attention``, the values) start at zero, so that an untrained adapter changes
nothing, and the gates as small random numbers that break the symmetry between landmarks.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PretrainedConfig

from hylorada.adapters.buckets import (
    fixed_edges,
    hard_bucket,
    initial_boundaries,
    soft_bucket_weights,
)
from hylorada.adapters.running_pools import Tokens
from hylorada.config import BoundaryInit, BucketSpacing, HyLoRADAConfig, LandmarkDesign
from hylorada.runtime.random_streams import stream

_GATE_STD = 0.02


def _gates(*shape: int, seed: int, name: str, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, generator=stream(seed, name), dtype=dtype) * _GATE_STD)


class Landmark(nn.Module, ABC):
    """Any design.

    Attributes:
        design: its name in a configuration.
    """

    design: ClassVar[LandmarkDesign]

    @property
    @abstractmethod
    def num_landmarks(self) -> int:
        """L"""


class NormLandmark(Landmark):
    """A design that enters after the final norm.

    Attributes:
        landmarks: [L, d].
        content_gate: [L, d].
        scale: a number.
    """

    def __init__(
        self, hidden_size: int, num_landmarks: int, *, seed: int, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.landmarks = nn.Parameter(torch.zeros(num_landmarks, hidden_size, dtype=dtype))
        self.content_gate = _gates(
            num_landmarks, hidden_size, seed=seed, name="content_gate", dtype=dtype
        )
        self.scale = nn.Parameter(torch.ones((), dtype=dtype))

    @property
    def num_landmarks(self) -> int:
        return len(self.landmarks)

    def _mix(self, hidden: Tensor, logits: Tensor) -> Tensor:
        context = torch.softmax(logits, dim=-1) @ (self.scale * self.landmarks)
        return hidden + context.to(hidden.dtype)

    def _content(self, pooled: Tensor) -> Tensor:
        return pooled.to(self.content_gate.dtype) @ self.content_gate.T


class LandmarkLoRA(NormLandmark):
    """h' = h + scale * softmax(content_gate(mean of h so far)) @ landmarks: one gate for all that was read.

    The first, "global" landmarks. The published code took the mean over the whole block, future tokens included
    (``noncausal``).

    Args:
        hidden_size: d.
        num_landmarks: L.
        noncausal: take the mean over the whole block; only to repeat published figures.
        seed: of the initial gates.
        dtype: of all parameters.
    """

    design = "global"

    def __init__(
        self,
        *,
        hidden_size: int,
        num_landmarks: int = 8,
        noncausal: bool = False,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(hidden_size, num_landmarks, seed=seed, dtype=dtype)
        self.noncausal = noncausal

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """Add the gated landmarks.

        Args:
            hidden: [b, T, d], of any floating dtype.
            mask: [b, T], 0 at pads.

        Returns:
            [b, T, d] in the dtype of ``hidden``.
        """
        mean = Tokens(mask).running_mean(hidden)
        return self._mix(hidden, self._content(mean[:, -1:] if self.noncausal else mean))


class PerLayerLandmark(Landmark):
    """m' = m + scale * softmax(gate(maximum of m so far)) @ landmarks at the MLP output m of each layer.

    Args:
        num_layers: layers of the base; each has its own gate and scale.
        hidden_size: d.
        num_landmarks: L.
        share_landmarks: one bank of landmarks for all layers.
        noncausal: take the maximum over the whole block, future tokens included; only to repeat published figures.
        seed: of the initial gates.
        dtype: of all parameters.
    """

    design = "per_layer"

    def __init__(
        self,
        *,
        num_layers: int,
        hidden_size: int,
        num_landmarks: int = 8,
        share_landmarks: bool = False,
        noncausal: bool = False,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.noncausal = noncausal
        banks = 1 if share_landmarks else num_layers
        self.landmarks = nn.Parameter(torch.zeros(banks, num_landmarks, hidden_size, dtype=dtype))
        self.gates = _gates(
            num_layers, num_landmarks, hidden_size, seed=seed, name="gates", dtype=dtype
        )
        self.scale = nn.Parameter(torch.ones(num_layers, dtype=dtype))

    @property
    def num_landmarks(self) -> int:
        return self.gates.shape[1]

    def forward(self, output: Tensor, layer: int, mask: Tensor | None = None) -> Tensor:
        """Add the gated landmarks of one layer.

        Args:
            output: [b, T, d] of the layer's MLP, of any floating dtype.
            layer: its number.
            mask: [b, T], 0 at pads.

        Returns:
            [b, T, d] in the dtype of ``output``.
        """
        largest = Tokens(mask).running_maximum(output)
        pooled = largest[:, -1:] if self.noncausal else largest
        weights = torch.softmax(pooled.to(self.gates.dtype) @ self.gates[layer].T, dim=-1)
        bank = self.landmarks[layer if len(self.landmarks) > 1 else 0]
        return output + (self.scale[layer] * (weights @ bank)).to(output.dtype)


class AttentionIntegratedLandmark(Landmark):
    """L trained keys and values for each key/value head of every layer, with an attention of their own.

    A head's output is o' = o + scale * softmax(q K^T / sqrt(head_dim)) V over its landmarks; the base's attention to
    the text stays whole, as in the zero-initialised attention of LLaMA-Adapter (Zhang et al. 2023). Queries are taken
    as the base's attention gets them (rotated, where the base rotates them).

    Args:
        num_layers: layers of the base.
        num_heads: key/value heads.
        head_dim: their size.
        num_landmarks: L.
        seed: of the initial keys.
        dtype: of all parameters.
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
        self.keys = _gates(*shape, seed=seed, name="keys", dtype=dtype)
        self.values = nn.Parameter(torch.zeros(shape, dtype=dtype))
        self.scale = nn.Parameter(torch.ones(num_layers, dtype=dtype))

    @property
    def num_landmarks(self) -> int:
        return self.keys.shape[2]

    def forward(self, query: Tensor, layer: int, scaling: float | None = None) -> Tensor:
        """What is added to the attention's output.

        Args:
            query: [b, query heads, T, head_dim], of any floating dtype.
            layer: its number.
            scaling: of the logits; 1 / sqrt(head_dim) by default.

        Returns:
            [b, query heads, T, head_dim] in the dtype of ``query``.
        """
        groups = query.shape[1] // self.keys.shape[1]
        keys, values = (x[layer].repeat_interleave(groups, dim=0) for x in (self.keys, self.values))
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        weights = torch.softmax(scaling * (query.to(keys.dtype) @ keys.mT), dim=-1)
        return (self.scale[layer] * (weights @ values)).to(query.dtype)


class PositionLandmark(NormLandmark):
    """h' = h + scale * softmax(W_bucket(p) @ position_gates + content_gate(h)) @ landmarks, position by position.

    Each position is computed from itself alone, so the design is causal.

    Args:
        hidden_size: d.
        num_landmarks: L.
        num_buckets: B.
        max_positions: T, the trained block length.
        seed: of the initial gates.
        dtype: of all parameters.
    """

    design = "position_adaptive"

    def __init__(
        self,
        *,
        hidden_size: int,
        num_landmarks: int,
        num_buckets: int,
        max_positions: int,
        seed: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(hidden_size, num_landmarks, seed=seed, dtype=dtype)
        self.num_buckets = num_buckets
        self.max_positions = max_positions
        self.position_gates = _gates(
            num_buckets, num_landmarks, seed=seed, name="position_gates", dtype=dtype
        )

    @abstractmethod
    def bucket_weights(self, positions: Tensor) -> Tensor:
        """Weights [..., B] of each position's buckets; they sum to 1."""

    def forward(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Add the gated landmarks.

        Args:
            hidden: [b, T, d], of any floating dtype.
            positions: [b, T] or [1, T] token positions.

        Returns:
            [b, T, d] in the dtype of ``hidden``.
        """
        return self._mix(
            hidden, self._content(hidden) + self.bucket_weights(positions) @ self.position_gates
        )


class PositionAdaptiveLandmark(PositionLandmark):
    """Landmarks gated by fixed buckets ("log" or "linear" spacing); positions beyond T use the last one."""

    edges: Tensor

    def __init__(
        self,
        *,
        hidden_size: int,
        num_landmarks: int = 8,
        num_buckets: int = 32,
        max_positions: int,
        bucket_spacing: BucketSpacing = "log",
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(
            hidden_size=hidden_size,
            num_landmarks=num_landmarks,
            num_buckets=num_buckets,
            max_positions=max_positions,
            seed=seed,
            dtype=dtype,
        )
        edges = torch.tensor(fixed_edges(num_buckets, max_positions, bucket_spacing))
        self.register_buffer("edges", edges, persistent=False)
        self.edges_key = (num_buckets, max_positions, bucket_spacing)

    def bucket_weights(self, positions: Tensor) -> Tensor:
        return F.one_hot(hard_bucket(positions, self.edges), self.num_buckets).to(
            self.position_gates.dtype
        )


class LearnableBucketLandmark(PositionLandmark):
    """Landmarks gated by soft buckets whose B-1 boundaries are trained (see :func:`soft_bucket_weights`)."""

    start: Tensor

    def __init__(
        self,
        *,
        hidden_size: int,
        num_landmarks: int = 8,
        num_buckets: int = 32,
        max_positions: int,
        temperature: float = 0.02,
        boundary_init: BoundaryInit = "log",
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(
            hidden_size=hidden_size,
            num_landmarks=num_landmarks,
            num_buckets=num_buckets,
            max_positions=max_positions,
            seed=seed,
            dtype=dtype,
        )
        self.temperature = temperature
        start = initial_boundaries(
            boundary_init, num_buckets, max_positions, stream(seed, "boundaries"), dtype
        )
        self.boundaries = nn.Parameter(start)
        self.register_buffer("start", start.clone(), persistent=False)

    def bucket_weights(self, positions: Tensor) -> Tensor:
        return soft_bucket_weights(positions, self.boundaries, self.temperature, self.max_positions)

    @torch.no_grad()
    def boundary_positions(self) -> Tensor:
        """The sorted boundaries [B-1] in token positions."""
        return self.boundaries.sort().values * self.max_positions


def build_landmark(
    config: HyLoRADAConfig, base: PretrainedConfig, *, seed: int, dtype: torch.dtype
) -> Landmark | None:
    """The landmark module that a configuration asks for on a base; None if it has none."""
    if not config.has_landmarks:
        return None
    shared: dict[str, Any] = {"num_landmarks": config.num_landmarks, "seed": seed, "dtype": dtype}
    if config.landmark_design == "attention":
        heads = getattr(base, "num_key_value_heads", None) or base.num_attention_heads
        size = getattr(base, "head_dim", None) or base.hidden_size // base.num_attention_heads
        return AttentionIntegratedLandmark(
            num_layers=base.num_hidden_layers, num_heads=heads, head_dim=size, **shared
        )
    shared["hidden_size"] = base.hidden_size
    noncausal = config.replication_noncausal_pooling
    if config.landmark_design == "global":
        return LandmarkLoRA(noncausal=noncausal, **shared)
    if config.landmark_design == "per_layer":
        return PerLayerLandmark(
            num_layers=base.num_hidden_layers,
            share_landmarks=config.share_landmarks,
            noncausal=noncausal,
            **shared,
        )
    shared |= {"num_buckets": config.num_buckets, "max_positions": config.max_positions}
    if config.landmark_bucketing == "fixed":
        return PositionAdaptiveLandmark(bucket_spacing=config.bucket_spacing, **shared)
    return LearnableBucketLandmark(
        temperature=config.temperature, boundary_init=config.boundary_init, **shared
    )


@torch.no_grad()
def position_gates(
    config: HyLoRADAConfig, parameters: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the gates of a ``position_adaptive`` adapter as far as they depend on the position alone.

    The content's part, which depends on the hidden states, is taken as zero: softmax(W_bucket(p) @ position_gates).

    Args:
        config: of the adapter, with ``max_positions`` T.
        parameters: of the adapter, by name.

    Returns:
        The weights [T, L] of the landmarks at each position, and the bucket [T] that has the largest weight there.
    """
    own = {
        n.removeprefix("landmark."): t for n, t in parameters.items() if n.startswith("landmark.")
    }
    base = PretrainedConfig.from_dict({"hidden_size": own["content_gate"].shape[1]})
    landmark = build_landmark(config, base, seed=0, dtype=own["content_gate"].dtype)
    assert isinstance(landmark, PositionLandmark)
    landmark.load_state_dict(own)
    buckets = landmark.bucket_weights(torch.arange(landmark.max_positions))
    return torch.softmax(buckets @ landmark.position_gates, dim=-1), buckets.argmax(dim=-1)


def count_landmark_params(module: nn.Module) -> int:
    """Trainable numbers in the landmarks of ``module`` (a landmark module, an adapter or a ``HyLoRADAModel``).

    Example:
        >>> count_landmark_params(PositionAdaptiveLandmark(hidden_size=768, max_positions=512))
        12545
    """
    landmarks = [m for m in module.modules() if isinstance(m, Landmark)]
    return sum(p.numel() for m in landmarks for p in m.parameters())
