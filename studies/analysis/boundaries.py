"""The learned boundaries of an arm's confirm runs, compared with fixed spacings and with chance."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from hylorada.config import BoundaryInit
from hylorada.runtime.random_streams import derive_seed, stream
from studies.statistics.agreement import (
    Agreement,
    Pairs,
    agreement,
    distance,
    mean_distance,
    pairs_of,
)
from studies.statistics.differences import Floats
from studies.trials.records import Record

if TYPE_CHECKING:
    from torch import Generator

DRAWS = 999  # sets of random boundaries for each run
_MOST_PAIRS = 100
Spacing = Literal["log", "uniform"]
SPACINGS: tuple[Spacing, ...] = ("log", "uniform")


@dataclass(frozen=True)
class Change:
    """A figure of the boundaries at the start and at the end of training."""

    start: float
    end: float


@dataclass(frozen=True)
class Together:
    """The agreement of runs at the start and at the end of training."""

    start: Agreement
    end: Agreement


@dataclass(frozen=True)
class Placement:
    """The positions of the boundaries of some runs.

    Attributes:
        runs: Number of runs.
        distances: Mean distance to each spacing with as many buckets, in tokens per boundary.
        seeds: Agreement of runs of the same search; None if no search has two runs.
        searches: Agreement of runs of different searches; None with a single search.
    """

    runs: int
    distances: dict[Spacing, Change]
    seeds: Together | None
    searches: Together | None


def spaced(spacing: Spacing, count: int, block_size: int) -> Floats:
    """Return the ``count`` initial boundaries of a spacing, in token positions."""
    return _initial(spacing, count, block_size, stream(0))


def placement(runs: Sequence[Record], block_size: int, seed: int) -> Placement:
    """Compare the boundaries of confirm runs with the spacings and with each other.

    A boundary that has left the block counts as lying at its edge.

    Args:
        runs: Confirm runs with learned boundaries; their numbers of boundaries may differ.
        block_size: Number of tokens in a block, T.
        seed: Seed of the study, for drawing random boundaries.
    """
    agreements = []
    for name, pairs in zip(("seeds", "searches"), pairs_of([r.search for r in runs]), strict=True):
        chosen = _some(pairs, derive_seed(seed, name))
        agreements.append(
            _together(runs, chosen, block_size, stream(seed, "random boundaries", name))
            if chosen
            else None
        )
    return Placement(len(runs), distances(runs, block_size), *agreements)


def _some(pairs: Pairs, seed: int) -> Pairs:
    """Return the pairs, or ``_MOST_PAIRS`` drawn at random: many searches make thousands."""
    if len(pairs) <= _MOST_PAIRS:
        return pairs
    drawn = np.random.default_rng(seed).choice(len(pairs), _MOST_PAIRS, replace=False)
    return [pairs[i] for i in drawn]


def _together(
    runs: Sequence[Record], pairs: Pairs, block_size: int, generator: "Generator"
) -> Together:
    """Compare pairs of runs with boundaries drawn as ``boundary_init: random`` draws them."""
    used = sorted({i for pair in pairs for i in pair})
    starts, ends = _sets([runs[i] for i in used], block_size)
    pairs = [(used.index(a), used.index(b)) for a, b in pairs]
    random = [
        np.array([_initial("random", e.size, block_size, generator) for _ in range(DRAWS)])
        for e in ends
    ]
    null = mean_distance(random, pairs)
    return Together(agreement(starts, null, pairs), agreement(ends, null, pairs))


def distances(runs: Sequence[Record], block_size: int) -> dict[Spacing, Change]:
    """Return the mean distance of the runs to each spacing, in tokens per boundary."""
    starts, ends = _sets(runs, block_size)
    return {s: Change(_away(starts, s, block_size), _away(ends, s, block_size)) for s in SPACINGS}


def _sets(runs: Sequence[Record], block_size: int) -> tuple[list[Floats], list[Floats]]:
    """Return the boundaries of each run at its start and at its end, clipped to the block."""
    last = [r.reports[-1] for r in runs]
    starts, ends = [x.start_boundaries for x in last], [x.boundaries for x in last]
    return [np.clip(s, 0, block_size) for s in starts], [np.clip(e, 0, block_size) for e in ends]


def _away(sets: Sequence[Floats], spacing: Spacing, block_size: int) -> float:
    return float(np.mean([distance(s, spaced(spacing, s.size, block_size)) for s in sets]))


def _initial(init: BoundaryInit, count: int, block_size: int, generator: "Generator") -> Floats:
    import torch  # takes seconds to import, and most commands don't need it

    from hylorada.adapters.buckets import initial_boundaries

    boundaries = initial_boundaries(init, count + 1, block_size, generator, torch.float64)
    return np.asarray(boundaries.numpy() * block_size)
