"""Landmarks: L trained vectors that are mixed into the hidden states, gated by position bucket and content."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from ._buckets import fixed_edges, hard_bucket, initial_boundaries, soft_bucket_weights
from ._config import BoundaryInit, BucketSpacing, HyLoRADAConfig
from ._seeding import stream

_GATE_STD = 0.02


class PositionLandmark(nn.Module, ABC):
    """h' = h + scale * softmax(W_bucket(p) @ position_gates + content_gate(h)) @ landmarks, position by position.

    Each position is computed from itself alone, so the design is causal. Landmarks start at zero: an untrained adapter
    changes nothing. Gates start as small random numbers that break the symmetry between landmarks.

    Args:
        hidden_size: d.
        num_landmarks: L.
        num_buckets: B.
        max_positions: T, the trained block length.
        seed: of the initial gates.
        dtype: of all parameters.
    """

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
        super().__init__()
        self.num_buckets = num_buckets
        self.max_positions = max_positions

        def gates(name: str, *shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=stream(seed, name), dtype=dtype) * _GATE_STD)

        self.landmarks = nn.Parameter(torch.zeros(num_landmarks, hidden_size, dtype=dtype))
        self.position_gates = gates("position_gates", num_buckets, num_landmarks)
        self.content_gate = gates("content_gate", num_landmarks, hidden_size)
        self.scale = nn.Parameter(torch.ones((), dtype=dtype))

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
        position_logits = self.bucket_weights(positions) @ self.position_gates
        content_logits = hidden @ self.content_gate.to(hidden.dtype).T
        weights = torch.softmax(position_logits + content_logits.to(position_logits.dtype), dim=-1)
        context = weights.to(hidden.dtype) @ (self.scale * self.landmarks).to(hidden.dtype)
        return hidden + context


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

    def bucket_weights(self, positions: Tensor) -> Tensor:
        one_hot = nn.functional.one_hot(hard_bucket(positions, self.edges), self.num_buckets)
        return one_hot.to(self.position_gates.dtype)


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
        start = initial_boundaries(boundary_init, num_buckets, max_positions, stream(seed, "boundaries"), dtype)
        self.boundaries = nn.Parameter(start)
        self.register_buffer("start", start.clone(), persistent=False)

    def bucket_weights(self, positions: Tensor) -> Tensor:
        return soft_bucket_weights(positions, self.boundaries, self.temperature, self.max_positions)

    @torch.no_grad()
    def clamp_boundaries(self) -> None:
        """Keep every boundary inside the block, [0, 1]; unclamped they drift out and their buckets are lost."""
        self.boundaries.clamp_(0.0, 1.0)

    @torch.no_grad()
    def boundary_positions(self) -> Tensor:
        """The sorted boundaries [B-1] in token positions."""
        return self.boundaries.sort().values * self.max_positions


def build_landmark(
    config: HyLoRADAConfig, *, hidden_size: int, max_positions: int, seed: int, dtype: torch.dtype
) -> PositionLandmark | None:
    """The landmark module that a configuration asks for; None if it has none."""
    if not config.has_landmarks:
        return None
    if config.landmark_bucketing == "fixed":
        return PositionAdaptiveLandmark(
            hidden_size=hidden_size,
            num_landmarks=config.num_landmarks,
            num_buckets=config.num_buckets,
            max_positions=max_positions,
            bucket_spacing=config.bucket_spacing,
            seed=seed,
            dtype=dtype,
        )
    return LearnableBucketLandmark(
        hidden_size=hidden_size,
        num_landmarks=config.num_landmarks,
        num_buckets=config.num_buckets,
        max_positions=max_positions,
        temperature=config.temperature,
        boundary_init=config.boundary_init,
        seed=seed,
        dtype=dtype,
    )


def count_landmark_params(module: nn.Module) -> int:
    """Trainable numbers in the landmarks of ``module`` (a landmark module, an adapter or a ``HyLoRADAModel``).

    Example:
        >>> count_landmark_params(PositionAdaptiveLandmark(hidden_size=768, max_positions=512))
        12545
    """
    landmarks = [m for m in module.modules() if isinstance(m, PositionLandmark)]
    return sum(p.numel() for m in landmarks for p in m.parameters())
