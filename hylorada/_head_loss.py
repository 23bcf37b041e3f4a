"""The language-model head and its loss, chunk by chunk, so that logits never exist for a whole pack."""

from typing import Any

import torch
from torch import Tensor

_CHUNK_NUMBERS = 1 << 23  # logits held at once: 32 MiB in fp32


class _ChunkedNLL(torch.autograd.Function):
    """NLL of each row; the gradient of the rows is computed along with it, one chunk of logits at a time.

    The gradient of row i is (softmax(logits_i) - onehot_i) @ W times the incoming gradient of row i: a product by row,
    so a row that is NaN or inf touches no other row. The head is frozen and gets no gradient.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        needs_grad = ctx.needs_input_grad[0]
        rows = max(1, _CHUNK_NUMBERS // weight.shape[0])
        losses, grads = [], []
        for h, t in zip(hidden.split(rows), targets.split(rows), strict=True):
            logits = torch.nn.functional.linear(h, weight, bias)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            log_p = torch.log_softmax(logits, dim=-1)
            losses.append(-log_p.gather(1, t[:, None]).squeeze(1))
            if needs_grad:
                slope = log_p.exp_()
                slope.scatter_add_(1, t[:, None], slope.new_full((len(t), 1), -1.0))
                grads.append(slope.to(h.dtype) @ weight)
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
