"""The seat: one adapter with its own optimizer, schedule, clipping and random streams."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from hylorada.adapters.adapter import Adapter
from hylorada.config import TrainingConfig
from hylorada.data.batch_order import BatchOrder
from hylorada.errors import Diverged
from hylorada.runtime.devices import column, to_device


def learning_rate_factor(step: int, training: TrainingConfig) -> float:
    """Share of the peak learning rate at optimizer step ``step`` (from 0): linear warm-up, then the decay to 0."""
    warmup = math.ceil(training.warmup_ratio * training.max_steps)
    if step < warmup:
        return (step + 1) / warmup
    if training.lr_scheduler_type == "constant":
        return 1.0
    share = (step - warmup) / max(1, training.max_steps - warmup)
    return (
        max(0.0, 1 - share)
        if training.lr_scheduler_type == "linear"
        else 0.5 * (1 + math.cos(math.pi * share))
    )


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
        groups = adapter.optimizer_groups(training.weight_decay)
        grouped = [id(p) for g in groups for p in g["params"]]
        assert sorted(grouped) == sorted(id(p) for p in adapter.parameters()), (
            "parameters and groups differ"
        )
        values, self.grads = adapter.flatten()
        self.alive = torch.ones(
            (), dtype=torch.bool, device=values.device
        )  # the device's word, ahead of `diverged`
        self.diverged: Diverged | None = None
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
            Group(settings, *vectors)
            for settings, vectors in zip(self.optimizer.param_groups, columns, strict=True)
        ]

    def holds_boundaries(self, step: int) -> bool:
        """Whether the curriculum holds the boundaries at their start in optimizer step ``step`` (from 0)."""
        config = self.adapter.config
        return (
            config.boundary_init == "fixed"
            and step < config.boundary_warmup * self.training.max_steps
        )

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


class PendingStep:
    """An optimizer step of K seats that has been handed to the device and may not have come to its end."""

    def __init__(self, seats: Sequence["Seat"], losses: Tensor, norms: Tensor) -> None:
        self._seats = [(seat, seat.step + 1) for seat in seats]
        numbers = torch.stack([losses.double(), norms.double()])
        self._numbers = numbers.to("cpu", non_blocking=True)  # into pinned memory
        self._done = torch.cuda.Event() if numbers.is_cuda else None
        if self._done is not None:
            self._done.record()

    def result(self) -> list[float | Diverged]:
        """By seat its loss, or :class:`Diverged` from the step on at which loss or gradient were not finite.

        Waits for the device; to be called for every step, in order.
        """
        if self._done is not None:
            self._done.synchronize()
        losses, norms = self._numbers.tolist()
        for (seat, step), loss, norm in zip(self._seats, losses, norms, strict=True):
            if seat.diverged is None and not math.isfinite(loss + norm):
                seat.diverged = Diverged(
                    "gradient" if math.isfinite(loss) else "training loss", step
                )
        return [seat.diverged or loss for (seat, _), loss in zip(self._seats, losses, strict=True)]


@torch.no_grad()
def update(seats: Sequence[Seat], losses: Tensor) -> PendingStep:
    """One optimizer step of every seat, from the gradients that lie on its adapter: clipping, then AdamW.

    The seats' own optimizers would each launch hundreds of small operations; here every operation runs over all seats
    at once, with each seat's own learning rate, betas and step (Loshchilov & Hutter 2019; the same operations in the
    same order as ``torch.optim.AdamW``). Nothing waits for the device: a seat whose loss or gradient is not finite
    is left as it was, from this step on, by the device itself.

    Args:
        seats: K seats.
        losses: [K] mean NLL of the step.
    """
    moving = [seat.moving_groups() for seat in seats]
    owner = to_device([k for k, own in enumerate(moving) for _ in own], losses.device)
    norms = _norms(moving, losses)
    limits = column(tuple((s.training.max_grad_norm,) for s in seats), norms.dtype, norms.device)[0]
    alive = torch.stack([s.alive for s in seats]) & losses.isfinite() & norms.isfinite()
    clips = (limits / (norms + 1e-6)).clamp(max=1.0)
    for seat, own in zip(seats, moving, strict=True):
        rate = seat.training.learning_rate * learning_rate_factor(seat.step, seat.training)
        for group in own:
            group.settings["lr"] = rate * group.settings["lr_scale"]
    # nothing of a seat changes before this, the last that may run out of memory
    _adamw(
        [group for own in moving for group in own],
        torch.stack([clips, alive.to(clips.dtype)])[:, owner],
    )
    pending = PendingStep(seats, losses, norms)
    for seat, own, still in zip(seats, moving, alive.unbind(), strict=True):
        for group in own:
            if not group.step:
                seat.open_state(group)
            group.step += 1
        seat.alive = still
        seat.step += 1
    boundaries: list[Tensor] = [
        s.adapter.boundaries for s in seats if s.adapter.boundaries is not None
    ]
    if boundaries:  # unclamped they drift out of the block and their buckets are lost
        torch._foreach_clamp_min_(boundaries, 0.0)
        torch._foreach_clamp_max_(boundaries, 1.0)
    return pending


def _norms(moving: Sequence[Sequence[Group]], losses: Tensor) -> Tensor:
    """Norms [K] of the gradients that move; seat by seat, for a NaN must stay where it is."""
    vectors = [[g.grads for g in own] for own in moving]
    norms = iter(torch._foreach_norm([v for own in vectors for v in own]))
    most = max(map(len, vectors))
    none = losses.new_zeros((), dtype=vectors[0][0].dtype)
    columns = [[next(norms) for _ in own] + [none] * (most - len(own)) for own in vectors]
    found: Tensor = torch.linalg.vector_norm(
        torch.stack([n for own in columns for n in own]).view(len(moving), most), dim=1
    )
    return found


def _adamw(groups: Sequence[Group], device_scalars: Tensor) -> None:
    """AdamW on the vectors of G groups.

    Args:
        groups: ``lr`` is that of this update, ``step`` counts those before it.
        device_scalars: [2, G] what the gradient is multiplied with, and 1 where the group is to change at all.
    """
    scalars = [_scalars(g.settings, g.step.item() + 1) for g in groups]
    if device_scalars.is_cuda:
        _step_end_to_end(groups, scalars, device_scalars)
        return
    clips, alive = device_scalars.tolist()
    going = [k for k, still in enumerate(alive) if still]
    _step_in_place(
        [groups[k] for k in going], [scalars[k] for k in going], [clips[k] for k in going]
    )


def _step_end_to_end(
    groups: Sequence[Group], scalars: Sequence[tuple[float, ...]], device_scalars: Tensor
) -> None:
    """One update of G groups on a GPU, where each operation counts: their vectors are laid end to end."""
    table = torch.cat(
        [device_scalars, to_device(scalars, device_scalars.device, device_scalars.dtype).T]
    )  # [2 + 8, G]
    sizes = tuple(len(g.values) for g in groups)
    index = _owners(sizes, table.device)
    state = [
        [g.values for g in groups],
        [g.exp_avg for g in groups],
        [g.exp_avg_sq for g in groups],
    ]
    values, first, second = (torch.cat(vectors) for vectors in state)
    moved = _compiled_step()(
        values, first, second, torch.cat([g.grads for g in groups]), table, index
    )
    for vectors, new in zip(state, moved, strict=True):
        torch._foreach_copy_(vectors, list(new.split(sizes)))


@lru_cache(4)
def _owners(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Which group each number of the vectors laid end to end belongs to."""
    return torch.repeat_interleave(torch.tensor(sizes), output_size=sum(sizes)).int().to(device)


