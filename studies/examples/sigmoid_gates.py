"""A landmark design of your own: gates that don't compete.

In the designs of the package, the weights of an adapter's landmarks sum to 1 at every position.
Here each landmark has a gate of its own between 0 and 1. ``own_design.py`` compares the two.
"""

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from hylorada import CustomLandmark, HyLoRADAConfig, Tokens, initial_gates


class SigmoidGates(CustomLandmark):
    """h' = h + scale * sigmoid(C h + c) M, with gates C [L, d], biases c [L], landmarks M [L, d].

    The landmarks start at zero, so that an untrained adapter changes nothing.
    """

    def __init__(
        self, config: HyLoRADAConfig, base: PretrainedConfig, *, seed: int, dtype: torch.dtype
    ) -> None:
        super().__init__()
        shape = (config.num_landmarks, base.hidden_size)
        self.landmarks = nn.Parameter(torch.zeros(shape, dtype=dtype))
        self.gates = initial_gates(*shape, seed=seed, name="gates", dtype=dtype)
        self.bias = nn.Parameter(torch.zeros(config.num_landmarks, dtype=dtype))
        self.scale = nn.Parameter(torch.ones((), dtype=dtype))

    def context(self, hidden: Tensor, positions: Tensor, tokens: Tokens) -> Tensor:
        weights = torch.sigmoid(hidden @ self.gates.T + self.bias)
        return self.scale * (weights @ self.landmarks)
