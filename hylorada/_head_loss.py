"""The language-model head and its loss, chunk by chunk, so that logits never exist for a whole pack."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

# Logits held at once. On the CPU what stays in its caches, on a GPU what fills it (512 MiB in bf16).
_CHUNK_NUMBERS = {"cpu": 1 << 23, "cuda": 1 << 28}


_Loss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]


def _nll(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
    """NLL of each row [n], in fp32 or better."""
    log_p = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)
    return -log_p.gather(1, targets[:, None]).squeeze(1), None


def _nll_and_slope(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
    """NLL of each row [n] and its gradient [n, V] in the dtype of the logits."""
    log_p = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)
    nll = -log_p.gather(1, targets[:, None]).squeeze(1)
    if logits.is_cuda:  # compiled: one kernel
        hit = torch.arange(logits.shape[-1], device=logits.device) == targets[:, None]
        return nll, (log_p.exp() - hit.to(log_p.dtype)).to(logits.dtype)
    slope = log_p.exp_()
    return nll, slope.scatter_add_(1, targets[:, None], slope.new_full((len(targets), 1), -1.0)).to(logits.dtype)


@cache
def _compiled(
    function: Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]],
) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """On a GPU each eager operation is a trip of the logits through its memory; compiled they are two in all."""
    return torch.compile(function, dynamic=True)


class _ChunkedNLL(torch.autograd.Function):
    """NLL of each row; the gradient of the rows is computed along with it, one chunk of logits at a time.

    The gradient of row i is (softmax(logits_i) - onehot_i) @ W times the incoming gradient of row i: a product by row,
    so a row that is NaN or inf touches no other row. The head is frozen and gets no gradient.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        needs_grad, on_gpu = ctx.needs_input_grad[0], hidden.is_cuda
        rows = max(1, _CHUNK_NUMBERS["cuda" if on_gpu else "cpu"] // weight.shape[0])
        compute = _nll_and_slope if needs_grad else _nll
        if on_gpu:
            compute = _compiled(compute)
        losses, grads = [], []
        for h, t in zip(hidden.split(rows), targets.split(rows), strict=True):
            logits = torch.nn.functional.linear(h, weight, bias)
            nll, slope = compute(logits, t)
            losses.append(nll)
            if slope is not None:
                grads.append(slope @ weight)
        if needs_grad:
            ctx.save_for_backward(torch.cat(grads))
        return torch.cat(losses)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:
        (slope,) = ctx.saved_tensors
        return slope * grad_outputs[0][:, None].to(slope.dtype), None, None, None


def head_nll(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """NLL in nats of each target, differentiable in ``hidden``; log-softmax in fp32 or better.

    Args:
        hidden: [..., d] final hidden states.
        weight: [V, d] of the frozen head.
        bias: [V] or None.
        targets: [...] token ids.

    Returns:
        [...] in fp32 (fp64 for an fp64 base).
    """
    flat: Tensor = _ChunkedNLL.apply(  # type: ignore[no-untyped-call]
        hidden.reshape(-1, hidden.shape[-1]), weight, bias, targets.reshape(-1)
    )
    return flat.view(targets.shape)