def _scalars(settings: dict[str, Any], step: float) -> tuple[float, ...]:
    beta1, beta2 = settings["betas"]
    keep, rate = 1 - settings["lr"] * settings["weight_decay"], settings["lr"] / (1 - beta1**step)
    return (
        keep,
        beta1,
        1 - beta1,
        beta2,
        1 - beta2,
        math.sqrt(1 - beta2**step),
        rate,
        settings["eps"],
    )


def _step_in_place(
    groups: Sequence[Group], scalars: Sequence[tuple[float, ...]], clips: Sequence[float]
) -> None:
    """One update of G groups on a CPU, where each pass over the numbers counts, not each operation."""
    if not groups:
        return
    keep, beta1, rest1, beta2, rest2, root2, rate, eps = zip(*scalars, strict=True)
    first, second = [g.exp_avg for g in groups], [g.exp_avg_sq for g in groups]
    grads = torch._foreach_mul([g.grads for g in groups], clips)
    roots = [torch.empty_like(g) for g in grads]
    terms = torch._foreach_mul(grads, rest1)
    # from here on nothing is allocated
    torch._foreach_mul_(first, beta1)
    torch._foreach_add_(first, terms)
    torch._foreach_mul_(second, beta2)
    torch._foreach_addcmul_(second, grads, grads, rest2)
    for square, root in zip(second, roots, strict=True):
        torch.sqrt(square, out=root)
    torch._foreach_div_(roots, root2)
    torch._foreach_add_(roots, eps)
    values = [g.values for g in groups]
    torch._foreach_mul_(values, keep)
    torch._foreach_addcdiv_(values, first, roots, [-r for r in rate])


def _step(
    values: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, grads: Tensor, table: Tensor, index: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    clip, alive, keep, beta1, rest1, beta2, rest2, root2, rate, eps = (row[index] for row in table)
    grads = grads * clip
    first = exp_avg * beta1 + grads * rest1
    second = exp_avg_sq * beta2 + grads * grads * rest2
    moved = values * keep - rate * first / (second.sqrt() / root2 + eps)
    go = alive > 0
    return (
        torch.where(go, moved, values),
        torch.where(go, first, exp_avg),
        torch.where(go, second, exp_avg_sq),
    )


@cache
def _compiled_step() -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """On a GPU one kernel instead of thirty."""
    return torch.compile(_step, dynamic=True)
