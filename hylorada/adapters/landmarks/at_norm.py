"""Landmarks after the final norm: what the designs there have in common, alone and for K seats."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hylorada.adapters.buckets import Positions
from hylorada.adapters.landmarks.base import (
    DrawMasks,
    Landmark,
    dropped,
    initial_gates,
    most_landmarks,
    padding,
    stacked,
)
from hylorada.adapters.running_pools import Tokens


class NormLandmark(Landmark):
    """A design whose landmarks are mixed in after the final norm.

    Attributes:
        landmarks: [L, d].
        content_gate: [L, d].
        scale: scalar.
    """

    at_norm = True

    def __init__(
        self, hidden_size: int, num_landmarks: int, *, seed: int, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.landmarks = nn.Parameter(torch.zeros(num_landmarks, hidden_size, dtype=dtype))
        self.content_gate = initial_gates(
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

    @classmethod
    def gate_input(
        cls,
        modules: Sequence["NormLandmark | None"],
        source: Tensor,
        hidden: Tensor,
        tokens: Tokens,
    ) -> Tensor:
        """Return ``source`` with what the content gates of this design's seats look at.

        Args:
            modules: of the K seats, of any design at the norm.
            source: [K * b, T, d], what the gates look at so far.
            hidden: [K * b, T, d], the hidden states.
            tokens: of the pass.
        """
        return source

    @classmethod
    def gate_bias(
        cls, modules: Sequence["NormLandmark | None"], positions: Positions, like: Tensor
    ) -> Tensor | None:
        """Return what this design adds to its seats' logits, [K, 1 or b, T, L], zeros for others.

        Args:
            modules: of the K seats, of any design at the norm.
            positions: of the pass.
            like: the logits [K, b, T, L].
        """
        return None


def mix_at_norm(
    modules: Sequence[NormLandmark | None],
    hidden: Tensor,
    positions: Positions,
    tokens: Tokens,
    masks: DrawMasks | None = None,
) -> Tensor:
    """Return the hidden states with each seat's landmarks added to its rows.

    Args:
        modules: landmark modules of the K seats; None for a seat without landmarks at the norm.
        hidden: output of the final norm, [K * b, T, d], of any floating dtype.
        positions: token positions of the pass.
        tokens: tokens of the pass.
        masks: draws the seats' dropout masks; None without dropout.

    Returns:
        [K * b, T, d] in the dtype of ``hidden``.
    """
    landmarks = most_landmarks(modules)
    content = stacked(modules, lambda m: m.content_gate).to(hidden.dtype)  # [K, L, d]
    vectors = stacked(modules, lambda m: m.scale * m.landmarks).to(hidden.dtype)  # [K, L, d]
    h = hidden.view(len(modules), -1, hidden.shape[-1])  # [K, b * T, d]
    designs = {m.design: m for m in modules if m is not None}.values()
    source = hidden
    for module in designs:
        source = module.gate_input(modules, source, hidden, tokens)
    logits = torch.bmm(source.view(h.shape), content.mT).view(
        len(modules), -1, hidden.shape[1], landmarks
    )  # [K, b, T, L]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    for module in designs:
        bias = module.gate_bias(modules, positions, logits)
        logits = logits if bias is None else logits + bias
    if len({m.num_landmarks for m in modules if m is not None}) > 1:
        logits = logits + padding(modules, logits)[:, None, None]
    weights = torch.softmax(logits, dim=-1).to(hidden.dtype)
    weights = weights.view(*h.shape[:2], landmarks)
    if masks is None:
        return torch.baddbmm(h, weights, vectors).view(hidden.shape)
    added = torch.bmm(weights, vectors).view(hidden.shape)
    return hidden + dropped(added, len(modules), masks)
