"""Seats of unequal rank share one pass, and each trains as it would alone."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import PreTrainedModel

from hylorada import (
    Adapter,
    BatchOrder,
    Blocks,
    HyLoRADAConfig,
    Pack,
    Seat,
    TrainingConfig,
    evaluate,
    load_seat,
    probe,
    save_seat,
    train_step,
)
from hylorada.training.steps import Outcome

Ids = npt.NDArray[np.int32]
STEPS = 6
BARE: dict[str, Any] = {"landmarks": False, "position_bias": False}
# By name: rank 4, 8 or 16 with each part of the method, on nested sets of modules.
SEATS: dict[str, dict[str, Any]] = {
    "LoRA": {"r": 8, "use_rslora": False, **BARE},
    "rsLoRA, all linear": {"r": 4, "target_modules": ("all-linear",), "lora_alpha": 2.0, **BARE},
    "rsLoRA, few modules": {"r": 16, "target_modules": ("v_proj",), **BARE},
    "DoRA": {"r": 16, "use_dora": True, "position_bias": False},
    "DoRA, all linear": {
        "r": 4, "use_dora": True, "target_modules": ("all-linear",), "lora_alpha": 2.0
    },
    "fixed": {"r": 8, "lora_dropout": 0.2},
    "learnable": {"r": 16, "landmark_bucketing": "learnable", "boundary_init": "random"},
    "global": {"r": 4, "landmark_design": "global", "landmark_dropout": 0.2},
    "per layer": {"r": 8, "landmark_design": "per_layer", "lora_dropout": 0.1},
    "attention": {"r": 4, "landmark_design": "attention"},
    "shifted": {"r": 16, "shifted_sparse_attention": True},
}  # fmt: skip


class Lab:
    """Builds seats of unequal rank over one base and trains them."""

    def __init__(
        self, base: PreTrainedModel, make_config: Callable[..., HyLoRADAConfig], ids: Ids
    ) -> None:
        self.pack, self.make_config, self.ids = Pack(base), make_config, ids

    def seat(self, name: str) -> Seat:
        changes = SEATS[name]
        if self.pack.base.config.model_type == "gpt2" and changes.get("target_modules") == (
            "v_proj",
        ):
            changes = {**changes, "target_modules": ("c_attn",)}
        place = list(SEATS).index(name)
        training = TrainingConfig(
            max_steps=STEPS, batch_size=2, learning_rate=1e-2 / (1 + place), weight_decay=0.1
        )
        adapter = Adapter(self.pack.base, self.make_config(**changes), seed=place)
        return Seat(adapter, training, BatchOrder(len(self.ids), 2, seed=5))

    def train(self, seats: Mapping[str, Seat], steps: int = STEPS) -> dict[str, list[Outcome]]:
        rows = [train_step(self.pack, seats, self.ids) for _ in range(steps)]
        return {name: [row[name] for row in rows] for name in seats}


@pytest.fixture(params=["llama", "gpt2"])
def lab(
    request: pytest.FixtureRequest,
    make_base: Callable[..., PreTrainedModel],
    make_config: Callable[..., HyLoRADAConfig],
    token_blocks: Ids,
) -> Lab:
    return Lab(make_base(request.param, torch.float64), make_config, token_blocks)


def _assert_same(seat: Seat, other: Seat) -> None:
    """Weights, gradients and both moments are equal, and have the seat's own shapes."""
    assert [p.shape for p in seat.adapter.parameters()] == [
        p.shape for p in other.adapter.parameters()
    ]
    for group, wanted in zip(seat.groups, other.groups, strict=True):
        for name in ("values", "grads", "exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(
                getattr(group, name), getattr(wanted, name), rtol=0, atol=1e-10
            )


def test_each_seat_of_unequal_rank_equals_its_solo_run(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, whole = [], lab.pack.token_nll

    def counted(adapters: Sequence[Adapter], ids: torch.Tensor) -> torch.Tensor:
        passes.append(len(adapters))
        return whole(adapters, ids)

    monkeypatch.setattr(lab.pack, "token_nll", counted)
    seats = {name: lab.seat(name) for name in SEATS}
    together = lab.train(seats)
    assert passes == [len(SEATS)] * STEPS
    for name, seat in seats.items():
        alone = lab.seat(name)
        assert together[name] == pytest.approx(lab.train({name: alone})[name], rel=0, abs=1e-10)
        _assert_same(seat, alone)


def test_evaluation_of_unequal_ranks_equals_that_of_each_alone(
    lab: Lab, scramble: Callable[..., Adapter], blocks: Blocks
) -> None:
    adapters = [scramble(lab.seat(name).adapter, k) for k, name in enumerate(SEATS)]
    for adapter, found in zip(adapters, evaluate(lab.pack, adapters, blocks), strict=True):
        (alone,) = evaluate(lab.pack, [adapter], blocks)
        np.testing.assert_allclose(found.block_nll, alone.block_nll, rtol=1e-10)


def test_checkpoint_continues_among_other_ranks(lab: Lab, tmp_path: Path) -> None:
    """Each seat is saved beside some neighbours and continues beside others, then alone."""
    names = list(SEATS)
    for company in (names[:6], names[6:]):
        seats = {name: lab.seat(name) for name in company}
        lab.train(seats, 2)
        for name, seat in seats.items():
            save_seat(seat, tmp_path / name, {})
    loaded = {name: lab.seat(name) for name in names}
    for name, seat in loaded.items():
        load_seat(seat, tmp_path / name)
    for company in (names[::2], names[1::2]):
        lab.train({name: loaded[name] for name in company}, 2)
    for name, seat in loaded.items():
        lab.train({name: seat}, STEPS - 4)
        alone = lab.seat(name)
        lab.train({name: alone})
        _assert_same(seat, alone)


def test_a_diverged_seat_of_the_highest_rank_harms_no_lower_one(lab: Lab) -> None:
    seats = {name: lab.seat(name) for name in ("DoRA", "LoRA", "rsLoRA, all linear")}
    seats["DoRA"].groups[0].values.fill_(float("nan"))
    lab.train(seats)
    for name in ("LoRA", "rsLoRA, all linear"):
        alone = lab.seat(name)
        lab.train({name: alone})
        _assert_same(seats[name], alone)


def test_probe_accepts_unequal_ranks(lab: Lab) -> None:
    seats = [lab.seat(name) for name in SEATS]
    probe(lab.pack, seats, torch.from_numpy(lab.ids))
