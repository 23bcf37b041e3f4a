"""The seat: one adapter with its own optimizer, schedule, clipping and random streams."""

import math
from typing import Any

import torch
from torch import Tensor

from ._adapter import Adapter
from ._batches import BatchOrder
from ._config import TrainingConfig


class Diverged(Exception):
    """The training loss or gradient of one seat is no longer finite.

    Attributes:
        step: the optimizer step (from 1) at which it was seen.
    """

    def __init__(self, what: str, step: int) -> None:
        super().__init__(f"non-finite {what} at step {step}")
        self.step = step


def learning_rate_factor(step: int, training: TrainingConfig) -> float:
    """Share of the peak learning rate at optimizer step ``step`` (from 0): linear warm-up, then the decay to 0."""
    warmup = math.ceil(training.warmup_ratio * training.max_steps)
    if step < warmup:
        return (step + 1) / warmup
    if training.lr_scheduler_type == "constant":
        return 1.0
    share = (step - warmup) / max(1, training.max_steps - warmup)
    return max(0.0, 1 - share) if training.lr_scheduler_type == "linear" else 0.5 * (1 + math.cos(math.pi * share))


class Seat:
    """Trains one adapter, step by step; what the pack does to all seats at once lies outside.

    Args:
        adapter: a fresh adapter; the seat owns it.
        training: the hyperparameters.
        order: which blocks each step sees.

    Raises:
        AssertionError: a parameter is in no optimizer group, or in two.
    """

    def __init__(self, adapter: Adapter, training: TrainingConfig, order: BatchOrder) -> None:
        self.adapter = adapter
        self.training = training
        self.order = order
        self.step = 0
        groups = adapter.optimizer_groups(training)
        grouped = [id(p) for g in groups for p in g["params"]]
        assert sorted(grouped) == sorted(id(p) for p in adapter.parameters()), "parameters and groups differ"
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=training.learning_rate,
            betas=(training.adam_beta1, training.adam_beta2),
            eps=training.adam_epsilon,
        )

    def holds_boundaries(self, step: int) -> bool:
        """Whether the curriculum holds the boundaries at their start in optimizer step ``step`` (from 0)."""
        config = self.adapter.config
        return config.boundary_init == "fixed" and step < config.boundary_warmup * self.training.max_steps

    def objective(self, nll: Tensor) -> Tensor:
        """What this seat minimises: its mean NLL plus the boundary regularizers."""
        penalty = self.adapter.penalty()
        return nll if penalty is None else nll + penalty

    def update(self, loss: float) -> None:
        """One optimizer step from the gradients that lie on the adapter.

        Raises:
            Diverged: ``loss`` or the gradient is not finite; the adapter is left as it was.
        """
        if not math.isfinite(loss):
            raise Diverged("training loss", self.step + 1)
        if self.adapter.boundaries is not None and self.holds_boundaries(self.step):
            self.adapter.boundaries.grad = None  # no step and no moments while held
        norm = torch.nn.utils.clip_grad_norm_(self.adapter.parameters(), self.training.max_grad_norm)
        if not math.isfinite(norm.item()):
            raise Diverged("gradient", self.step + 1)
        lr = self.training.learning_rate * learning_rate_factor(self.step, self.training)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]
        self.optimizer.step()
        self.adapter.after_update()
        self.step += 1

    def applied(self) -> dict[str, Any]:
        """The configuration in force, read back from the live objects (not from what was asked for)."""
        adapter, optimizer = self.adapter, self.optimizer
        groups = {g["name"]: g for g in optimizer.param_groups}
        first = groups["matrices"]
        found: dict[str, Any] = {
            **adapter.applied(),
            "learning_rate": self.training.learning_rate,
            "weight_decay": first["weight_decay"],
            "adam_beta1": first["betas"][0],
            "adam_beta2": first["betas"][1],
            "adam_epsilon": first["eps"],
            "batch_size": self.order.batch_size,
            "max_steps": self.training.max_steps,
            "max_grad_norm": self.training.max_grad_norm,
            "warmup_ratio": self.training.warmup_ratio,
            "lr_scheduler_type": self.training.lr_scheduler_type,
        }
        if "boundaries" in groups:
            found["boundary_lr_scale"] = groups["boundaries"]["lr_scale"]
        return found
