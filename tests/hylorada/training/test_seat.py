"""Seats: schedule, boundary steps, curriculum, clipping, divergence, applied configuration."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from hylorada import Adapter, HyLoRADAConfig, TrainingConfig
from hylorada.data.batch_order import BatchOrder
from hylorada.errors import Diverged
from hylorada.training import seat as seat_module
from hylorada.training.seat import Seat, learning_rate_factor, update

MakeSeat = Callable[..., Seat]
LEARNABLE: dict[str, Any] = {"landmark_bucketing": "learnable"}
STEADY: dict[str, Any] = {"lr_scheduler_type": "constant", "warmup_ratio": 0.0}


@pytest.fixture
def make_seat(
    make_base: Callable[..., PreTrainedModel], make_config: Callable[..., HyLoRADAConfig]
) -> MakeSeat:
    def make(
        adapter: dict[str, Any], training: dict[str, Any], dtype: torch.dtype = torch.float32
    ) -> Seat:
        base = make_base("gpt2", dtype)
        settings = TrainingConfig(**training)
        return Seat(
            Adapter(base, make_config(**adapter), seed=0),
            settings,
            BatchOrder(24, settings.batch_size, 0),
        )

    return make


def _boundaries(seat: Seat) -> nn.Parameter:
    assert seat.adapter.boundaries is not None
    return seat.adapter.boundaries


def _set_gradients(seat: Seat, value: float) -> None:
    for parameter in seat.adapter.parameters():
        _gradient(parameter).fill_(value)


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _update(seat: Seat, loss: float) -> None:
    (result,) = update([seat], torch.tensor([loss])).result()
    if isinstance(result, Diverged):
        raise result


def _bits(seat: Seat) -> list[torch.Tensor]:
    return [p.detach().clone() for p in seat.adapter.parameters()]


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
@pytest.mark.parametrize(
    ("max_steps", "warmup_ratio"), [(40, 0.0), (40, 0.1), (37, 0.05), (10, 0.5), (8, 1.0), (1, 0.0)]
)
def test_schedule_is_that_of_transformers(kind: str, max_steps: int, warmup_ratio: float) -> None:
    """The schedule equals that of transformers after the warm-up, and is one step ahead within.

    The first step of transformers has learning rate 0.
    """
    values = {"max_steps": max_steps, "warmup_ratio": warmup_ratio, "lr_scheduler_type": kind}
    training = TrainingConfig.from_dict(values)
    warmup = math.ceil(warmup_ratio * max_steps)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    name = "constant_with_warmup" if kind == "constant" else kind
    schedule = transformers.get_scheduler(
        name, optimizer, num_warmup_steps=warmup, num_training_steps=max_steps
    )
    theirs = []
    for _ in range(max_steps):
        theirs.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    ours = [learning_rate_factor(step, training) for step in range(max_steps)]
    assert ours[warmup:] == pytest.approx(theirs[warmup:], abs=1e-15)
    assert ours[:warmup] == pytest.approx([(s + 1) / warmup for s in range(warmup)])
    assert ours[: max(0, warmup - 1)] == pytest.approx(theirs[1:warmup])


def test_each_step_uses_the_scheduled_rate(make_seat: MakeSeat) -> None:
    training = {
        "max_steps": 6,
        "warmup_ratio": 0.5,
        "lr_scheduler_type": "linear",
        "learning_rate": 0.01,
    }
    seat = make_seat({**LEARNABLE, "boundary_lr_scale": 3.0}, training)
    rates = []
    for _ in range(6):
        _set_gradients(seat, 1e-3)
        _update(seat, 1.0)
        rates.append({g["name"]: g["lr"] for g in seat.optimizer.param_groups})
    expected = [0.01 * f for f in (1 / 3, 2 / 3, 1.0, 1.0, 2 / 3, 1 / 3)]
    assert [r["matrices"] for r in rates] == pytest.approx(expected)
    assert [r["scalars"] for r in rates] == pytest.approx(expected)
    assert [r["boundaries"] for r in rates] == pytest.approx([3 * e for e in expected])


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_boundary_moves_by_its_rate_each_step_on_a_bf16_base(
    make_seat: MakeSeat, scale: float
) -> None:
    seat = make_seat(
        {**LEARNABLE, "boundary_lr_scale": scale}, {**STEADY, "learning_rate": 1e-4}, torch.bfloat16
    )
    with torch.no_grad():
        _boundaries(seat).fill_(0.5)
    for step in range(1, 101):
        _set_gradients(seat, -1e-2)
        _update(seat, 1.0)
        expected = torch.full((3,), 0.5 + step * 1e-4 * scale)
        torch.testing.assert_close(_boundaries(seat).data, expected, rtol=0, atol=2e-5 * scale)


@pytest.mark.parametrize(("gradient", "limit"), [(-1.0, 1.0), (1.0, 0.0)])
def test_boundaries_stay_inside_the_block(
    make_seat: MakeSeat, gradient: float, limit: float
) -> None:
    seat = make_seat(LEARNABLE, {**STEADY, "learning_rate": 0.3})
    for _ in range(5):
        _set_gradients(seat, gradient)
        _update(seat, 1.0)
        assert 0 <= _boundaries(seat).min() <= _boundaries(seat).max() <= 1
    assert _boundaries(seat).tolist() == [limit] * 3


def test_weight_decay_is_on_matrices_alone(make_seat: MakeSeat) -> None:
    seat = make_seat(LEARNABLE, {**STEADY, "learning_rate": 0.1, "weight_decay": 0.5})
    for parameter in seat.adapter.parameters():
        parameter.data.fill_(0.25)
    _set_gradients(seat, 0.0)
    _update(seat, 1.0)
    for name, parameter in seat.adapter.named_parameters():
        expected = 0.25 * (1 - 0.1 * 0.5) if parameter.ndim == 2 else 0.25
        torch.testing.assert_close(parameter.data, torch.full_like(parameter, expected), msg=name)


def test_curriculum_holds_the_boundaries_then_lets_them_go(make_seat: MakeSeat) -> None:
    held = {**LEARNABLE, "boundary_init": "fixed", "boundary_warmup": 0.3}
    seat = make_seat(held, {**STEADY, "max_steps": 10, "learning_rate": 1e-3})
    start = _boundaries(seat).detach().clone()
    for step in range(10):
        _set_gradients(seat, 1e-2)
        _update(seat, 1.0)
        moved = not torch.equal(_boundaries(seat).data, start)
        assert moved == (step >= 3)
        assert (_boundaries(seat) in seat.optimizer.state) == (step >= 3)
    assert seat.optimizer.state[_boundaries(seat)]["step"].item() == 7
    torch.testing.assert_close(_boundaries(seat).data, start - 7e-3, rtol=0, atol=1e-6)


def test_held_boundaries_count_in_no_gradient_norm(make_seat: MakeSeat) -> None:
    held = {**LEARNABLE, "boundary_init": "fixed", "boundary_warmup": 0.5}
    seat = make_seat(held, {"max_steps": 10, "max_grad_norm": 1.0})
    _set_gradients(seat, 0.0)
    _gradient(seat.adapter.get_parameter("landmark.scale")).fill_(0.5)
    _gradient(_boundaries(seat)).fill_(1e6)
    _update(seat, 1.0)
    moment = seat.optimizer.state[seat.adapter.get_parameter("landmark.scale")]["exp_avg"]
    torch.testing.assert_close(
        moment, torch.tensor(0.1 * 0.5)
    )  # (1 - beta1) times the unclipped gradient


@pytest.mark.parametrize(("norm", "factor"), [(0.5, 1.0), (100.0, 0.01)])
def test_gradient_is_clipped_by_the_seats_own_norm(
    make_seat: MakeSeat, norm: float, factor: float
) -> None:
    seats = [make_seat({}, {"max_grad_norm": 1.0}) for _ in range(2)]
    for seat, wanted in zip(seats, (norm, 100.0 if norm == 0.5 else 0.5), strict=True):
        _set_gradients(seat, 1.0)
        total = math.sqrt(sum(p.numel() for p in seat.adapter.parameters()))
        _set_gradients(seat, wanted / total)
    first = seats[0]
    before = [p.grad.clone() for p in first.adapter.parameters() if p.grad is not None]
    for seat in seats:
        _update(seat, 1.0)
    for parameter, gradient in zip(first.adapter.parameters(), before, strict=True):
        moment = first.optimizer.state[parameter][
            "exp_avg"
        ]  # (1 - beta1) times the clipped gradient
        torch.testing.assert_close(moment, 0.1 * gradient * factor, rtol=1e-5, atol=0)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_non_finite_loss_leaves_the_adapter_as_it_was(make_seat: MakeSeat, loss: float) -> None:
    seat = make_seat(LEARNABLE, {})
    for _ in range(2):
        _set_gradients(seat, 1e-3)
        _update(seat, 1.0)
    before = _bits(seat)
    with pytest.raises(Diverged, match="non-finite training loss at step 3") as caught:
        _update(seat, loss)
    assert caught.value.step == 3
    assert all(torch.equal(p, q) for p, q in zip(before, seat.adapter.parameters(), strict=True))


def test_non_finite_gradient_leaves_adapter_and_moments_as_they_were(make_seat: MakeSeat) -> None:
    seat = make_seat({}, {})
    _set_gradients(seat, 1e-3)
    _update(seat, 1.0)
    before, scale = _bits(seat), seat.adapter.get_parameter("landmark.scale")
    moment = seat.optimizer.state[scale]["exp_avg"].clone()
    _set_gradients(seat, 1e-3)
    _gradient(scale).fill_(math.nan)
    with pytest.raises(Diverged, match="non-finite gradient at step 2"):
        _update(seat, 1.0)
    assert all(torch.equal(p, q) for p, q in zip(before, seat.adapter.parameters(), strict=True))
    assert torch.equal(seat.optimizer.state[scale]["exp_avg"], moment)


@pytest.mark.parametrize(
    ("adapter", "training"),
    [
        ({}, {}),
        (
            {"landmarks": False, "position_bias": False, "lora_dropout": 0.1},
            {"max_grad_norm": 0.3, "warmup_ratio": 0.0},
        ),
        (
            {"num_landmarks": 0, "target_modules": ("c_attn", "c_fc")},
            {"lr_scheduler_type": "linear", "batch_size": 7},
        ),
        (
            {"bucket_spacing": "linear", "r": 3, "lora_alpha": 5.0, "use_rslora": False},
            {"max_steps": 9},
        ),
        (
            {**LEARNABLE, "boundary_init": "random", "temperature": 0.7},
            {"weight_decay": 0.2, "adam_epsilon": 1e-6},
        ),
        (
            {
                **LEARNABLE,
                "boundary_init": "fixed",
                "boundary_warmup": 0.25,
                "boundary_diversity": 0.1,
            },
            {"lr_scheduler_type": "constant", "adam_beta1": 0.5, "adam_beta2": 0.7},
        ),
        (
            {**LEARNABLE, "boundary_lr_scale": 7.7, "boundary_repulsion": 0.2},
            {"learning_rate": 1.7e-3},
        ),
        (
            {**LEARNABLE, "boundary_lr_scale": 3.3, "num_buckets": 2, "position_bias_buckets": 5},
            {"learning_rate": 1e-2},
        ),
        ({**LEARNABLE, "boundary_lr_scale": 0.0, "num_landmarks": 1}, {"learning_rate": 0.1}),
    ],
)
def test_applied_equals_what_was_asked_for(
    make_seat: MakeSeat,
    make_config: Callable[..., HyLoRADAConfig],
    adapter: dict[str, Any],
    training: dict[str, Any],
) -> None:
    asked = {**make_config(**adapter).to_dict(), **TrainingConfig(**training).to_dict()}
    seat = make_seat(adapter, training)
    assert seat.applied() == asked
    _set_gradients(seat, 1e-3)
    _update(seat, 1.0)
    assert seat.applied() == asked


def test_applied_is_read_from_the_live_objects(make_seat: MakeSeat) -> None:
    seat = make_seat(LEARNABLE, {})
    landmark = seat.adapter.landmark
    assert landmark is not None
    landmark.landmarks = nn.Parameter(torch.zeros(9, 16))
    seat.optimizer.param_groups[0]["weight_decay"] = 0.9
    seat.order.batch_size = 11
    applied = seat.applied()
    assert (applied["num_landmarks"], applied["weight_decay"], applied["batch_size"]) == (
        9,
        0.9,
        11,
    )


def test_every_parameter_is_in_one_group(
    make_seat: MakeSeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = make_seat(LEARNABLE, {}).optimizer.param_groups
    assert [g["name"] for g in groups] == ["matrices", "scalars", "boundaries"]
    without = make_seat({"landmarks": False, "position_bias": False}, {}).optimizer.param_groups
    assert [g["name"] for g in without] == ["matrices"]
    whole = Adapter.optimizer_groups
    monkeypatch.setattr(Adapter, "optimizer_groups", lambda self, decay: whole(self, decay)[:-1])
    with pytest.raises(AssertionError, match="parameters and groups differ"):
        make_seat(LEARNABLE, {})


def _adamw_as_on_a_gpu(groups: Sequence[seat_module.Group], device_scalars: torch.Tensor) -> None:
    scalars = [seat_module._scalars(g.settings, g.step.item() + 1) for g in groups]
    seat_module._step_end_to_end(groups, scalars, device_scalars)


@pytest.mark.parametrize("as_on", ["cpu", "gpu"])
def test_update_of_many_seats_is_that_of_torchs_adamw(
    make_seat: MakeSeat, as_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unequal shapes, rates, betas and steps in one update equal torch's own clipping and steps."""
    if as_on == "gpu":
        monkeypatch.setattr(seat_module, "_adamw", _adamw_as_on_a_gpu)
        monkeypatch.setattr(seat_module, "_compiled_step", lambda: seat_module._step)
    adapters: list[dict[str, Any]] = [
        {},
        LEARNABLE,
        {"landmarks": False, "position_bias": False},
        {"r": 3},
    ]
    trainings: list[dict[str, Any]] = [
        {"weight_decay": 0.1},
        {"adam_beta1": 0.5, "adam_beta2": 0.9, "max_grad_norm": 0.01},
        {"adam_epsilon": 1e-3, "learning_rate": 0.3},
        {"lr_scheduler_type": "linear", "max_steps": 7},
    ]
    seats = [make_seat(a, t, torch.float64) for a, t in zip(adapters, trainings, strict=True)]
    copies = [[nn.Parameter(p.detach().clone()) for p in s.adapter.parameters()] for s in seats]
    optimizers = []
    for seat, own in zip(seats, copies, strict=True):
        same = dict(zip(seat.adapter.parameters(), own, strict=True))
        groups = [
            {**g, "params": [same[p] for p in g["params"]]} for g in seat.optimizer.param_groups
        ]
        optimizers.append(torch.optim.AdamW(groups))
    generator = torch.Generator().manual_seed(0)
    for step in range(5):
        for k, (seat, own, optimizer) in enumerate(zip(seats, copies, optimizers, strict=True)):
            for parameter, copy in zip(seat.adapter.parameters(), own, strict=True):
                copy.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                _gradient(parameter).copy_(copy.grad)
            for group in optimizer.param_groups:
                rate = seat.training.learning_rate * learning_rate_factor(seat.step, seat.training)
                group["lr"] = rate * group["lr_scale"]
            torch.nn.utils.clip_grad_norm_(own, seat.training.max_grad_norm)
            if step < 2 or k != 3:
                optimizer.step()
            elif (
                step == 2
            ):  # one seat diverges and stays unchanged, even when its gradients are finite again
                _gradient(next(seat.adapter.parameters())).fill_(math.nan)
        results = update(seats, torch.ones(4)).result()
        assert [isinstance(r, Diverged) for r in results] == [
            step >= 2 and k == 3 for k in range(4)
        ]
        for seat, own in zip(seats, copies, strict=True):
            if seat.adapter.boundaries is not None:
                own[-1].data.clamp_(0, 1)
            for parameter, copy in zip(seat.adapter.parameters(), own, strict=True):
                torch.testing.assert_close(parameter.data, copy.data, rtol=0, atol=1e-14)
