"""AdamW on an adapter in bfloat16: a fault of the published code, kept for replications."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim.adamw import adamw

if TYPE_CHECKING:
    from hylorada.training.seat import Group


@torch.no_grad()
def round_to_bf16(tensors: Iterable[Tensor]) -> None:
    """Round every number to the nearest bfloat16, in place; the tensors keep their dtype."""
    for tensor in tensors:
        tensor.copy_(tensor.bfloat16())


def step_in_bf16(groups: Sequence["Group"], device_scalars: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Compute what ``torch.optim.AdamW`` makes of G groups of bfloat16 tensors.

    Each of its operations rounds, so an update of less than half the distance to the next number is
    lost: at 0.5 that is every update below 2**-10.

    Args:
        groups: groups whose vectors hold bfloat16 numbers; they are not changed here.
        device_scalars: [2, G], the factor that clips the gradient, and 0 where a group stays as it
            is.

    Returns:
        Each vector that changes, with its new numbers.
    """
    changes: list[tuple[Tensor, Tensor]] = []
    for group, clip, is_alive in zip(groups, *device_scalars.tolist(), strict=True):
        if not is_alive:
            continue
        state = [group.values, group.exp_avg, group.exp_avg_sq]
        values, first, second = (vector.bfloat16() for vector in state)
        beta1, beta2 = group.settings["betas"]
        adamw(
            [values],
            [group.grads.bfloat16() * clip],
            [first],
            [second],
            [],
            [group.step.clone()],  # the function counts the step
            foreach=False,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group.settings["lr"],
            weight_decay=group.settings["weight_decay"],
            eps=group.settings["eps"],
            maximize=False,
        )
        changes += zip(state, (values, first, second), strict=True)
    return changes
