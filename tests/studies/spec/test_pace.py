"""The pace of a trial: epochs as steps, and what is left open, against hand-written loops."""

from collections import Counter

import pytest

from hylorada.data.batch_order import BatchOrder
from studies.spec.pace import epoch_steps, paced, parse_pace, report_steps, rungs


@pytest.mark.parametrize(
    ("epochs", "num_blocks", "batch_size"),
    [(1, 20, 2), (1, 20, 3), (3, 7, 4), (5, 10, 10), (1, 3, 8), (2, 3, 8)],
)
def test_epoch_steps_are_the_fewest_that_read_every_block_so_often(
    epochs: int, num_blocks: int, batch_size: int
) -> None:
    order, read, step = BatchOrder(num_blocks, batch_size, seed=0), Counter[int](), 0
    while min((read[block] for block in range(num_blocks)), default=0) < epochs:
        read.update(order.indices(step).tolist())
        step += 1
    assert epoch_steps(epochs, num_blocks, batch_size) == step


def test_open_pace_has_eight_reports_or_fewer_and_rungs_at_reports() -> None:
    for steps in range(1, 2000):
        every, grace = paced(steps, None, None)
        reports = report_steps(every, steps)
        assert len(reports) <= 8
        assert len(reports) >= min(steps, 5)
        assert set(rungs(grace, 2, steps)) <= set(reports)
        assert not parse_pace(
            steps, epochs=1, eval_every=None, grace_steps=None, reduction_factor=3
        )[1]


@pytest.mark.parametrize(
    ("steps", "eval_every", "grace_steps", "expected"),
    [
        (250, None, None, (32, 64)),
        (447, None, None, (56, 112)),
        (447, None, 100, (50, 100)),  # 50: the largest divisor of 100 up to 56
        (447, None, 101, (1, 101)),  # a prime
        (447, 50, None, (50, 100)),  # 111.75 is nearest to the second report
        (447, 400, None, (400, 400)),
        (447, 500, None, (500, 0)),
        (447, None, 0, (56, 0)),
        (1, None, None, (1, 0)),
        (10, 3, 6, (3, 6)),
    ],
)
def test_what_is_given_stays_and_the_rest_follows_from_the_steps(
    steps: int, eval_every: int | None, grace_steps: int | None, expected: tuple[int, int]
) -> None:
    assert paced(steps, eval_every, grace_steps) == expected


def test_pace_without_known_steps_is_left_open_and_unchecked() -> None:
    filled, problems = parse_pace(
        None, epochs=2, eval_every=None, grace_steps=10**6, reduction_factor=2
    )
    assert filled == {"eval_every": None, "grace_steps": 10**6}
    assert problems == []
