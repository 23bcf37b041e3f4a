"""The ``global`` design: one gate from the running mean of the hidden states."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from hylorada.adapters.landmarks.at_norm import NormLandmark
from hylorada.adapters.running_pools import Tokens
from hylorada.config import HyLoRADAConfig
from hylorada.runtime.devices import to_device


class LandmarkLoRA(NormLandmark):
    """h' = h + scale * softmax(content_gate(running mean of h)) @ landmarks.

    These are the first, "global" landmarks. The published code took the mean over the whole block,
    future tokens included (``noncausal``).

    Args:
        hidden_size: size d of the hidden states.
        num_landmarks: number of landmarks L.
        noncausal: take the mean over the whole block; only to repeat published figures.
        seed: seed of the initial gates.
        dtype: dtype of all parameters.
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

    @classmethod
    def build(
        cls, config: HyLoRADAConfig, base: PretrainedConfig, *, seed: int, dtype: torch.dtype
    ) -> "LandmarkLoRA":
        return cls(
            hidden_size=base.hidden_size,
            num_landmarks=config.num_landmarks,
            noncausal=config.replication_noncausal_pooling,
            seed=seed,
            dtype=dtype,
        )

    @property
    def num_pools(self) -> int:
        return 1

    def applied(self) -> dict[str, Any]:
        return {**super().applied(), "replication_noncausal_pooling": self.noncausal}

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the hidden states with the gated landmarks added.

        Args:
            hidden: [b, T, d], of any floating dtype.
            mask: [b, T], 0 at pads.

        Returns:
            [b, T, d] in the dtype of ``hidden``.
        """
        mean = Tokens(mask).running_mean(hidden)
        return self._mix(hidden, self._content(mean[:, -1:] if self.noncausal else mean))

    @classmethod
    def gate_input(
        cls, modules: Sequence[NormLandmark | None], source: Tensor, hidden: Tensor, tokens: Tokens
    ) -> Tensor:
        own = [isinstance(m, cls) for m in modules]
        mean: Tensor = tokens.running_mean(hidden).to(hidden.dtype)
        mean = mean.unflatten(0, (len(modules), -1))  # [K, b, T, d]
        noncausal = [isinstance(m, cls) and m.noncausal for m in modules]
        if any(noncausal):
            whole = to_device(noncausal, hidden.device)[:, None, None, None]
            mean = torch.where(whole, mean[:, :, -1:], mean)
        if all(own):
            return mean.flatten(0, 1)
        chosen = to_device(own, hidden.device)[:, None, None, None]
        return torch.where(chosen, mean, source.view(mean.shape)).flatten(0, 1)
