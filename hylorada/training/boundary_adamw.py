"""A loss and an optimizer that treat boundaries as a seat does, for Trainer or your own loop."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import TrainingArguments

from hylorada.adapters.adapter import Adapter, boundary_penalties
from hylorada.config import TrainingConfig
from hylorada.errors import InputError

_LEFT_OUT = (
    "boundary_diversity and boundary_repulsion are part of the model's own loss; Trainer's "
    "label_smoothing_factor and compute_loss_func leave it out, and so does TRL's SFTTrainer"
)


class BoundaryAdamW(torch.optim.AdamW):
    """An AdamW that holds boundaries still for ``hold_steps`` steps and clamps them to the block.

    The group named ``boundaries`` stores ``hold_steps`` and the number of steps done, so copies of
    the optimizer hold boundaries too. A copy, however, doesn't drop the gradient of held boundaries
    before clipping, so that gradient counts in the norm.
    """

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; held boundaries get no gradient, no moments and no step count."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.holds():
            for group in self._boundary_groups():
                group["params"][0].grad = None  # AdamW would count a step with zero gradients
        _plain_step(self)
        for group in self._boundary_groups():
            group["steps"] += 1
            with torch.no_grad():
                group["params"][0].clamp_(0.0, 1.0)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, but keep ``hold_steps``, which this optimizer's own ``max_steps`` sets."""
        own_hold_steps = [group["hold_steps"] for group in self._boundary_groups()]
        super().load_state_dict(state_dict)
        for group, hold_steps in zip(self._boundary_groups(), own_hold_steps, strict=True):
            group["hold_steps"] = hold_steps

    def holds(self) -> bool:
        """Return whether the next step leaves the boundaries unchanged."""
        return any(group["steps"] < group["hold_steps"] for group in self._boundary_groups())

    def _boundary_groups(self) -> list[dict[str, Any]]:
        """Return the group of boundaries in a list, which is empty if there is none."""
        return [group for group in self.param_groups if group.get("name") == "boundaries"]


def _plain_step(optimizer: torch.optim.AdamW) -> None:
    """Run AdamW's step without torch's hooks around it.

    The hooks already wrap the subclass's step, and would otherwise run twice.
    """
    step = torch.optim.AdamW.step
    if getattr(step, "hooked", False):
        step = vars(step)["__wrapped__"]
    step(optimizer)


def adamw(adapter: Adapter, training: TrainingConfig | TrainingArguments) -> BoundaryAdamW:
    """Build the optimizer of :meth:`HyLoRADAModel.create_optimizer`."""
    if not isinstance(training, TrainingConfig | TrainingArguments):
        raise InputError(
            "training must be a TrainingConfig or transformers' TrainingArguments, "
            f"got {training!r}"
        )
    faults = ("replication_bf16", "replication_pads")
    if isinstance(training, TrainingConfig) and any(getattr(training, f) for f in faults):
        raise InputError(f"{' and '.join(faults)} belong to studies; this optimizer has neither")
    adapter.refuse_if_seated()
    if not any(parameter.requires_grad for parameter in adapter.parameters()):
        raise InputError(
            "the adapter is frozen; load it with from_pretrained(..., is_trainable=True)"
        )
    groups = adapter.optimizer_groups(training.weight_decay)
    for group in groups:
        group["lr"] = training.learning_rate * group["lr_scale"]
        if group["name"] == "boundaries":
            group |= {"steps": 0, "hold_steps": _hold_steps(adapter, training)}
    optimizer = BoundaryAdamW(
        groups,
        lr=training.learning_rate,
        betas=(training.adam_beta1, training.adam_beta2),
        eps=training.adam_epsilon,
        weight_decay=training.weight_decay,
    )
    adapter.hold_boundaries(_while_held(optimizer) if optimizer.holds() else None)
    return optimizer


def _hold_steps(adapter: Adapter, training: TrainingConfig | TrainingArguments) -> float:
    share = adapter.config.boundary_warmup  # 0 unless boundary_init is fixed
    if share and training.max_steps < 1:
        raise InputError(
            f"boundary_warmup {share} is a share of max_steps, which must then be at least 1, "
            f"got {training.max_steps}"
        )
    return share * training.max_steps


def _while_held(optimizer: BoundaryAdamW) -> Callable[[Tensor], None]:
    """Return a hook that drops the gradient of held boundaries before a norm includes it."""
    reference = weakref.ref(optimizer)

    def drop(boundaries: Tensor) -> None:
        living = reference()
        if living is not None and living.holds():
            boundaries.grad = None

    return drop


def penalized(output: Any, adapters: Sequence[Adapter], call: dict[str, Any]) -> Any:
    """Return a model's output in training with the boundaries' regularizers added to its loss.

    Args:
        output: the base's output: a ``ModelOutput``, or a tuple that begins with the loss.
        adapters: the adapters that it was computed with.
        call: the base's arguments, with ``labels`` [b, T] if it computed a loss; with Trainer's
            ``num_items_in_batch`` the labels are a part of the step's batch.

    Raises:
        InputError: the loss is computed elsewhere, without the regularizers.
    """
    labels, items = call.get("labels"), call.get("num_items_in_batch")
    if labels is None and items is None:
        return output
    penalty = boundary_penalties(adapters)
    if penalty is None:
        return output
    if labels is None:
        raise InputError(_LEFT_OUT)
    if items is not None:
        predicted = (
            call["shift_labels"] if call.get("shift_labels") is not None else labels[..., 1:]
        )
        penalty = penalty * (predicted != -100).sum() / items
    if isinstance(output, tuple):
        return (output[0] + penalty, *output[1:])
    output.loss = output.loss + penalty
    return output


def refuse_penalties(adapters: Sequence[Adapter]) -> None:
    """Refuse to train the base's body alone if the model's own loss has regularizers.

    Raises:
        InputError: an adapter has regularizers.
    """
    if boundary_penalties(adapters) is not None:
        raise InputError(_LEFT_OUT)
