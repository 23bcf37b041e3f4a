"""Landmark modules against loops in fp64, and their published sizes."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from transformers import GPT2Config

from hylorada import (
    AttentionIntegratedLandmark,
    HyLoRADAConfig,
    LandmarkLoRA,
    LearnableBucketLandmark,
    PerLayerLandmark,
    PositionAdaptiveLandmark,
    SoftBucketLandmark,
    count_landmark_params,
)
from hylorada.adapters.buckets import fixed_edges
from hylorada.adapters.landmarks.position_adaptive import (
    PositionLandmark,
    SoftLandmark,
    position_gates,
)
from hylorada.adapters.landmarks.registry import build_landmark

LENGTH = 16


def _fixed(dtype: torch.dtype = torch.float64) -> PositionAdaptiveLandmark:
    return PositionAdaptiveLandmark(
        hidden_size=6, num_landmarks=3, num_buckets=4, max_positions=LENGTH, dtype=dtype
    )


_SHAPE: dict[str, Any] = {
    "hidden_size": 6,
    "num_landmarks": 3,
    "num_buckets": 4,
    "max_positions": LENGTH,
    "temperature": 0.05,
}


def _learnable(dtype: torch.dtype = torch.float64) -> LearnableBucketLandmark:
    return LearnableBucketLandmark(**_SHAPE, dtype=dtype)


def _soft(dtype: torch.dtype = torch.float64) -> SoftBucketLandmark:
    return SoftBucketLandmark(**_SHAPE, boundary_init="uniform", dtype=dtype)


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _trained(landmark: PositionLandmark) -> PositionLandmark:
    with torch.no_grad():
        landmark.landmarks.copy_(_random(3, 6, seed=1))
        landmark.position_gates.copy_(_random(4, 3, seed=2))
        landmark.content_gate.copy_(_random(3, 6, seed=3))
        landmark.scale.fill_(0.7)
    return landmark


def _bucket_shares(landmark: PositionLandmark, position: int) -> list[float]:
    if isinstance(landmark, SoftLandmark):
        u = position / LENGTH
        s = [
            1 / (1 + math.exp(-(u - b) / landmark.temperature))
            for b in sorted(landmark.boundaries.tolist())
        ]
        return [a - b for a, b in zip([1.0, *s], [*s, 0.0], strict=True)]
    bucket = sum(position >= e for e in fixed_edges(4, LENGTH, "log"))
    return [float(i == bucket) for i in range(4)]


def _reference(
    landmark: PositionLandmark, hidden: torch.Tensor, positions: list[int]
) -> npt.NDArray[np.float64]:
    marks, gates, content = (
        t.detach().numpy()
        for t in (landmark.landmarks, landmark.position_gates, landmark.content_gate)
    )
    out: npt.NDArray[Any] = hidden.numpy().copy()
    for row in range(out.shape[0]):
        for t, position in enumerate(positions):
            shares = np.array(_bucket_shares(landmark, position))
            gate = np.array(
                [shares @ gates[:, k] + content[k] @ hidden[row, t].numpy() for k in range(3)]
            )
            weights = np.exp(gate) / np.exp(gate).sum()
            out[row, t] += landmark.scale.item() * sum(weights[k] * marks[k] for k in range(3))
    return out


@pytest.mark.parametrize(
    ("num_landmarks", "num_buckets", "learnable", "expected"),
    [(8, 32, False, 12_545), (8, 32, True, 12_576), (4, 32, False, 6_273), (4, 32, True, 6_304)],
)
def test_parameter_counts_are_the_published_ones_plus_the_scale(
    num_landmarks: int, num_buckets: int, learnable: bool, expected: int
) -> None:
    kind = LearnableBucketLandmark if learnable else PositionAdaptiveLandmark
    landmark = kind(
        hidden_size=768, num_landmarks=num_landmarks, num_buckets=num_buckets, max_positions=512
    )
    assert count_landmark_params(landmark) == expected
    assert count_landmark_params(nn.Sequential(nn.Linear(2, 2), landmark)) == expected


@pytest.mark.parametrize(
    ("landmark", "expected"),
    [
        (LandmarkLoRA(hidden_size=768, num_landmarks=4), 6_145),
        (PerLayerLandmark(num_layers=12, hidden_size=768, num_landmarks=2), 36_876),
        (
            PerLayerLandmark(num_layers=12, hidden_size=768, num_landmarks=2, share_landmarks=True),
            36_876 - 11 * 1536,
        ),
        (
            PerLayerLandmark(
                num_layers=12,
                hidden_size=768,
                num_landmarks=2,
                share_landmarks=True,
                share_gates=True,
            ),
            36_876 // 12,
        ),
        (
            AttentionIntegratedLandmark(num_layers=12, num_heads=12, head_dim=64, num_landmarks=4),
            73_740,
        ),
    ],
)
def test_parameter_counts_of_the_other_designs(landmark: nn.Module, expected: int) -> None:
    assert count_landmark_params(landmark) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"landmark_design": "global", "num_landmarks": 4}, 6_145),
        ({"landmark_design": "per_layer", "num_landmarks": 2}, 36_876),
        ({"num_landmarks": 4}, 6_273),
        ({}, 12_545),
        ({"landmark_bucketing": "learnable"}, 12_576),
        ({"landmark_bucketing": "soft"}, 12_545),
        ({"num_buckets": 1}, 12_545 - 31 * 8),
        ({"landmark_design": "attention", "num_landmarks": 4}, 73_740),
    ],
)
def test_parameter_counts_on_gpt2s_shape(changes: dict[str, Any], expected: int) -> None:
    landmark = build_landmark(
        HyLoRADAConfig(max_positions=512, **changes), GPT2Config(), seed=0, dtype=torch.float32
    )
    assert landmark is not None
    assert count_landmark_params(landmark) == expected


def _softmax(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    weights: npt.NDArray[np.float64] = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
    return weights


def _scrambled(landmark: nn.Module) -> None:
    with torch.no_grad():
        for i, parameter in enumerate(landmark.parameters()):
            parameter.copy_(_random(*parameter.shape, seed=i))


@pytest.mark.parametrize("noncausal", [False, True])
def test_global_landmarks_equal_a_loop(noncausal: bool) -> None:
    landmark, hidden = (
        LandmarkLoRA(hidden_size=6, num_landmarks=3, noncausal=noncausal, dtype=torch.float64),
        _random(2, 5, 6),
    )
    _scrambled(landmark)
    h, (marks, gate) = (
        hidden.numpy(),
        (p.detach().numpy() for p in (landmark.landmarks, landmark.content_gate)),
    )
    mask = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    found = landmark(hidden, torch.from_numpy(mask)).detach().numpy()
    for row in range(2):
        for t in range(5):
            read = [s for s in range(5 if noncausal else t + 1) if mask[row, s]]
            mean = h[row, read].mean(0) if read else np.zeros(6)
            expected = h[row, t] + landmark.scale.item() * _softmax(gate @ mean) @ marks
            np.testing.assert_allclose(found[row, t], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("shared", "one_gate"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("noncausal", [False, True])
def test_landmarks_of_a_layer_equal_a_loop(noncausal: bool, shared: bool, one_gate: bool) -> None:
    landmark = PerLayerLandmark(
        num_layers=2,
        hidden_size=6,
        num_landmarks=3,
        share_landmarks=shared,
        share_gates=one_gate,
        noncausal=noncausal,
        dtype=torch.float64,
    )
    _scrambled(landmark)
    output, mask = _random(2, 5, 6), np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    m = output.numpy()
    for layer in range(2):
        bank, gate = (
            landmark.landmarks[0 if shared else layer].detach().numpy(),
            landmark.gates[0 if one_gate else layer].detach().numpy(),
        )
        scale = landmark.scale[0 if one_gate else layer].item()
        found = landmark(output, layer, torch.from_numpy(mask)).detach().numpy()
        for row in range(2):
            for t in range(5):
                read = [s for s in range(5 if noncausal else t + 1) if mask[row, s]]
                largest = m[row, read].max(0) if read else np.zeros(6)
                expected = m[row, t] + scale * _softmax(gate @ largest) @ bank
                np.testing.assert_allclose(found[row, t], expected, rtol=0, atol=1e-12)


def test_landmarks_of_attention_heads_equal_a_loop() -> None:
    landmark = AttentionIntegratedLandmark(
        num_layers=2, num_heads=2, head_dim=6, num_landmarks=3, dtype=torch.float64
    )
    _scrambled(landmark)
    query = _random(2, 4, 5, 6)  # 4 query heads on 2 key/value heads
    for layer in range(2):
        found = landmark(query, layer).detach().numpy()
        for row, head, t in itertools.product(range(2), range(4), range(5)):
            keys, values = (
                x[layer, head // 2].detach().numpy() for x in (landmark.keys, landmark.values)
            )
            weights = _softmax(keys @ query[row, head, t].numpy() / math.sqrt(6))
            expected = landmark.scale[layer].item() * weights @ values
            np.testing.assert_allclose(found[row, head, t], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [_fixed, _learnable, _soft])
def test_forward_equals_a_loop_over_positions(make: Callable[..., PositionLandmark]) -> None:
    landmark, hidden = _trained(make()), _random(2, 5, 6)
    positions = [0, 1, 3, 9, 15]
    found = landmark(hidden, torch.tensor([positions]))
    np.testing.assert_allclose(
        found.detach().numpy(), _reference(landmark, hidden, positions), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("make", [_fixed, _learnable, _soft])
def test_untrained_landmarks_change_nothing(make: Callable[..., PositionLandmark]) -> None:
    hidden = _random(2, LENGTH, 6)
    assert torch.equal(make()(hidden, torch.arange(LENGTH)[None]), hidden)


@pytest.mark.parametrize("make", [_fixed, _learnable, _soft])
def test_each_position_is_computed_from_itself_alone(make: Callable[..., PositionLandmark]) -> None:
    landmark, hidden = _trained(make()), _random(1, LENGTH, 6)
    positions = torch.arange(LENGTH)[None]
    whole = landmark(hidden, positions)
    for t in range(LENGTH):
        changed = hidden.clone()
        changed[:, t] += 1.0
        moved = (landmark(changed, positions) - whole).abs().amax(dim=(0, 2)) > 0
        assert moved.nonzero().flatten().tolist() == [t]


@pytest.mark.parametrize("make", [_fixed, _learnable, _soft])
def test_output_keeps_the_dtype_of_the_hidden_states(make: Callable[..., PositionLandmark]) -> None:
    landmark = make(dtype=torch.float32)
    hidden = _random(1, LENGTH, 6).to(torch.bfloat16)
    assert landmark(hidden, torch.arange(LENGTH)[None]).dtype == torch.bfloat16
    assert {p.dtype for p in landmark.parameters()} == {torch.float32}


def test_boundary_positions_are_sorted_tokens() -> None:
    landmark = _learnable()
    with torch.no_grad():
        landmark.boundaries.copy_(torch.tensor([0.75, 0.25, 0.5]))
    assert landmark.boundary_positions().tolist() == [4.0, 8.0, 12.0]


def test_gates_depend_on_the_seed_alone() -> None:
    def gates(seed: int) -> torch.Tensor:
        return PositionAdaptiveLandmark(hidden_size=6, max_positions=64, seed=seed).position_gates

    torch.rand(3)  # a global draw in between
    assert torch.equal(gates(1), gates(1))
    assert not torch.equal(gates(1), gates(2))


@pytest.mark.parametrize("make", [_fixed, _learnable, _soft])
def test_position_gates_are_those_of_a_content_without_a_say(
    make: Callable[[], PositionLandmark],
) -> None:
    landmark = _trained(make())
    config = HyLoRADAConfig(
        num_landmarks=3,
        num_buckets=4,
        max_positions=LENGTH,
        landmark_bucketing=landmark.applied()["landmark_bucketing"],
        boundary_init="uniform",
        temperature=0.05,
    )
    weights, buckets = position_gates(
        config, {f"landmark.{n}": p for n, p in landmark.named_parameters()}
    )
    shares = np.array([_bucket_shares(landmark, p) for p in range(LENGTH)])
    logits = np.exp(shares @ landmark.position_gates.detach().numpy())
    np.testing.assert_allclose(
        weights.numpy(), logits / logits.sum(axis=1, keepdims=True), rtol=1e-12
    )
    assert buckets.tolist() == shares.argmax(axis=1).tolist()
    hidden = torch.zeros(
        1, LENGTH, 6, dtype=torch.float64
    )  # which the content's part of the gate makes nothing of
    mixed = landmark(hidden, torch.arange(LENGTH)[None])[0]
    torch.testing.assert_close(mixed, 0.7 * weights @ landmark.landmarks.detach())
