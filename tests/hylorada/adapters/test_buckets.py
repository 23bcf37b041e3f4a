"""Where buckets lie: T5's own formula, hard limits of the soft buckets, gradients and penalties."""

import math
from typing import get_args

import numpy as np
import pytest
import torch

from hylorada.adapters.buckets import (
    boundary_gaps,
    boundary_penalty,
    fixed_edges,
    hard_bucket,
    initial_boundaries,
    soft_bucket_weights,
)
from hylorada.adapters.landmarks.position_adaptive import PositionAdaptiveLandmark
from hylorada.config import BoundaryInit, BucketSpacing

SHAPES = [
    (1, 8),
    (2, 8),
    (3, 16),
    (4, 16),
    (5, 33),
    (8, 64),
    (16, 64),
    (32, 128),
    (32, 512),
    (64, 1024),
    (31, 777),
]


def _t5_bucket(position: int, num_buckets: int, max_positions: int) -> int:
    """Evaluate T5's formula in integers.

    With n log buckets it is the largest j with (p / half)^n >= (T / half)^j.
    """
    if num_buckets == 1:
        return 0
    half = num_buckets // 2
    n = num_buckets - half
    if position < half:
        return position
    j = 0
    while j + 1 < n and position**n >= max_positions ** (j + 1) * half ** (n - j - 1):
        j += 1
    return half + j


def _buckets(
    num_buckets: int, max_positions: int, spacing: BucketSpacing, positions: torch.Tensor
) -> list[int]:
    edges = torch.tensor(fixed_edges(num_buckets, max_positions, spacing), dtype=torch.long)
    return hard_bucket(positions, edges).tolist()


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("num_buckets", "max_positions"), SHAPES)
def test_log_edges_are_those_of_t5(num_buckets: int, max_positions: int) -> None:
    found = _buckets(num_buckets, max_positions, "log", torch.arange(max_positions))
    assert found == [_t5_bucket(p, num_buckets, max_positions) for p in range(max_positions)]


