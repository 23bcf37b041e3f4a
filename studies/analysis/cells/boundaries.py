"""Whether an arm's learned boundaries lie at the same shares of the block in different cells."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hylorada.runtime.random_streams import derive_seed
from studies.analysis.boundaries import DRAWS
from studies.analysis.cells.reading import FinishedCell
from studies.statistics.agreement import Agreement, agreement, mean_distance, pairs_of
from studies.statistics.differences import Floats
from studies.trials.records import Record, is_finite
from studies.trials.winners import confirm_runs

_MOST_PAIRS = 200


@dataclass(frozen=True)
class CellBoundaries:
    """Agreement of an arm's boundaries between cells, in u = p / T.

    Attributes:
        arm: Name of the arm.
        cells: Number of cells in which it has learned boundaries.
        runs: Number of its confirm runs there.
        start: Agreement of runs of different cells before training.
        end: Agreement of the same runs after training.
    """

    arm: str
    cells: int
    runs: int
    start: Agreement
    end: Agreement


def learned_runs(cell: FinishedCell, arm: str) -> list[Record]:
    """Return an arm's complete confirm runs at the winning rate, if they learn boundaries."""
    runs = confirm_runs(cell.study, cell.records, arm)
    return [r for r in runs if r.state == "complete" and _has_boundaries(r)]


def _has_boundaries(run: Record) -> bool:
    last = run.reports[-1]
    both = (*last.start_boundaries, *last.boundaries)
    return 0 < len(last.boundaries) == len(last.start_boundaries) and all(map(is_finite, both))


def cell_boundaries(cells: Sequence[FinishedCell], arm: str) -> CellBoundaries | None:
    """Compare an arm's boundaries of different cells with each other and with chance.

    Args:
        cells: The cells; their block lengths may differ.
        arm: Name of the arm.

    Returns:
        The agreement; None if fewer than two cells have learned boundaries.
    """
    runs = [(i, cell, run) for i, cell in enumerate(cells) for run in learned_runs(cell, arm)]
    _, pairs = pairs_of([i for i, _, _ in runs])
    if not pairs:
        return None
    random = np.random.default_rng(derive_seed(cells[0].study.seed, "boundaries of cells", arm))
    if len(pairs) > _MOST_PAIRS:
        pairs = [pairs[i] for i in random.choice(len(pairs), _MOST_PAIRS, replace=False)]
    ends = [shares(run.reports[-1].boundaries, cell) for _, cell, run in runs]
    starts = [shares(run.reports[-1].start_boundaries, cell) for _, cell, run in runs]
    # Sorted uniform numbers, as `boundary_init: random` draws them, here without torch.
    drawn = [np.sort(random.random((DRAWS, e.size)), axis=-1) for e in ends]
    null = mean_distance(drawn, pairs)
    return CellBoundaries(
        arm,
        cells=len({i for i, _, _ in runs}),
        runs=len(runs),
        start=agreement(starts, null, pairs),
        end=agreement(ends, null, pairs),
    )


def shares(boundaries: Sequence[float], cell: FinishedCell) -> Floats:
    """Return boundaries in token positions as shares of a cell's block, clipped to it."""
    return np.clip(np.asarray(boundaries, float) / cell.study.block_size, 0, 1)
