"""The product with a frozen weight of 4 bits, read back for the forward and for the backward pass.

bitsandbytes' own forward computes otherwise in eval mode than in training, and its own backward
pass needs its own forward; here both are those of a linear module with the weight read back.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hylorada.base_models.quantization import dequantized


class FourBitProduct(torch.autograd.Function):
    """Computes x W^T + bias, and keeps only the 4 bits of W for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.weight = weight
        return F.linear(x, dequantized(weight).to(x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        return grad @ dequantized(ctx.weight).to(grad.dtype), None, None
