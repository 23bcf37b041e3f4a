"""A seat: one adapter with its own optimizer, schedule, clipping and random streams."""

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
from hylorada.training.bf16_step import round_to_bf16, step_in_bf16


def learning_rate_factor(step: int, training: TrainingConfig) -> float:
    """Return the share of the peak learning rate at optimizer step ``step`` (from 0).

    The learning rate warms up linearly, then decays to 0 (``constant``: stays).
    """
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
    """An optimizer group of a seat, as vectors.

    Attributes:
        settings: the group in ``optimizer.param_groups``.
        values: [n], all its parameters one after the other.
        grads: [n], their gradients.
        exp_avg: [n], AdamW's first moments.
        exp_avg_sq: [n], AdamW's second moments.
        step: number of updates so far, on the CPU; the same for all its parameters.
        bf16: whether all four vectors hold bfloat16 numbers (``replication_bf16``).
    """

    settings: dict[str, Any]
    values: Tensor
    grads: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    step: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float32))
    bf16: bool = False


class Seat:
    """The training state of one adapter.

    The functions of :mod:`hylorada.training.steps` train the seats of a pack together.

    Args:
        adapter: a fresh adapter; the seat owns it.
        training: the hyperparameters.
        order: the blocks that each step sees.

    Attributes:
        step: number of optimizer steps done.
        grads: [n], the gradients of all parameters.
        groups: the optimizer groups, as vectors.
        alive: whether loss and gradient have been finite so far, on the device; it may be ahead of
            ``diverged``.
        diverged: the first non-finite loss or gradient, once its step has been read; else None.

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
        left_out = [id(p) for p in adapter.untrained().values()]
        assert sorted(grouped + left_out) == sorted(id(p) for p in adapter.parameters()), (
            "parameters and groups differ"
        )
        values, self.grads = adapter.flatten()
        if training.replication_bf16:
            round_to_bf16([values, *adapter.untrained().values()])
        self.alive = torch.ones((), dtype=torch.bool, device=values.device)
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
        for group in self.groups:
            group.bf16 = training.replication_bf16

    def holds_boundaries(self, step: int) -> bool:
        """Return whether the curriculum holds the boundaries still in step ``step`` (from 0)."""
        config = self.adapter.config
        return (
            config.boundary_init == "fixed"
            and step < config.boundary_warmup * self.training.max_steps
        )

    def moving_groups(self) -> list[Group]:
        """Return the groups that the next update moves.

        Boundaries that are held get no step and no moments.
        """
        held = self.holds_boundaries(self.step)
        return [g for g in self.groups if not (held and g.settings["name"] == "boundaries")]

    def open_state(self, group: Group) -> None:
        """Put the moments of a group into the optimizer's state, as views of its vectors."""
        start = 0
        for parameter in group.settings["params"]:
            span = slice(start, start := start + parameter.numel())
            self.optimizer.state[parameter] = {
                "step": group.step,
                "exp_avg": group.exp_avg[span].view(parameter.shape),
                "exp_avg_sq": group.exp_avg_sq[span].view(parameter.shape),
            }

    def applied(self) -> dict[str, Any]:
        """Return the configuration in force, read back from the live objects.

        It need not be the requested one: :func:`probe` compares the two.
        """
        adapter, optimizer = self.adapter, self.optimizer
        groups = {g["name"]: g for g in optimizer.param_groups}
        first = groups["matrices"]
        fields: dict[str, Any] = {
            **adapter.applied(),
            "replication_untrained": self._untrained(),
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
            "replication_bf16": all(group.bf16 for group in self.groups),
            "replication_pads": self.order.first > 0,
        }
        if "boundaries" in groups:
            fields["boundary_lr_scale"] = groups["boundaries"]["lr_scale"]
        return fields

    def _untrained(self) -> str:
        """Return which of the adapter's parameters the optimizer does not have."""
        grouped = {id(p) for g in self.optimizer.param_groups for p in g["params"]}
        names = {n for n, p in self.adapter.named_parameters() if id(p) not in grouped}
        if names == {"landmark.boundaries"}:
            return "boundaries"
        return "landmarks" if names else "nothing"


