"""Agreement of boundaries between cells, as shares of the block, with its null."""

import itertools

import numpy as np
import pytest
from made_cells import cell

from studies.analysis.cells.boundaries import cell_boundaries


def test_equal_shares_of_unequal_blocks_agree_wholly() -> None:
    cells = [
        cell("a", block_size=64, boundaries=[[16, 32, 48]] * 2),
        cell("b", block_size=128, boundaries=[[32, 64, 96]]),
    ]
    found = cell_boundaries(cells, "learnable")
    assert found is not None
    assert (found.cells, found.runs, found.end.pairs) == (2, 3, 2)
    assert found.end.consistency == pytest.approx(1)
    assert found.end.p_value < 0.05


def test_consistency_is_that_of_a_hand_written_loop() -> None:
    draws = np.random.default_rng(1)
    positions = {size: np.sort(size * draws.random((2, 5))) for size in (64, 128, 256)}
    cells = [
        cell(f"c{size}", block_size=size, boundaries=p.tolist()) for size, p in positions.items()
    ]
    found = cell_boundaries(cells, "learnable")
    assert found is not None
    apart = [
        np.abs(a / one - b / other).mean()
        for one, other in itertools.combinations(positions, 2)
        for a in positions[one]
        for b in positions[other]
    ]
    # Two sorted sets of n uniform numbers lie, in the mean over ranks, E|x - y| apart, with
    # Beta(i, n + 1 - i) at rank i.
    shapes = [(i, 6 - i) for i in range(1, 6)]
    sets = [[draws.beta(*s, 200_000) for s in shapes] for _ in range(2)]
    expected = np.mean([np.abs(x - y).mean() for x, y in zip(*sets, strict=True)])
    assert found.end.pairs == len(apart) == 12
    assert found.end.consistency == pytest.approx(1 - np.mean(apart) / expected, abs=0.05)


def test_start_is_compared_with_the_same_null() -> None:
    same, apart = [[8, 16, 24]], [[[1, 2, 3]], [[40, 50, 60]]]
    cells = [cell(f"c{i}", boundaries=apart[i], starts=same) for i in range(2)]
    found = cell_boundaries(cells, "learnable")
    assert found is not None
    assert found.start.consistency == pytest.approx(1)
    assert found.end.consistency < 0
    assert found.end.p_value > 0.95


def test_random_boundaries_don_t_agree() -> None:
    """The p-value is uniform under the null: about 5 % of 60 sets of cells are below 5 %."""
    draws, below = np.random.default_rng(2), 0
    for _ in range(60):
        sets = [np.sort(64 * draws.random((1, 7))).tolist() for _ in range(3)]
        found = cell_boundaries(
            [cell(f"c{i}", boundaries=s) for i, s in enumerate(sets)], "learnable"
        )
        assert found is not None
        below += found.end.p_value <= 0.05
    assert below <= 9


def test_one_cell_says_nothing() -> None:
    assert cell_boundaries([cell("a", boundaries=[[8, 16]]), cell("b")], "learnable") is None
    assert cell_boundaries([cell("a"), cell("b")], "fixed") is None
