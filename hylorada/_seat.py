"""The seat: one adapter with its own optimizer, schedule, clipping and random streams."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
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


@dataclass(eq=False)
class Group:
    """One optimizer group of a seat, as vectors.

    Attributes:
        settings: the group in ``optimizer.param_groups``.
        values, grads, exp_avg, exp_avg_sq: [n] all its parameters one after the other, their gradients and moments.
        step: its updates so far; one number (on the CPU) for all its parameters.
    """

    settings: dict[str, Any]
    values: Tensor
    grads: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    step: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float32))


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
        values, self.grads = adapter.flatten()
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=training.learning_rate,
            betas=(training.adam_beta1, training.adam_beta2),
            eps=training.adam_epsilon,
        )
        sizes = [sum(p.numel() for p in g["params"]) for g in self.optimizer.param_groups]
        parts = (values, self.grads, torch.zeros_like(values), torch.zeros_like(values))
        columns = zip(*(part.split(sizes) for part in parts), strict=True)
        self.groups = [
            Group(settings, *vectors) for settings, vectors in zip(self.optimizer.param_groups, columns, strict=True)
        ]

    def holds_boundaries(self, step: int) -> bool:
        """Whether the curriculum holds the boundaries at their start in optimizer step ``step`` (from 0)."""
        config = self.adapter.config
        return config.boundary_init == "fixed" and step < config.boundary_warmup * self.training.max_steps

    def moving_groups(self) -> list[Group]:
        """The groups that the next update moves; held boundaries get no step and no moments."""
        held = self.holds_boundaries(self.step)
        return [g for g in self.groups if not (held and g.settings["name"] == "boundaries")]

    def open_state(self, group: Group) -> None:
        """Enter the moments of a group into the optimizer's state, where they are views of the group's vectors."""
        start = 0
        for parameter in group.settings["params"]:
            own = slice(start, start := start + parameter.numel())
            self.optimizer.state[parameter] = {
                "step": group.step,
                "exp_avg": group.exp_avg[own].view(parameter.shape),
                "exp_avg_sq": group.exp_avg_sq[own].view(parameter.shape),
            }

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


def update(seats: Sequence[Seat], losses: Tensor) -> list[float | Diverged]:
    """One optimizer step of every seat, from the gradients that lie on its adapter: clipping, then AdamW.

    The seats' own optimizers would each launch hundreds of small operations; here every operation runs over all seats
    at once, with each seat's own learning rate, betas and step (Loshchilov & Hutter 2019; the same operations in the
    same order as ``torch.optim.AdamW``).

    Args:
        seats: K seats.
        losses: [K] mean NLL of the step.

    Returns:
        By seat its loss, or :class:`Diverged` where the loss or the gradient is not finite; that adapter is left as it
        was.
    """
    moving = [seat.moving_groups() for seat in seats]
    norms = torch.stack(torch._foreach_norm([g.grads for groups in moving for g in groups]))
    numbers = iter(torch.cat([losses.double(), norms.double()]).tolist())  # the one wait for the device in a step
    found: list[float | Diverged] = list(islice(numbers, len(seats)))
    groups, clips = [], []
    for k, (seat, own) in enumerate(zip(seats, moving, strict=True)):
        norm = math.sqrt(sum(n * n for n in islice(numbers, len(own))))
        if not math.isfinite(found[k]):  # type: ignore[arg-type]
            found[k] = Diverged("training loss", seat.step + 1)
        elif not math.isfinite(norm):
            found[k] = Diverged("gradient", seat.step + 1)
        else:
            rate = seat.training.learning_rate * learning_rate_factor(seat.step, seat.training)
            for group in own:
                group.settings["lr"] = rate * group.settings["lr_scale"]
            for group in own:
                if not group.step:
                    seat.open_state(group)
            groups += own
            clips += [min(1.0, seat.training.max_grad_norm / (norm + 1e-6))] * len(own)
            seat.step += 1
    if groups:
        _adamw(groups, clips)
    for seat, result in zip(seats, found, strict=True):
        if not isinstance(result, Diverged):
            seat.adapter.after_update()
    return found


@torch.no_grad()
def _adamw(groups: Sequence[Group], clips: list[float]) -> None:
    grads, firsts, seconds = [g.grads for g in groups], [g.exp_avg for g in groups], [g.exp_avg_sq for g in groups]
    values, settings = [g.values for g in groups], [g.settings for g in groups]
    for group in groups:
        group.step += 1
    steps = [g.step.item() for g in groups]  # on the CPU
    beta1, beta2 = [s["betas"][0] for s in settings], [s["betas"][1] for s in settings]
    torch._foreach_mul_(grads, clips)
    torch._foreach_mul_(values, [1 - s["lr"] * s["weight_decay"] for s in settings])
    torch._foreach_mul_(firsts, beta1)
    torch._foreach_add_(firsts, torch._foreach_mul(grads, [1 - b for b in beta1]))
    torch._foreach_mul_(seconds, beta2)
    torch._foreach_addcmul_(seconds, grads, grads, [1 - b for b in beta2])
    denominators = torch._foreach_sqrt(seconds)
    torch._foreach_div_(denominators, [math.sqrt(1 - b**t) for b, t in zip(beta2, steps, strict=True)])
    torch._foreach_add_(denominators, [s["eps"] for s in settings])
    rates = [-s["lr"] / (1 - b**t) for s, b, t in zip(settings, beta1, steps, strict=True)]
    torch._foreach_addcdiv_(values, firsts, denominators, rates)
