"""Soft buckets whose boundaries are never trained, and a single bucket."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel, Trainer, TrainingArguments

from hylorada import (
    Adapter,
    BatchOrder,
    HyLoRADAConfig,
    HyLoRADAModel,
    LearnableBucketLandmark,
    Pack,
    PositionAdaptiveLandmark,
    Seat,
    SoftBucketLandmark,
    TrainingConfig,
    train_step,
)
from hylorada.adapters.landmarks.position_adaptive import position_gates
from hylorada.config import BoundaryInit, BucketSpacing

MakeBase = Callable[..., PreTrainedModel]
MakeConfig = Callable[..., HyLoRADAConfig]

SOFT: dict[str, Any] = {"landmark_bucketing": "soft", "temperature": 0.07}


def _ids() -> torch.Tensor:
    return torch.randint(1, 50, (2, 16), generator=torch.Generator().manual_seed(0))


def _soft_of(adapter: Adapter) -> SoftBucketLandmark:
    assert isinstance(adapter.landmark, SoftBucketLandmark)
    return adapter.landmark


@pytest.mark.parametrize("init", get_args(BoundaryInit))
def test_soft_equals_learnable_of_equal_parameters(
    make_base: MakeBase, make_config: MakeConfig, scramble: Callable[..., Adapter], init: str
) -> None:
    def logits(bucketing: str, start: dict[str, torch.Tensor]) -> torch.Tensor:
        config = make_config(**SOFT | {"landmark_bucketing": bucketing, "boundary_init": init})
        model = HyLoRADAModel(make_base("llama", torch.float64), config, seed=3).eval()
        missing, unexpected = model.adapter.load_state_dict(start, strict=False)
        assert (missing, unexpected) == (
            ["landmark.boundaries"] if bucketing == "learnable" else [],
            [],
        )
        found: torch.Tensor = model(_ids()).logits.detach()
        return found

    soft = Adapter(make_base("llama", torch.float64), make_config(**SOFT), seed=0)
    start = scramble(soft).state_dict()
    assert torch.equal(logits("soft", start), logits("learnable", start))


def test_steps_leave_soft_boundaries_as_they_are(
    make_base: MakeBase, make_config: MakeConfig, token_blocks: Any
) -> None:
    base = make_base()
    adapter = Adapter(base, make_config(**SOFT, boundary_init="random"), seed=1)
    start = _soft_of(adapter).boundaries.clone()
    before = copy.deepcopy(dict(adapter.named_parameters()))
    order = BatchOrder(len(token_blocks), 2, seed=0)
    seat = Seat(adapter, TrainingConfig(max_steps=3, learning_rate=0.1, batch_size=2), order)
    for _ in range(3):
        train_step(Pack(base), {"soft": seat}, token_blocks)
    assert torch.equal(_soft_of(adapter).boundaries, start)
    assert all(not torch.equal(p, before[name]) for name, p in adapter.named_parameters())
    assert (adapter.boundaries, adapter.learned_boundaries()) == (None, None)
    assert "boundaries" not in {group["name"] for group in adapter.optimizer_groups(0.0)}


def test_optimizers_of_trainer_know_no_soft_boundaries(
    make_base: MakeBase, make_config: MakeConfig, tmp_path: Path
) -> None:
    model = HyLoRADAModel(make_base(), make_config(**SOFT))
    args = TrainingArguments(str(tmp_path), max_steps=4, use_cpu=True, report_to=[])
    expected = {id(p) for p in model.adapter.parameters()}
    made = [Trainer(model, args).create_optimizer(), model.create_optimizer(args)]
    for optimizer in made:
        assert {id(p) for g in optimizer.param_groups for p in g["params"]} == expected
    assert model.get_learned_boundaries() is None


def test_reloaded_soft_boundaries_stay_untrained(
    make_base: MakeBase, make_config: MakeConfig, scramble: Callable[..., Adapter], tmp_path: Path
) -> None:
    config = make_config(**SOFT, boundary_init="random")
    model = HyLoRADAModel(make_base(), config, seed=5).eval()
    scramble(model.adapter)
    model.save_pretrained(tmp_path)
    loaded = HyLoRADAModel.from_pretrained(make_base(), tmp_path, is_trainable=True)
    own = _soft_of(loaded.adapter).boundaries
    assert not own.requires_grad
    assert torch.equal(own, _soft_of(model.adapter).boundaries)
    assert torch.equal(loaded.eval()(_ids()).logits, model(_ids()).logits)


def test_position_gates_of_random_soft_boundaries_follow_the_seed(
    make_base: MakeBase, make_config: MakeConfig, scramble: Callable[..., Adapter]
) -> None:
    config = make_config(**SOFT, boundary_init="random")
    adapter = scramble(Adapter(make_base(), config, seed=6))
    landmark = _soft_of(adapter)
    own = landmark.bucket_weights(torch.arange(16)) @ landmark.position_gates
    parameters = dict(adapter.named_parameters())
    weights, _ = position_gates(config, parameters, seed=6)
    torch.testing.assert_close(weights, own.softmax(-1), rtol=0, atol=0)
    assert not torch.allclose(position_gates(config, parameters, seed=7)[0], weights)


def test_learned_boundaries_are_sorted_tokens_and_none_without_learning() -> None:
    shape: dict[str, Any] = {"hidden_size": 4, "num_buckets": 4, "max_positions": 16}
    learnable = LearnableBucketLandmark(**shape)
    with torch.no_grad():
        learnable.boundaries.copy_(torch.tensor([0.75, 0.25, 0.5]))
    assert learnable.get_learned_boundaries().tolist() == [4.0, 8.0, 12.0]
    soft = SoftBucketLandmark(**shape, boundary_init="uniform")
    assert soft.boundary_positions().tolist() == [3.5, 7.5, 11.5]
    assert soft.get_learned_boundaries() is None
    assert PositionAdaptiveLandmark(**shape).get_learned_boundaries() is None


@pytest.mark.parametrize("spacing", get_args(BucketSpacing))
def test_gates_of_a_single_bucket_ignore_the_position(spacing: BucketSpacing) -> None:
    landmark = PositionAdaptiveLandmark(
        hidden_size=6, num_landmarks=3, num_buckets=1, max_positions=16, bucket_spacing=spacing
    ).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in landmark.parameters():
        nn.init.normal_(parameter, generator=generator)
    hidden = torch.randn(1, 5, 6, generator=generator, dtype=torch.float64)
    found = landmark(hidden, torch.tensor([[0, 3, 7, 15, 900]])).detach()
    assert torch.equal(found, landmark(hidden, torch.zeros(1, 5, dtype=torch.long)))
    gate, content, bank = (
        t.detach().numpy()
        for t in (landmark.position_gates[0], landmark.content_gate, landmark.landmarks)
    )
    for t, h in enumerate(hidden[0].numpy()):
        weights = np.exp(gate + content @ h)
        expected = h + landmark.scale.item() * (weights / weights.sum()) @ bank
        np.testing.assert_allclose(found[0, t].numpy(), expected, rtol=0, atol=1e-12)