class PendingStep:
    """An optimizer step of K seats that the device may still be computing.

    Args:
        seats: the K seats, before their step is counted.
        losses: [K] mean NLL of the step.
        norms: [K] norms of the gradients.
    """

    def __init__(self, seats: Sequence["Seat"], losses: Tensor, norms: Tensor) -> None:
        self._seats = [(seat, seat.step + 1) for seat in seats]
        numbers = torch.stack([losses.double(), norms.double()])
        self._numbers = numbers.to("cpu", non_blocking=True)  # into pinned memory
        self._done = torch.cuda.Event() if numbers.is_cuda else None
        if self._done is not None:
            self._done.record()

    def result(self) -> list[float | Diverged]:
        """Wait for the device and return the loss of each seat, or :class:`Diverged`.

        A seat yields its first :class:`Diverged` from then on. Call it for every step, in order.
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
    """Clip each seat's gradients and take its AdamW step, without waiting for the device.

    The seats' own optimizers would each launch hundreds of small operations. Here every operation
    runs over all seats at once, with each seat's own learning rate, betas and step (Loshchilov &
    Hutter 2019; the same operations in the same order as ``torch.optim.AdamW``). A seat whose loss
    or gradient is not finite stays unchanged from this step on; the device itself decides that.

    Args:
        seats: K seats whose adapters hold gradients.
        losses: [K] mean NLL of the step.
    """
    moving = [seat.moving_groups() for seat in seats]
    owner = to_device([k for k, groups in enumerate(moving) for _ in groups], losses.device)
    round_to_bf16([seat.grads for seat in seats if seat.training.replication_bf16])
    norms = _norms(moving, losses)
    limits = column(tuple((s.training.max_grad_norm,) for s in seats), norms.dtype, norms.device)[0]
    alive = torch.stack([s.alive for s in seats]) & losses.isfinite() & norms.isfinite()
    clips = (limits / (norms + 1e-6)).clamp(max=1.0)
    for seat, groups in zip(seats, moving, strict=True):
        rate = seat.training.learning_rate * learning_rate_factor(seat.step, seat.training)
        for group in groups:
            group.settings["lr"] = rate * group.settings["lr_scale"]
    # `_adamw` is the last call that may run out of memory and the first that changes a seat's state
    _adamw(
        [group for groups in moving for group in groups],
        torch.stack([clips, alive.to(clips.dtype)])[:, owner],
    )
    pending = PendingStep(seats, losses, norms)
    for seat, groups, still_alive in zip(seats, moving, alive.unbind(), strict=True):
        for group in groups:
            if not group.step:
                seat.open_state(group)
            group.step += 1
        seat.alive = still_alive
        seat.step += 1
    _clamp_boundaries(seats)
    return pending


def _clamp_boundaries(seats: Sequence[Seat]) -> None:
    """Keep boundaries within the block; their buckets would be lost outside."""
    boundaries: list[Tensor] = [
        s.adapter.boundaries for s in seats if s.adapter.boundaries is not None
    ]
    if boundaries:
        torch._foreach_clamp_min_(boundaries, 0.0)
        torch._foreach_clamp_max_(boundaries, 1.0)


def _norms(moving: Sequence[Sequence[Group]], losses: Tensor) -> Tensor:
    """Return the gradient norms [K] of the seats, one by one so that a NaN stays in its seat."""
    vectors = [[group.grads for group in groups] for groups in moving]
    group_norms = iter(torch._foreach_norm([v for grads in vectors for v in grads]))
    most = max(map(len, vectors))
    zero = losses.new_zeros((), dtype=vectors[0][0].dtype)
    table: list[Tensor] = []  # `most` entries a seat; missing groups count as 0
    for grads in vectors:
        table += [next(group_norms) for _ in grads] + [zero] * (most - len(grads))
    norms: Tensor = torch.linalg.vector_norm(torch.stack(table).view(len(moving), most), dim=1)
    return norms


def _adamw(groups: Sequence[Group], device_scalars: Tensor) -> None:
    """Update the vectors of G groups with AdamW.

    Args:
        groups: ``lr`` is that of this update, ``step`` counts the updates before it.
        device_scalars: [2, G], the factor that clips the gradient, and 1 where the group changes,
            0 where it stays as it is.
    """
    low = [k for k, group in enumerate(groups) if group.bf16]
    if not low:
        _adamw_in_full(groups, device_scalars)
        return
    changes = step_in_bf16([groups[k] for k in low], device_scalars[:, low])
    if high := [k for k in range(len(groups)) if k not in low]:
        _adamw_in_full([groups[k] for k in high], device_scalars[:, high])
    for vector, moved in changes:
        vector.copy_(moved)


def _adamw_in_full(groups: Sequence[Group], device_scalars: Tensor) -> None:
    """Update the vectors of G groups at full precision; see :func:`_adamw`."""
    scalars = [_scalars(g.settings, g.step.item() + 1) for g in groups]
    if device_scalars.is_cuda:
        _step_end_to_end(groups, scalars, device_scalars)
        return
    clips, alive = device_scalars.tolist()
    changing = [k for k, is_alive in enumerate(alive) if is_alive]
    _step_in_place(
        [groups[k] for k in changing], [scalars[k] for k in changing], [clips[k] for k in changing]
    )


def _step_end_to_end(
    groups: Sequence[Group], scalars: Sequence[tuple[float, ...]], device_scalars: Tensor
) -> None:
    """Update G groups on a GPU, where each operation costs time, as one concatenated vector."""
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
    """Return the group index of each element of the concatenated vectors."""
    return torch.repeat_interleave(torch.tensor(sizes), output_size=sum(sizes)).int().to(device)


def _scalars(settings: dict[str, Any], step: float) -> tuple[float, ...]:
    """Return AdamW's eight constants of a group at an update (``step``, from 1)."""
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
    """Update G groups on a CPU, where passes over the numbers cost time rather than operations."""
    if not groups:
        return
    keep, beta1, rest1, beta2, rest2, root2, rate, eps = zip(*scalars, strict=True)
    first, second = [g.exp_avg for g in groups], [g.exp_avg_sq for g in groups]
    grads = torch._foreach_mul([g.grads for g in groups], clips)
    roots = [torch.empty_like(g) for g in grads]
    terms = torch._foreach_mul(grads, rest1)
    # nothing is allocated from here on, so running out of memory leaves the groups unchanged
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
    """Return parameters [n] and both moments [n] after an update; ``index`` [n] picks columns."""
    clip, alive, keep, beta1, rest1, beta2, rest2, root2, rate, eps = (row[index] for row in table)
    grads = grads * clip
    first = exp_avg * beta1 + grads * rest1
    second = exp_avg_sq * beta2 + grads * grads * rest2
    moved = values * keep - rate * first / (second.sqrt() / root2 + eps)
    is_alive = alive > 0
    return (
        torch.where(is_alive, moved, values),
        torch.where(is_alive, first, exp_avg),
        torch.where(is_alive, second, exp_avg_sq),
    )


@cache
def _compiled_step() -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Return the compiled step: one kernel on a GPU instead of thirty."""
    return torch.compile(_step, dynamic=True)
