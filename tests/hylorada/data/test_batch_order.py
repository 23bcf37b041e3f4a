"""The order of batches: each block once an epoch, equal for all seats, a function of the step."""

import numpy as np
import pytest

from hylorada.data.batch_order import BatchOrder

SHAPES = [(12, 4), (10, 4), (7, 3), (5, 5), (3, 7), (1, 2), (24, 1)]


def _stream(order: BatchOrder, steps: int) -> list[int]:
    return [int(i) for step in range(steps) for i in order.indices(step)]


@pytest.mark.parametrize(("num_blocks", "batch_size"), SHAPES)
def test_each_block_comes_once_an_epoch(num_blocks: int, batch_size: int) -> None:
    epochs = 4 * batch_size
    seen = _stream(BatchOrder(num_blocks, batch_size, seed=3), epochs * num_blocks // batch_size)
    assert len(seen) == epochs * num_blocks
    for start in range(0, len(seen), num_blocks):
        assert sorted(seen[start : start + num_blocks]) == list(range(num_blocks))


@pytest.mark.parametrize(("num_blocks", "batch_size"), SHAPES)
def test_random_access_equals_the_sequence(num_blocks: int, batch_size: int) -> None:
    steps = np.random.default_rng(0).permutation(30)
    sequence, scattered = (
        BatchOrder(num_blocks, batch_size, seed=3),
        BatchOrder(num_blocks, batch_size, seed=3),
    )
    expected = {step: sequence.indices(step) for step in range(30)}
    for step in steps:
        assert np.array_equal(scattered.indices(int(step)), expected[int(step)])
        assert np.array_equal(
            BatchOrder(num_blocks, batch_size, seed=3).indices(int(step)), expected[int(step)]
        )


def test_order_depends_on_the_seed_and_the_epoch() -> None:
    first = _stream(BatchOrder(24, 4, seed=1), 12)
    assert first == _stream(BatchOrder(24, 4, seed=1), 12)
    assert first != _stream(BatchOrder(24, 4, seed=2), 12)
    assert first[:24] != first[24:]


def test_blocks_come_in_the_same_order_for_every_batch_size() -> None:
    assert _stream(BatchOrder(24, 4, seed=1), 12) == _stream(BatchOrder(24, 6, seed=1), 8)


def test_order_leaves_numpys_global_generator_alone() -> None:
    before = np.random.get_state(legacy=False)
    BatchOrder(24, 4, seed=1).indices(0)
    after = np.random.get_state(legacy=False)
    assert str(before) == str(after)