@pytest.mark.parametrize(("num_buckets", "max_positions"), SHAPES)
def test_linear_edges_are_equal_widths(num_buckets: int, max_positions: int) -> None:
    found = _buckets(num_buckets, max_positions, "linear", torch.arange(max_positions))
    assert found == [p * num_buckets // max_positions for p in range(max_positions)]


@pytest.mark.parametrize("spacing", get_args(BucketSpacing))
def test_every_bucket_is_used_from_four_positions_a_bucket(spacing: BucketSpacing) -> None:
    for num_buckets in range(1, 65):
        for max_positions in (
            4 * num_buckets,
            4 * num_buckets + 1,
            5 * num_buckets,
            37 * num_buckets,
        ):
            found = _buckets(num_buckets, max_positions, spacing, torch.arange(max_positions))
            assert set(found) == set(range(num_buckets)), (num_buckets, max_positions)


@pytest.mark.parametrize("spacing", get_args(BucketSpacing))
def test_positions_beyond_the_block_are_in_the_last_bucket(spacing: BucketSpacing) -> None:
    beyond = torch.tensor([64, 65, 1000, 10**9])
    assert _buckets(8, 64, spacing, beyond) == [7, 7, 7, 7]
    boundaries = initial_boundaries("log", 8, 64, _generator(), torch.float32)
    assert soft_bucket_weights(beyond[2:], boundaries, 0.01, 64)[:, -1].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("temperature", [1e-4, 0.02, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_soft_weights_are_shares(temperature: float, dtype: torch.dtype) -> None:
    boundaries = torch.rand(31, generator=_generator(), dtype=dtype)
    weights = soft_bucket_weights(torch.arange(600), boundaries, temperature, 512)
    assert weights.shape == (600, 32)
    torch.testing.assert_close(
        weights.sum(-1), torch.ones(600, dtype=dtype), rtol=0, atol=4 * torch.finfo(dtype).eps
    )
    assert weights.min() >= 0


def test_soft_weights_follow_the_formula() -> None:
    boundaries, temperature = [0.2, 0.5, 0.9], 0.1
    found = soft_bucket_weights(
        torch.tensor([3, 8]), torch.tensor(boundaries, dtype=torch.float64), temperature, 10
    )
    for row, u in zip(found.tolist(), (0.3, 0.8), strict=True):
        s = [1 / (1 + math.exp(-(u - b) / temperature)) for b in boundaries]
        assert row == pytest.approx([1 - s[0], s[0] - s[1], s[1] - s[2], s[2]], abs=1e-14)


@pytest.mark.parametrize(
    ("init", "spacing"), [("log", "log"), ("fixed", "log"), ("uniform", "linear")]
)
@pytest.mark.parametrize(("num_buckets", "max_positions"), SHAPES[1:])
def test_soft_buckets_tend_to_the_hard_ones(
    init: BoundaryInit, spacing: BucketSpacing, num_buckets: int, max_positions: int
) -> None:
    positions = torch.arange(max_positions)
    boundaries = initial_boundaries(init, num_buckets, max_positions, _generator(), torch.float32)
    weights = soft_bucket_weights(positions, boundaries, 1e-6, max_positions)
    hard = torch.tensor(_buckets(num_buckets, max_positions, spacing, positions))
    torch.testing.assert_close(
        weights, torch.nn.functional.one_hot(hard, num_buckets).float(), rtol=0, atol=1e-6
    )


def test_order_of_the_boundaries_does_not_matter() -> None:
    boundaries = torch.tensor([0.7, 0.1, 0.4])
    positions = torch.arange(16)
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        shuffled = boundaries[order]
        weights = soft_bucket_weights(positions, shuffled, 0.05, 16)
        assert torch.equal(
            weights, soft_bucket_weights(positions, torch.tensor([0.1, 0.4, 0.7]), 0.05, 16)
        )
        assert torch.equal(boundary_gaps(shuffled), boundary_gaps(boundaries))


def test_gradient_of_the_boundaries_is_that_of_finite_differences() -> None:
    boundaries = torch.tensor([0.72, 0.11, 0.43], dtype=torch.float64, requires_grad=True)

    def mix(b: torch.Tensor) -> torch.Tensor:
        return soft_bucket_weights(torch.arange(16), b, 0.05, 16)

    assert torch.autograd.gradcheck(mix, (boundaries,))
    assert torch.autograd.gradcheck(lambda b: boundary_penalty(b, 0.3, 0.7), (boundaries,))


def test_penalty_is_spread_and_smallest_gap() -> None:
    values = np.array([0.9, 0.25, 0.4])
    spread, smallest = values.std(), np.diff(np.sort([0.0, 1.0, *values])).min()
    boundaries = torch.tensor(values)
    assert smallest == pytest.approx(0.1)
    assert boundary_penalty(boundaries, 0.5, 0.0).item() == pytest.approx(-0.5 * spread)
    assert boundary_penalty(boundaries, 0.0, 2.0).item() == pytest.approx(-2.0 * smallest)
    assert boundary_penalty(boundaries, 0.5, 2.0).item() == pytest.approx(
        -0.5 * spread - 2.0 * smallest
    )
    assert boundary_penalty(boundaries, 0.0, 0.0).item() == 0.0


@pytest.mark.parametrize("values", [[0.5, 0.5, 0.5], [0.3], [0.0], [1.0, 1.0]])
def test_penalty_gradient_is_finite_where_boundaries_coincide(values: list[float]) -> None:
    boundaries = torch.tensor(values, requires_grad=True)
    boundary_penalty(boundaries, 1.0, 1.0).backward()
    assert boundaries.grad is not None
    assert boundaries.grad.isfinite().all()


@pytest.mark.parametrize("seed", range(5))
def test_random_boundaries_are_sorted_and_inside(seed: int) -> None:
    boundaries = initial_boundaries("random", 32, 512, _generator(seed), torch.float32)
    assert boundaries.tolist() == sorted(boundaries.tolist())
    assert len(set(boundaries.tolist())) == 31
    assert 0 <= boundaries[0] <= boundaries[-1] <= 1
    assert not torch.equal(
        boundaries, initial_boundaries("random", 32, 512, _generator(seed + 1), torch.float32)
    )


def test_starting_boundaries_lie_between_positions() -> None:
    boundaries = initial_boundaries("uniform", 4, 16, _generator(), torch.float64)
    assert (boundaries * 16).tolist() == [3.5, 7.5, 11.5]


def test_published_range_puts_a_short_block_into_the_first_bucket() -> None:
    """The published code computed int(p / (32768 / B)), capped at B - 1."""
    for buckets in (8, 32):
        landmark = PositionAdaptiveLandmark(
            hidden_size=4, max_positions=512, num_buckets=buckets, bucket_range=32_768
        )
        places = [0, 1, 511, 1023, 1024, 4095, 4096, 20_000, 32_767, 50_000]
        published = [min(int(p / (32_768 / buckets)), buckets - 1) for p in places]
        weights = landmark.bucket_weights(torch.tensor([places]))
        assert weights[0].argmax(-1).tolist() == published
        assert set(landmark.bucket_weights(torch.arange(512)).argmax(-1).tolist()) == {0}
