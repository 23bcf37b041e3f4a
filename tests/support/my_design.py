"""Landmark designs of a user's own: one that is sound, and one for each mistake."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from hylorada import CustomLandmark, HyLoRADAConfig, Tokens, initial_gates


class Gated(CustomLandmark):
    """h' = h + sigmoid(gates(h) + slope * position / 100) @ landmarks."""

    def __init__(
        self, config: HyLoRADAConfig, base: PretrainedConfig, *, seed: int, dtype: torch.dtype
    ) -> None:
        super().__init__()
        shape = (config.num_landmarks, base.hidden_size)
        self.landmarks = nn.Parameter(torch.zeros(shape, dtype=dtype))
        self.gates = initial_gates(*shape, seed=seed, name="gates", dtype=dtype)
        self.slope = nn.Parameter(torch.zeros((), dtype=dtype))

    def context(self, hidden: Tensor, positions: Tensor, tokens: Tokens) -> Tensor:
        logits = hidden @ self.gates.T + self.slope * positions[..., None] / 100
        return torch.sigmoid(logits) @ self.landmarks


class Pooled(Gated):
    """Its gates look at the running mean of the hidden states."""

    @property
    def num_pools(self) -> int:
        return 1

    def context(self, hidden: Tensor, positions: Tensor, tokens: Tokens) -> Tensor:
        return super().context(tokens.running_mean(hidden), positions, tokens)


class Leaks(Gated):
    """Sees later tokens."""

    def context(self, hidden: Tensor, positions: Tensor, tokens: Tokens) -> Tensor:
        return super().context(hidden.mean(1, keepdim=True).expand_as(hidden), positions, tokens)


class MixesRows(Gated):
    """Rows of a batch influence each other."""

    def context(self, hidden: Tensor, positions: Tensor, tokens: Tokens) -> Tensor:
        return super().context(hidden - hidden.mean(0), positions, tokens)


class Draws(Gated):
    """Draws random numbers in every pass."""

    def context(self, hidden: Tensor, positions: Tensor, tokens: Tokens) -> Tensor:
        return super().context(hidden, positions, tokens) * torch.rand(())


class Short(Gated):
    """Returns another shape."""

    def context(self, hidden: Tensor, positions: Tensor, tokens: Tokens) -> Tensor:
        return super().context(hidden, positions, tokens)[:, 1:]


class Fails(Gated):
    """Raises."""

    def context(self, hidden: Tensor, positions: Tensor, tokens: Tokens) -> Tensor:
        raise RuntimeError("no context today")


class Unused(Gated):
    """Has a parameter that gets no gradient."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.spare = nn.Parameter(torch.zeros(3))


class StartsAtOne(Gated):
    """Changes the base before it is trained."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        with torch.no_grad():
            self.landmarks.fill_(1)


class Unseeded(Gated):
    """Draws its initial values from the process's random numbers."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.gates = nn.Parameter(torch.randn_like(self.gates))


class Counts(Gated):
    """Keeps state in a buffer."""

    seen: Tensor

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register_buffer("seen", torch.zeros(()))


class Bounded(Gated):
    """Gives a parameter the name of the trained boundaries."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.boundaries = nn.Parameter(torch.zeros(3))


class NotFinished(CustomLandmark):
    """Has no context."""


class Bare(nn.Module):
    """Is no landmark."""
