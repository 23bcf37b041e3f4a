"""Where the boundaries of an arm's confirm runs end: against the two fixed spacings, and against chance."""

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

DRAWS = 999  # of random boundaries
_MOST_PAIRS = 100
Spacing = Literal["log", "uniform"]
SPACINGS: tuple[Spacing, ...] = ("log", "uniform")


@dataclass(frozen=True)
class Change:
    """One figure of the boundaries when training began and when it ended."""

    start: float
    end: float


@dataclass(frozen=True)
class Together:
    """How well runs agree when training begins and when it ends."""

    start: Agreement
    end: Agreement


@dataclass(frozen=True)
class Placement:
    """Where the boundaries of some runs lie.

    Attributes:
        runs: how many.
        distances: mean distance to each spacing with as many buckets, in tokens a boundary.
        seeds: how well runs of one search agree; None without two seeds.
        searches: how well runs of different searches agree; None without two searches.
    """

    runs: int
    distances: dict[Spacing, Change]
    seeds: Together | None
    searches: Together | None


def spaced(spacing: Spacing, count: int, block_size: int) -> Floats:
    """Return where an adapter of a spacing starts with ``count`` boundaries, in token positions."""
    return _initial(spacing, count, block_size, stream(0))


def placement(runs: Sequence[Record], block_size: int, seed: int) -> Placement:
    """Compare the boundaries of confirm runs with the spacings and with each other.

    Only positions of the block count, so a boundary that has left it is taken as at its edge.

    Args:
        runs: with learned boundaries; they may differ in how many they have.
        block_size: T.
        seed: of the study, for the random boundaries.
    """
    found = []
    for name, pairs in zip(("seeds", "searches"), pairs_of([r.search for r in runs]), strict=True):
        chosen = _some(pairs, derive_seed(seed, name))
        found.append(
            _together(runs, chosen, block_size, stream(seed, "random boundaries", name))
            if chosen
            else None
        )
    return Placement(len(runs), distances(runs, block_size), *found)


def _some(pairs: Pairs, seed: int) -> Pairs:
    """Return at most ``_MOST_PAIRS`` of the pairs, drawn at random: a study of many searches has thousands."""
    if len(pairs) <= _MOST_PAIRS:
        return pairs
    return [
        pairs[i] for i in np.random.default_rng(seed).choice(len(pairs), _MOST_PAIRS, replace=False)
    ]


def _together(
    runs: Sequence[Record], pairs: Pairs, block_size: int, generator: "Generator"
) -> Together:
    """Compare the distances of pairs of runs with those of boundaries as ``boundary_init: random`` draws them."""
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
    """Return the mean distance of runs to each spacing, in tokens a boundary."""
    starts, ends = _sets(runs, block_size)
    return {s: Change(_away(starts, s, block_size), _away(ends, s, block_size)) for s in SPACINGS}


def _sets(runs: Sequence[Record], block_size: int) -> tuple[list[Floats], list[Floats]]:
    """Return the boundaries at the start and at the end of each run."""
    last = [r.reports[-1] for r in runs]
    starts, ends = [x.start_boundaries for x in last], [x.boundaries for x in last]
    return [np.clip(s, 0, block_size) for s in starts], [np.clip(e, 0, block_size) for e in ends]


def _away(sets: Sequence[Floats], spacing: Spacing, block_size: int) -> float:
    return float(np.mean([distance(s, spaced(spacing, s.size, block_size)) for s in sets]))


def _initial(init: BoundaryInit, count: int, block_size: int, generator: "Generator") -> Floats:
    import torch  # takes seconds to import, and most commands need none

    from hylorada.adapters.buckets import initial_boundaries

    found = initial_boundaries(init, count + 1, block_size, generator, torch.float64)
    return np.asarray(found.numpy() * block_size)
