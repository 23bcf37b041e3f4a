"""Where the boundaries of an arm's confirm runs end: against the two fixed spacings, and against chance."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from hylorada._config import BoundaryInit
from hylorada._seeding import stream

from ._records import Record
from .analysis.agreement import Agreement, agreement, distance, pairs_of
from .analysis.differences import Floats

if TYPE_CHECKING:
    from torch import Generator

_DRAWS = 999
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
    starts, ends = _sets(runs, block_size)
    random = _random([e.size for e in ends], block_size, seed)
    within, across = pairs_of([r.search for r in runs])
    together = [
        Together(agreement(starts, random, pairs), agreement(ends, random, pairs)) if pairs else None
        for pairs in (within, across)
    ]
    return Placement(len(runs), distances(runs, block_size), *together)


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


def _random(counts: Sequence[int], block_size: int, seed: int) -> list[Floats]:
    """Return [draws, count] boundaries for each run, as the adapter draws them for ``boundary_init: random``."""
    generator = stream(seed, "random boundaries")
    return [np.array([_initial("random", n, block_size, generator) for _ in range(_DRAWS)]) for n in counts]


def _initial(init: BoundaryInit, count: int, block_size: int, generator: "Generator") -> Floats:
    import torch  # takes seconds to import, and most commands need none

    from hylorada._buckets import initial_boundaries

    found = initial_boundaries(init, count + 1, block_size, generator, torch.float64)
    return np.asarray(found.numpy() * block_size)
