"""Test whether several sets of learned bucket boundaries lie closer together than random ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from studies.statistics.differences import Floats

Pairs = Sequence[tuple[int, int]]


def distance(first: Floats, second: Floats) -> Floats:
    """Return [...]: the distance between two sets of boundaries [..., M] and [..., N].

    The distance has the unit of the boundaries.

    This is the area between the two step functions "share of the boundaries at or before position
    x". With M = N it is the mean distance between boundaries of equal rank, and it compares sets of
    different sizes in the same unit (the Wasserstein-1 distance; Vallender 1974).

    Example:
        >>> float(distance(np.array([8.0, 16.0]), np.array([10.0, 17.0])))
        1.5
    """
    if first.shape[-1] == second.shape[-1]:
        return np.asarray(np.abs(np.sort(first) - np.sort(second)).mean(axis=-1))
    both = np.concatenate([first, second], axis=-1)
    order = np.argsort(both, axis=-1)
    steps = np.where(order < first.shape[-1], 1 / first.shape[-1], -1 / second.shape[-1])
    between = np.abs(np.cumsum(steps, axis=-1)[..., :-1])
    return np.asarray((between * np.diff(np.take_along_axis(both, order, axis=-1))).sum(axis=-1))


@dataclass(frozen=True)
class Agreement:
    """How well the two sets of each pair agree, averaged over pairs.

    Attributes:
        consistency: 1 - (mean distance of the pairs) / (mean distance of pairs of random sets): 1
            if the sets are equal, about 0 if they are no closer together than random ones, below 0
            if they are further apart.
        p_value: Probability that random sets lie at least as close together.
        pairs: Number of pairs.
    """

    consistency: float
    p_value: float
    pairs: int


def mean_distance(sets: Sequence[Floats], pairs: Pairs) -> Floats:
    """Return [...]: the mean distance over pairs of sets of boundaries [..., M_i].

    Args:
        sets: One [..., M_i] array of boundaries for each set.
        pairs: Indices of the two sets of each pair; at least one pair.
    """
    if not pairs:
        raise ValueError("`pairs` must hold at least one pair")
    total = sum((distance(sets[a], sets[b]) for a, b in pairs), start=np.zeros(()))
    return np.asarray(total / len(pairs))


def agreement(sets: Sequence[Floats], random: Floats, pairs: Pairs) -> Agreement:
    """Compare the mean distance of some pairs of sets with that of random sets of the same sizes.

    The p-value is that of a Monte Carlo test, (1 + random draws at least as close) / (1 + draws),
    which is valid for any number of draws (Davison and Hinkley 1997, chapter 4).

    Args:
        sets: [M_i] boundaries of each run.
        random: [draws] mean distance of the same pairs in draws of random boundaries.
        pairs: Indices of the runs to compare.
    """
    observed = float(mean_distance(sets, pairs))
    closer = int(np.count_nonzero(random <= observed * (1 + 1e-12)))
    return Agreement(
        1 - observed / float(random.mean()), (1 + closer) / (1 + random.size), len(pairs)
    )


def pairs_of(searches: Sequence[int]) -> tuple[Pairs, Pairs]:
    """Return the pairs of runs within a search, then those across searches.

    Args:
        searches: The search of each run.
    """
    every = [(a, b) for b in range(len(searches)) for a in range(b)]
    within = [(a, b) for a, b in every if searches[a] == searches[b]]
    across = [(a, b) for a, b in every if searches[a] != searches[b]]
    return within, across
