"""Landmarks: L trained vectors that are mixed into the hidden states, gated by position bucket and content."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ._buckets import Positions, fixed_edges, hard_bucket, initial_boundaries, soft_bucket_weights
from ._config import BoundaryInit, BucketSpacing, HyLoRADAConfig
from ._devices import column, to_device
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
        return mix_landmarks([self], hidden, Positions(positions, 1))


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
        return F.one_hot(hard_bucket(positions, self.edges), self.num_buckets).to(self.position_gates.dtype)


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
    def boundary_positions(self) -> Tensor:
        """The sorted boundaries [B-1] in token positions."""
        return self.boundaries.sort().values * self.max_positions


def mix_landmarks(modules: Sequence[PositionLandmark | None], hidden: Tensor, positions: Positions) -> Tensor:
    """Add to each seat's rows its own landmarks, all seats in one go.

    Seats of unequal L and B are padded: a padded landmark has weight 0 and a padded bucket no position, so each seat's
    numbers are those of its own shape. A seat without landmarks gets landmarks of zeros.

    Args:
        modules: of the K seats.
        hidden: [K * b, T, d], of any floating dtype.
        positions: of the pass.

    Returns:
        [K * b, T, d] in the dtype of ``hidden``.
    """
    present = [m for m in modules if m is not None]
    landmarks, buckets = max(len(m.landmarks) for m in present), max(m.num_buckets for m in present)
    empty = present[0].landmarks.new_zeros(landmarks, hidden.shape[-1])
    no_gates = empty.new_zeros(buckets, landmarks)

    def stacked(name: str, rows: int) -> Tensor:
        full = [getattr(m, name) if m is not None else None for m in modules]
        return torch.stack([empty if x is None else F.pad(x, (0, 0, 0, rows - len(x))) for x in full])

    gates = torch.stack([no_gates if m is None else _padded_gates(m, buckets, landmarks) for m in modules])
    scale = torch.stack([empty[0, 0] if m is None else m.scale for m in modules])
    content = stacked("content_gate", landmarks).to(hidden.dtype)  # [K, L, d]
    vectors = (scale[:, None, None] * stacked("landmarks", landmarks)).to(hidden.dtype)  # [K, L, d]
    position_logits = _bucket_weights(modules, buckets, positions, empty) @ gates[:, None]  # [K, 1 or b, T, L]
    if any(len(m.landmarks) < landmarks for m in present):
        counts = tuple(landmarks if m is None else len(m.landmarks) for m in modules)
        position_logits = position_logits + _padding(counts, empty.dtype, empty.device)[:, None, None]
    h = hidden.view(len(modules), -1, hidden.shape[-1])  # [K, b * T, d]
    content_logits = torch.bmm(h, content.mT).to(gates.dtype)
    logits = content_logits.view(len(modules), -1, hidden.shape[1], landmarks) + position_logits  # [K, b, T, L]
    weights = torch.softmax(logits, dim=-1).to(hidden.dtype)
    return torch.baddbmm(h, weights.view(*h.shape[:2], landmarks), vectors).view(hidden.shape)


def _padded_gates(module: PositionLandmark, buckets: int, landmarks: int) -> Tensor:
    gates = module.position_gates
    return F.pad(gates, (0, landmarks - gates.shape[1], 0, buckets - gates.shape[0]))


@lru_cache(64)
def _padding(counts: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """[K, max L]: 0 for a seat's own landmarks, -inf for padding."""
    own = torch.arange(max(counts), device=device) < to_device(counts, device)[:, None]
    return torch.zeros(own.shape, dtype=dtype, device=device).masked_fill_(~own, -torch.inf)


def _bucket_weights(
    modules: Sequence[PositionLandmark | None], buckets: int, positions: Positions, like: Tensor
) -> Tensor:
    """Weights [K, 1 or b, T, B] of every seat; zeros for a seat without landmarks."""
    soft = [(k, m) for k, m in enumerate(modules) if isinstance(m, LearnableBucketLandmark)]
    weights: dict[int, Tensor] = {}
    if soft:
        boundaries = torch.stack([F.pad(m.boundaries, (0, buckets - m.num_buckets), value=torch.inf) for _, m in soft])
        constants = tuple((m.temperature, float(m.max_positions)) for _, m in soft)
        temperature, lengths = column(constants, like.dtype, like.device)
        at = torch.stack([positions.of(k) for k, _ in soft])
        found = soft_bucket_weights(at, boundaries, temperature, lengths)
        weights |= dict(zip((k for k, _ in soft), found.unbind(), strict=True))
    for k, module in enumerate(modules):
        if isinstance(module, PositionAdaptiveLandmark):
            index = positions.hard(k, module.edges, module.edges_key)
            weights[k] = F.one_hot(index, buckets).to(like.dtype)
        elif module is None:
            weights[k] = like.new_zeros(*positions.of(k).shape, buckets)
    return torch.stack([weights[k] for k in range(len(modules))])


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
