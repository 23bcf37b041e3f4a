"""The language-model head and its loss in chunks: a pack's logits never exist all at once."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_CHUNK_NUMBERS = 1 << 23  # logits held at once on a CPU: 32 MiB in fp32
# Rows of a chunk on a GPU, where compiled code is fastest for one shape; 0.4 GB in bf16 for a
# vocabulary of 49,152 tokens.
_CHUNK_ROWS = 4096
# A GPU multiplies matrices at half speed or less if the vocabulary size is not a multiple of 8.
_ALIGNED = 64


@dataclass(frozen=True, eq=False)
class Head:
    """The frozen language-model head.

    Attributes:
        weight: [V or more, d]; rows beyond V are padding.
        bias: [V or more], or None.
        vocabulary: number of tokens V.
    """

    weight: Tensor
    bias: Tensor | None
    vocabulary: int

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> "Head":
        """Return the head; on a GPU, pad its rows so that matrix products run at full speed."""
        count = len(weight)
        if weight.is_cuda and count % 8:
            missing = -count % _ALIGNED
            weight = F.pad(weight.detach(), (0, 0, 0, missing))
            bias = None if bias is None else F.pad(bias.detach(), (0, missing))
        return cls(weight, bias, count)


def _nll(logits: Tensor, targets: Tensor, vocabulary: int) -> tuple[Tensor, Tensor | None]:
    """Return the NLL [n] of each row, in fp32 or better."""
    return -_log_softmax(logits, vocabulary).gather(1, targets[:, None]).squeeze(1), None


def _nll_and_slope(
    logits: Tensor, targets: Tensor, vocabulary: int
) -> tuple[Tensor, Tensor | None]:
    """Return the NLL [n] of each row and its gradient [n, V] in the dtype of the logits."""
    log_p = _log_softmax(logits, vocabulary)
    hit = torch.arange(logits.shape[-1], device=logits.device) == targets[:, None]
    return -log_p.gather(1, targets[:, None]).squeeze(1), (log_p.exp() - hit.to(log_p.dtype)).to(
        logits.dtype
    )


def _nll_and_slope_in_place(
    logits: Tensor, targets: Tensor, vocabulary: int
) -> tuple[Tensor, Tensor | None]:
    """Return what :func:`_nll_and_slope` returns, overwriting the logits.

    On a CPU, each further pass over the logits costs more than a decoder layer.
    """
    powers = _promoted(logits, vocabulary)
    top, own = powers.amax(-1, keepdim=True), powers.gather(1, targets[:, None])
    total = powers.sub_(top).exp_().sum(-1, keepdim=True)
    nll = (total.log() + top - own).squeeze(1)
    slope = powers.div_(total)
    return nll, slope.scatter_add_(1, targets[:, None], slope.new_full((len(targets), 1), -1.0)).to(
        logits.dtype
    )


def _promoted(logits: Tensor, vocabulary: int) -> Tensor:
    """Return the logits in fp32 or better, with padded tokens at -inf."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if vocabulary < logits.shape[-1]:  # the rest is padding
        logits = logits.masked_fill(
            torch.arange(logits.shape[-1], device=logits.device) >= vocabulary, -torch.inf
        )
    return logits


def _log_softmax(logits: Tensor, vocabulary: int) -> Tensor:
    logits = _promoted(logits, vocabulary)
    # torch.log_softmax sums tens of thousands of exponentials one by one on a CPU, which loses
    # 1.4e-5 nats.
    return logits - logits.logsumexp(-1, keepdim=True)


@cache
def _compiled(
    function: Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]],
) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return the compiled function, which reads and writes the logits only twice."""
    return torch.compile(function)


class _ChunkedNLL(torch.autograd.Function):
    """NLL of each row; the forward pass also computes the gradient, one chunk of logits at a time.

    The gradient of row i is (softmax(logits_i) - onehot_i) @ W times its incoming gradient. Rows
    don't mix, so a row that is NaN or inf affects no other. The frozen head gets no gradient.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Head, targets: Tensor) -> Tensor:
        needs_grad, on_gpu, count = ctx.needs_input_grad[0], hidden.is_cuda, len(hidden)
        compute = _nll_and_slope_in_place if needs_grad else _nll
        rows = max(1, _CHUNK_NUMBERS // len(head.weight))
        if on_gpu:
            compute, rows = _compiled(_nll_and_slope if needs_grad else _nll), _CHUNK_ROWS
            filling = -count % rows
            hidden, targets = F.pad(hidden, (0, 0, 0, filling)), F.pad(targets, (0, filling))
        losses, grads = [], []
        for h, t in zip(hidden.split(rows), targets.split(rows), strict=True):
            nll, slope = compute(F.linear(h, head.weight, head.bias), t, head.vocabulary)
            losses.append(nll)
            if slope is not None:
                grads.append(slope @ head.weight)
        if needs_grad:
            ctx.save_for_backward(torch.cat(grads)[:count])
        return torch.cat(losses)[:count]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return slope * grad_outputs[0][:, None].to(slope.dtype), None, None


def head_nll(hidden: Tensor, head: Head, targets: Tensor) -> Tensor:
    """Return the NLL in nats of each target, differentiable in ``hidden``, in fp32 or better.

    Args:
        hidden: final hidden states [..., d].
        head: head of the frozen base.
        targets: token ids [...].

    Returns:
        [...] in fp32 (fp64 for an fp64 base).
    """
    flat: Tensor = _ChunkedNLL.apply(  # type: ignore[no-untyped-call]
        hidden.reshape(-1, hidden.shape[-1]), head, targets.reshape(-1)
    )
    return flat.view(targets.shape)
