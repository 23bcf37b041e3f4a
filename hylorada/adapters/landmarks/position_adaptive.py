"""The ``position_adaptive`` design: gates that depend on the position's bucket.

Buckets are hard and fixed, or soft with boundaries that are trained or not.

In a pack, a seat with fewer buckets than others is padded: no position lies in a padded bucket.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PretrainedConfig

from hylorada.adapters.buckets import (
    Positions,
    fixed_edges,
    hard_bucket,
    initial_boundaries,
    soft_bucket_weights,
)
from hylorada.adapters.landmarks.at_norm import NormLandmark
from hylorada.adapters.landmarks.base import initial_gates, landmark_seed
from hylorada.config import BoundaryInit, BucketSpacing, HyLoRADAConfig
from hylorada.runtime.devices import column
from hylorada.runtime.random_streams import stream


class PositionLandmark(NormLandmark):
    """h' = h + scale * softmax(W_bucket(p) @ position_gates + content_gate(h)) @ landmarks.

    The output at a position depends on that position alone, so the design is causal.

    Args:
        hidden_size: size d of the hidden states.
        num_landmarks: number of landmarks L.
        num_buckets: number of buckets B.
        max_positions: trained block length T.
        seed: seed of the initial gates.
        dtype: dtype of all parameters.
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
        self.position_gates = initial_gates(
            num_buckets, num_landmarks, seed=seed, name="position_gates", dtype=dtype
        )

    @classmethod
    def build(
        cls, config: HyLoRADAConfig, base: PretrainedConfig, *, seed: int, dtype: torch.dtype
    ) -> "PositionLandmark":
        assert config.max_positions is not None  # an adapter with buckets is refused without it
        shared: dict[str, Any] = {
            "hidden_size": base.hidden_size,
            "num_landmarks": config.num_landmarks,
            "num_buckets": config.num_buckets,
            "max_positions": config.max_positions,
            "seed": seed,
            "dtype": dtype,
        }
        if config.landmark_bucketing == "fixed":
            return PositionAdaptiveLandmark(
                bucket_spacing=config.bucket_spacing,
                bucket_range=config.replication_bucket_range,
                **shared,
            )
        soft = LearnableBucketLandmark if config.learns_boundaries else SoftBucketLandmark
        return soft(temperature=config.temperature, boundary_init=config.boundary_init, **shared)

    @abstractmethod
    def bucket_weights(self, positions: Tensor) -> Tensor:
        """Return the weights [..., B] of each position's buckets; they sum to 1."""

    def get_learned_boundaries(self) -> Tensor | None:
        """Return the sorted boundaries [B-1] in token positions; None unless they are trained."""
        return None

    def applied(self) -> dict[str, Any]:
        return {
            **super().applied(),
            "num_buckets": self.position_gates.shape[0],
            "max_positions": self.max_positions,
            "landmark_bucketing": "fixed",
        }

    @classmethod
    def gate_bias(
        cls, modules: Sequence[NormLandmark | None], positions: Positions, like: Tensor
    ) -> Tensor:
        landmarks = like.shape[-1]
        buckets = max(m.num_buckets for m in modules if isinstance(m, PositionLandmark))
        none = like.new_zeros(buckets, landmarks)
        gates = torch.stack(
            [_padded_gates(m, none) if isinstance(m, PositionLandmark) else none for m in modules]
        )
        return _bucket_weights(modules, buckets, positions, gates) @ gates[:, None]

    def forward(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Return the hidden states with the gated landmarks added.

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
    """Landmarks gated by fixed buckets, with "log" or "linear" spacing.

    Positions beyond ``max_positions`` fall into the last bucket. With ``bucket_range``, which only
    repeats published figures, buckets have equal widths over so many positions.
    """

    edges: Tensor

    def __init__(
        self,
        *,
        hidden_size: int,
        num_landmarks: int = 8,
        num_buckets: int = 32,
        max_positions: int,
        bucket_spacing: BucketSpacing = "log",
        bucket_range: int | None = None,
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
        self.bucket_range = bucket_range
        spacing = bucket_spacing if bucket_range is None else "linear"
        self.edges_key = (num_buckets, bucket_range or max_positions, spacing)
        edges = torch.tensor(fixed_edges(*self.edges_key), dtype=torch.long)
        self.register_buffer("edges", edges, persistent=False)

    def applied(self) -> dict[str, Any]:
        return {**super().applied(), "replication_bucket_range": self.bucket_range}

    def bucket_weights(self, positions: Tensor) -> Tensor:
        return F.one_hot(hard_bucket(positions, self.edges), self.num_buckets).to(
            self.position_gates.dtype
        )


class SoftLandmark(PositionLandmark):
    """Landmarks gated by soft buckets between B-1 boundaries, trained or not.

    :func:`soft_bucket_weights` has the formula.

    Args:
        hidden_size: size d of the hidden states.
        num_landmarks: number of landmarks L.
        num_buckets: number of buckets B, at least 2.
        max_positions: trained block length T.
        temperature: softness in units of u.
        boundary_init: where the boundaries start.
        seed: seed of the initial gates, and of random boundaries.
        dtype: dtype of all parameters.

    Attributes:
        boundaries: [B-1] in units of u, in any order.
        start: [B-1], the initial boundaries.
    """

    trains_boundaries: ClassVar[bool]
    boundaries: Tensor
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
        self.register_buffer("start", start, persistent=False)
        if self.trains_boundaries:
            self.boundaries = nn.Parameter(start.clone())
        else:
            self.register_buffer("boundaries", start.clone(), persistent=False)

    def bucket_weights(self, positions: Tensor) -> Tensor:
        return soft_bucket_weights(positions, self.boundaries, self.temperature, self.max_positions)

    def applied(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"temperature": self.temperature}
        shown["landmark_bucketing"] = "learnable" if self.trains_boundaries else "soft"
        return {**super().applied(), **shown}

    @torch.no_grad()
    def boundary_positions(self) -> Tensor:
        """Return the sorted boundaries [B-1] in token positions."""
        return self.boundaries.sort().values * self.max_positions


class LearnableBucketLandmark(SoftLandmark):
    """Landmarks gated by soft buckets whose boundaries are trained."""

    trains_boundaries = True
    boundaries: nn.Parameter

    def get_learned_boundaries(self) -> Tensor:
        """Return the sorted boundaries [B-1] in token positions, u * ``max_positions``."""
        return self.boundary_positions()


class SoftBucketLandmark(SoftLandmark):
    """Landmarks gated by soft buckets whose boundaries stay where they start.

    With equal parameters it computes what :class:`LearnableBucketLandmark` does. The boundaries
    follow from the arguments, so they are part of neither ``parameters()`` nor ``state_dict()``.
    """

    trains_boundaries = False


@torch.no_grad()
def position_gates(
    config: HyLoRADAConfig, parameters: Mapping[str, Tensor], *, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Return the position part of the gates of a ``position_adaptive`` adapter.

    The content gate, which depends on the hidden states, is taken as zero, which leaves
    softmax(W_bucket(p) @ position_gates).

    Args:
        config: configuration of the adapter, with ``max_positions`` T.
        parameters: parameters of the adapter by name.
        seed: seed of the adapter, for random boundaries that are not trained.

    Returns:
        The weights [T, L] of the landmarks at each position, and the bucket [T] with the largest
        weight there.
    """
    own = {
        n.removeprefix("landmark."): t for n, t in parameters.items() if n.startswith("landmark.")
    }
    base = PretrainedConfig.from_dict({"hidden_size": own["content_gate"].shape[1]})
    landmark = PositionLandmark.build(
        config, base, seed=landmark_seed(seed), dtype=own["content_gate"].dtype
    )
    landmark.load_state_dict(own)
    buckets = landmark.bucket_weights(torch.arange(landmark.max_positions))
    return torch.softmax(buckets @ landmark.position_gates, dim=-1), buckets.argmax(dim=-1)


def _padded_gates(module: PositionLandmark, like: Tensor) -> Tensor:
    gates = module.position_gates
    return F.pad(gates, (0, like.shape[1] - gates.shape[1], 0, like.shape[0] - gates.shape[0]))


def _bucket_weights(
    modules: Sequence[NormLandmark | None], buckets: int, positions: Positions, like: Tensor
) -> Tensor:
    """Return the weights [K, 1 or b, T, B] of every seat; zeros for a seat without buckets."""
    soft = [(k, m) for k, m in enumerate(modules) if isinstance(m, SoftLandmark)]
    weights: dict[int, Tensor] = {}
    if soft:
        boundaries = torch.stack(
            [F.pad(m.boundaries, (0, buckets - m.num_buckets), value=torch.inf) for _, m in soft]
        )
        constants = tuple((m.temperature, float(m.max_positions)) for _, m in soft)
        temperature, lengths = column(constants, like.dtype, like.device)
        at = torch.stack([positions.of(k) for k, _ in soft])
        by_seat = soft_bucket_weights(at, boundaries, temperature, lengths).unbind()
        weights |= dict(zip((k for k, _ in soft), by_seat, strict=True))
    for k, module in enumerate(modules):
        if isinstance(module, PositionAdaptiveLandmark):
            index = positions.hard(k, module.edges, module.edges_key)
            weights[k] = F.one_hot(index, buckets).to(like.dtype)
        elif k not in weights:
            weights[k] = like.new_zeros(*positions.of(k).shape, buckets)
    return torch.stack([weights[k] for k in range(len(modules))])
