"""The low-rank update of one linear module, its magnitude (DoRA) and its scaling by position."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from hylorada.adapters.buckets import Positions, fixed_edges
from hylorada.base_models.quantization import dequantized, is_4bit
from hylorada.runtime.random_streams import stream


class LoRA(nn.Module):
    """The factors of the low-rank update of one linear module, W + scaling * B A (Hu et al. 2021).

    A starts with orthonormal rows (columns where r exceeds d_in) and B at zero, so an untrained
    adapter changes nothing. A :class:`Pack` computes the same update for many adapters at once.

    Args:
        in_features: d_in.
        out_features: d_out.
        r: rank.
        seed: of the initial A.
        dtype: of both factors.
    """

    def __init__(
        self, in_features: int, out_features: int, *, r: int, seed: int, dtype: torch.dtype
    ) -> None:
        super().__init__()
        start = torch.empty(r, in_features, dtype=dtype)
        nn.init.orthogonal_(start, generator=stream(seed, "lora_A"))
        self.lora_A = nn.Parameter(start)  # [r, d_in], PEFT's orientation
        self.lora_B = nn.Parameter(torch.zeros(out_features, r, dtype=dtype))  # [d_out, r]

    def forward(self, x: Tensor, scaling: float, factors: Tensor | None = None) -> Tensor:
        """Return what the update adds to the module's output: scaling * factors * (B A x).

        Args:
            x: input of the module, [b, T, d_in].
            scaling: alpha / sqrt(r) (rsLoRA, Kalajdzievski 2023) or alpha / r.
            factors: of the position bias, [b or 1, T]; None without one.

        Returns:
            [b, T, d_out].
        """
        update = scaling * (x @ self.lora_A.T) @ self.lora_B.T
        return update if factors is None else factors[..., None] * update


def weight_of(module: nn.Module) -> Tensor:
    """Return a linear module's weight as [d_out, d_in].

    GPT-2's Conv1D stores it transposed, and a module of 4 bits quantized.
    """
    if is_4bit(module):
        return dequantized(module.weight)
    weight = module.get_parameter("weight").detach()
    return weight.T if isinstance(module, Conv1D) else weight


def initial_magnitude(module: nn.Module, dtype: torch.dtype) -> Tensor:
    """Return DoRA's initial magnitude [d_out]: the norm of each row of the frozen weight.

    Equals :func:`updated_norms` of an untrained update to the bit.
    """
    return weight_of(module).to(dtype).square().sum(1).sqrt()


@torch.no_grad()
def updated_norms(weight: Tensor, lora_A: Tensor, lora_B: Tensor, scaling: Tensor) -> Tensor:  # noqa: N803
    """Return the norm of each row of W + s B A for S adapters, without building that matrix.

    ||w + s ba||^2 = ||w||^2 + 2 s <w, ba> + s^2 ||ba||^2, where <w, ba> = b (A w) and
    ||ba||^2 = b (A A^T) b. No gradient flows through it (Liu et al. 2024, section 4.3). Precision
    drops where an update nearly cancels a row: the error is 2e-3 of the norm in fp32 where 99 % of
    the row cancel.

    Args:
        weight: W [d_out, d_in] in the dtype of the factors.
        lora_A: [S, r, d_in].
        lora_B: [S, d_out, r].
        scaling: [S].

    Returns:
        [S, d_out].
    """
    s = scaling[:, None]
    cross = (lora_B * (weight @ lora_A.mT)).sum(-1)
    squares = (lora_B @ (lora_A @ lora_A.mT) * lora_B).sum(-1)
    norms = weight.square().sum(1) + 2 * s * cross + s.square() * squares
    return norms.clamp_min(torch.finfo(norms.dtype).tiny).sqrt()


class PositionBias(nn.Module):
    """Scales the LoRA updates of a layer by a trained factor that depends on the position.

    The factor at position p is 1 + sigmoid(layer_gates[layer]) * tanh(bias[bucket(p)]). All layers
    share the log buckets. The bias starts at zero, so the factors start at 1.

    Args:
        num_layers: layers of the base.
        num_buckets: buckets of the bias.
        max_positions: T, the trained block length.
        dtype: of both parameters.
    """

    edges: Tensor

    def __init__(
        self,
        num_layers: int,
        *,
        max_positions: int,
        num_buckets: int = 64,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(num_buckets, dtype=dtype))
        self.layer_gates = nn.Parameter(torch.zeros(num_layers, dtype=dtype))
        self.register_buffer(
            "edges", torch.tensor(fixed_edges(num_buckets, max_positions, "log")), persistent=False
        )
        self.edges_key = (num_buckets, max_positions, "log")

    def forward(self, positions: Tensor) -> Tensor:
        """Return the factors [num_layers, b, T] at positions [b, T]."""
        return position_factors([self], Positions(positions, 1))[:, 0]


def position_factors(
    modules: Sequence[PositionBias], positions: Positions, seats: Sequence[int] = (0,)
) -> Tensor:
    """Return the position factors of S adapters at once.

    Args:
        modules: the position bias of each adapter.
        positions: token positions of the pass.
        seats: places of these adapters in the pass.

    Returns:
        [num_layers, S, 1 or b, T].
    """
    widest = max(len(m.bias) for m in modules)
    bias = torch.stack([F.pad(m.bias, (0, widest - len(m.bias))) for m in modules])  # [S, buckets]
    index = torch.stack(
        [positions.hard(k, m.edges, m.edges_key) for k, m in zip(seats, modules, strict=True)]
    )
    shift = torch.tanh(bias).gather(1, index.flatten(1)).view(index.shape)  # [S, 1 or b, T]
    gates = torch.sigmoid(torch.stack([m.layer_gates for m in modules], dim=1))  # [num_layers, S]
    return 1 + gates[:, :, None, None] * shift
