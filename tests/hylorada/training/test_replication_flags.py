"""Faults of the published code, each against a version of it written by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hylorada import (
    Adapter,
    BatchOrder,
    HyLoRADAConfig,
    InputError,
    Pack,
    Seat,
    TrainingConfig,
    probe,
    train_step,
)
from hylorada.training.boundary_adamw import adamw
from hylorada.training.checkpoint import load_seat, read_parameters, save_seat
from hylorada.training.seat import learning_rate_factor

LEARNABLE: dict[str, Any] = {"landmark_bucketing": "learnable", "boundary_lr_scale": 20.0}
STEPS = 6


class Lab:
    def __init__(
        self,
        base: PreTrainedModel,
        make_config: Callable[..., HyLoRADAConfig],
        ids: npt.NDArray[np.int32],
    ) -> None:
        self.pack, self.make_config, self.ids = Pack(base), make_config, ids
        self.order = BatchOrder(len(ids), 2, seed=4)

    def adapter(self, **changes: Any) -> Adapter:
        return Adapter(self.pack.base, self.make_config(**LEARNABLE | changes), seed=3)

    def seat(self, training: TrainingConfig, **changes: Any) -> Seat:
        return Seat(self.adapter(**changes), training, self.order)

    def train(self, *seats: Seat, steps: int = STEPS) -> list[Any]:
        named = dict(enumerate(seats))
        return [train_step(self.pack, named, self.ids) for _ in range(steps)]

    def tokens(self, step: int) -> Tensor:
        return torch.from_numpy(self.ids[self.order.indices(step)]).long()[None]


@pytest.fixture
def lab(
    make_base: Callable[..., PreTrainedModel],
    make_config: Callable[..., HyLoRADAConfig],
    token_blocks: npt.NDArray[np.int32],
) -> Lab:
    return Lab(make_base("gpt2"), make_config, token_blocks)


def training(**changes: Any) -> TrainingConfig:
    return TrainingConfig(
        **{"max_steps": STEPS, "batch_size": 2, "learning_rate": 2e-2, "weight_decay": 0.1}
        | changes
    )


def _train_in_bf16(lab: Lab, settings: TrainingConfig) -> dict[str, Tensor]:
    """Train bf16 parameters with torch's own AdamW on them, as the published code did.

    The adapter in the base's dtype is only what computes with their values.
    """
    shown = lab.adapter()
    low = {n: nn.Parameter(p.detach().bfloat16()) for n, p in shown.named_parameters()}
    groups = shown.optimizer_groups(settings.weight_decay)
    names = {id(p): n for n, p in shown.named_parameters()}
    for group in groups:
        group["params"] = [low[names[id(p)]] for p in group["params"]]
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, foreach=False)
    for step in range(settings.max_steps):
        with torch.no_grad():
            for name, parameter in shown.named_parameters():
                parameter.copy_(low[name])
        shown.zero_grad()
        lab.pack.token_nll([shown], lab.tokens(step)).mean().backward()
        for name, parameter in shown.named_parameters():
            assert parameter.grad is not None
            low[name].grad = parameter.grad.bfloat16()
        squares = [float(p.grad.float().square().sum()) for p in low.values() if p.grad is not None]
        clip = min(1.0, settings.max_grad_norm / (sum(squares) ** 0.5 + 1e-6))
        for group in optimizer.param_groups:
            rate = settings.learning_rate * learning_rate_factor(step, settings)
            group["lr"] = rate * group["lr_scale"]
            for parameter in group["params"]:
                parameter.grad.mul_(clip)
        optimizer.step()
        low["landmark.boundaries"].data.clamp_(0, 1)
    return {n: p.detach() for n, p in low.items()}


@pytest.mark.parametrize("max_grad_norm", [1e9, 0.05])
def test_bf16_adapter_equals_a_loop_over_bf16_parameters(lab: Lab, max_grad_norm: float) -> None:
    settings = training(max_grad_norm=max_grad_norm, replication_bf16=True)
    seat = lab.seat(settings)
    lab.train(seat)
    expected = _train_in_bf16(lab, settings)
    for name, parameter in seat.adapter.named_parameters():
        assert torch.equal(parameter, parameter.bfloat16().float()), name
        off = (parameter - expected[name].float()).abs().max() / expected[name].abs().max()
        assert off <= 2**-7, name  # a rounding of bf16, from the order of sums in the norm
        if max_grad_norm > 1:
            assert torch.equal(parameter, expected[name].float()), name
    for group in seat.groups:
        for vector in (group.grads, group.exp_avg, group.exp_avg_sq):
            assert torch.equal(vector, vector.bfloat16().float())


def test_published_step_at_one_half_is_lost_in_bf16_alone(lab: Lab) -> None:
    """The next bf16 number below 0.5 is 2**-9 away, and 5e-4 is about a quarter of that."""
    moved = []
    for low in (False, True):
        still = {"lr_scheduler_type": "constant", "warmup_ratio": 0.0}
        settings = training(**still, learning_rate=5e-4, replication_bf16=low)
        seat = lab.seat(settings, boundary_lr_scale=1.0)
        boundaries = seat.adapter.boundaries
        assert boundaries is not None
        with torch.no_grad():
            boundaries.fill_(0.5)
        lab.train(seat)
        moved.append(float((boundaries.detach() - 0.5).abs().max()))
    assert moved[0] > 1e-4
    assert moved[1] == 0


def test_flagged_seats_in_a_pack_equal_themselves_alone(lab: Lab) -> None:
    """Neither they nor their clean neighbours notice each other."""
    kinds: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({"replication_bf16": True}, {}),
        ({}, {"replication_untrained": "boundaries"}),
        ({"replication_bf16": True}, {"replication_untrained": "landmarks"}),
        ({}, {"landmark_bucketing": "fixed", "replication_bucket_range": 32_768}),
    ]
    together = [lab.seat(training(**t), **a) for t, a in kinds]
    losses = lab.train(*together)
    for place, (t, a) in enumerate(kinds):
        alone = lab.seat(training(**t), **a)
        solo = lab.train(alone)
        assert [s[0] for s in solo] == pytest.approx([s[place] for s in losses], rel=1e-5)
        tolerance = 2**-7 if t else 1e-5
        for ours, theirs in zip(alone.groups, together[place].groups, strict=True):
            torch.testing.assert_close(
                ours.values, theirs.values, rtol=tolerance, atol=1e-3 * tolerance
            )


@pytest.mark.parametrize("untrained", ["boundaries", "landmarks"])
def test_untrained_parameters_keep_their_bits_and_are_in_no_group(lab: Lab, untrained: str) -> None:
    seat = lab.seat(training(), replication_untrained=untrained)
    before = {n: p.detach().clone() for n, p in seat.adapter.named_parameters()}
    lab.train(seat)
    grouped = {id(p) for g in seat.optimizer.param_groups for p in g["params"]}
    prefix = "landmark.boundaries" if untrained == "boundaries" else "landmark."
    kept = {n for n in before if n.startswith(prefix)}
    assert kept
    for name, parameter in seat.adapter.named_parameters():
        assert (id(parameter) in grouped) == (name not in kept), name
        assert torch.equal(parameter, before[name]) == (name in kept), name


def test_untrained_boundaries_train_like_a_hand_written_frozen_copy(lab: Lab) -> None:
    """The rest trains as if boundaries were constants."""
    frozen = lab.adapter()
    assert frozen.boundaries is not None
    groups = frozen.optimizer_groups(0.1)
    optimizer = torch.optim.AdamW([g for g in groups if g["name"] != "boundaries"], lr=2e-2)
    settings = training(max_grad_norm=1e9)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * learning_rate_factor(step, settings)
        optimizer.zero_grad()
        lab.pack.token_nll([frozen], lab.tokens(step)).mean().backward()
        optimizer.step()
    seat = lab.seat(settings, replication_untrained="boundaries")
    lab.train(seat)
    trained = dict(seat.adapter.named_parameters())
    for name, parameter in frozen.named_parameters():
        torch.testing.assert_close(trained[name], parameter, rtol=1e-4, atol=1e-6, msg=name)


def test_probe_accepts_untrained_parameters_under_the_flag_alone(lab: Lab) -> None:
    ids = torch.from_numpy(lab.ids)
    probe(lab.pack, [lab.seat(training(), replication_untrained="boundaries")], ids)
    seat = lab.seat(training(), replication_untrained="boundaries")
    seat.adapter.config = lab.make_config(**LEARNABLE)
    with pytest.raises(InputError, match="replication_untrained is 'boundaries' in the trainer"):
        probe(lab.pack, [seat], ids)
    adapter = lab.adapter()
    grouped = adapter._grouped
    adapter._grouped = lambda: {n: g for n, g in grouped().items() if n != "boundaries"}  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="parameters and groups differ"):
        Seat(adapter, training(), lab.order)


@pytest.mark.parametrize(
    ("flags", "changes"),
    [({"replication_bf16": True}, {}), ({}, {"replication_untrained": "landmarks"})],
)
def test_flagged_seats_resume_bit_for_bit(
    lab: Lab, tmp_path: Path, flags: dict[str, Any], changes: dict[str, Any]
) -> None:
    whole, first = (lab.seat(training(**flags), **changes) for _ in range(2))
    lab.train(whole)
    lab.train(first, steps=2)
    save_seat(first, tmp_path / "seat", {})
    resumed = lab.seat(training(**flags), **changes)
    load_seat(resumed, tmp_path / "seat")
    lab.train(resumed, steps=STEPS - 2)
    stored = read_parameters(tmp_path / "seat")
    for name, parameter in resumed.adapter.named_parameters():
        assert torch.equal(parameter, dict(whole.adapter.named_parameters())[name]), name
        assert torch.equal(stored[name], dict(first.adapter.named_parameters())[name]), name


def test_a_trainers_optimizer_refuses_what_only_seats_do(lab: Lab) -> None:
    with pytest.raises(InputError, match="replication_bf16 and replication_pads belong to studies"):
        adamw(lab.adapter(), training(replication_bf16=True))
    names = [
        g["name"]
        for g in adamw(lab.adapter(replication_untrained="boundaries"), training()).param_groups
    ]
    assert names == ["matrices", "scalars"]
