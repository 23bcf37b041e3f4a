"""What a seat's step does to boundaries, for a training loop of one's own or Trainer: a loss and an optimizer."""

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ._adapter import Adapter, boundary_penalties
from ._config import TrainingConfig
from ._errors import InputError

if TYPE_CHECKING:
    from transformers import TrainingArguments


class BoundarySteps:
    """Holds the boundaries for the curriculum's share of an optimizer's steps, and keeps them within the block.

    Args:
        boundaries: [B-1] in [0, 1].
        optimizer: that steps them.
        hold_steps: of its steps in which they are held: they have no gradient, step or moments then.
    """

    def __init__(self, boundaries: nn.Parameter, optimizer: torch.optim.Optimizer, hold_steps: float) -> None:
        self._boundaries, self._hold_steps = boundaries, hold_steps
        self._optimizer = weakref.ref(optimizer)
        self._handles = [boundaries.register_hook(self._mask)]  # before anyone clips by a norm that it is part of
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)

    def close(self) -> None:
        """Let the boundaries' gradients be; the optimizer goes on as it is."""
        for handle in self._handles:
            handle.remove()

    def _holds(self) -> bool:
        """From the optimizer's own count of the steps before this one, which its checkpoints keep."""
        optimizer = self._optimizer()
        if optimizer is None:
            return False
        other = optimizer.param_groups[0]["params"][0]  # one that every step moves
        state = optimizer.state.get(other)
        return (int(state["step"]) if state else 0) < self._hold_steps

    def _mask(self, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient) if self._holds() else gradient

    def _before(self, *_: Any) -> None:
        if self._holds():
            self._boundaries.grad = None  # with one of zeros AdamW would count the step

    @torch.no_grad()
    def _after(self, *_: Any) -> None:
        self._boundaries.clamp_(0.0, 1.0)


def adamw(
    adapter: Adapter, training: "TrainingConfig | TrainingArguments"
) -> tuple[torch.optim.AdamW, BoundarySteps | None]:
    """AdamW on the adapter's groups, and what it does to boundaries; see :meth:`HyLoRADAModel.create_optimizer`."""
    config, boundaries = adapter.config, adapter.boundaries
    holds = boundaries is not None and config.boundary_init == "fixed" and config.boundary_warmup > 0
    if holds and training.max_steps < 1:
        raise InputError(
            f"boundary_warmup {config.boundary_warmup} is a share of max_steps, which must then be at least 1, "
            f"got {training.max_steps}"
        )
    groups = adapter.optimizer_groups(training.weight_decay)
    optimizer = torch.optim.AdamW(
        [{**group, "lr": training.learning_rate * group["lr_scale"]} for group in groups],
        betas=(training.adam_beta1, training.adam_beta2),
        eps=training.adam_epsilon,
    )
    if boundaries is None:
        return optimizer, None
    return optimizer, BoundarySteps(boundaries, optimizer, config.boundary_warmup * training.max_steps if holds else 0)


def penalized(output: Any, adapters: Sequence[Adapter], labels: Tensor, num_items: Tensor | int | None) -> Any:
    """A model's output with the boundaries' regularizers added to its loss.

    Args:
        output: of a base that was given labels: a ``ModelOutput``, or a tuple that begins with the loss.
        adapters: that it was computed with.
        labels: [b, T], -100 where there is none.
        num_items: labels of the optimizer step's whole batch, where this is a part of it, as Trainer counts them.
    """
    penalty = boundary_penalties(adapters)
    if penalty is None:
        return output
    if num_items is not None:
        penalty = penalty * (labels != -100).sum() / num_items
    if isinstance(output, tuple):
        return (output[0] + penalty, *output[1:])
    output.loss = output.loss + penalty
    return output
