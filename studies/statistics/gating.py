"""Summaries of a gate's weights over landmarks, position by position."""

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from studies.statistics.differences import Floats

STANDS_OUT = 1.5  # a position leans on a landmark that has at least this multiple of its even share


@dataclass(frozen=True)
class Leaning:
    """A stretch of neighbouring positions that lean on the same landmark.

    Attributes:
        first: First position.
        last: Last position.
        landmark: Index of the landmark with the largest weight.
        weight: Its mean weight over these positions.
    """

    first: int
    last: int
    landmark: int
    weight: float


def entropy_bits(weights: Floats) -> float:
    """Return the mean entropy of [T, L] weights in bits.

    It is log2 L if all weights are equal, and 0 if each row has a single 1.
    """
    return float(_entropy(weights).mean())


def information_bits(weights: Floats) -> float:
    """Return the mutual information between position and landmark, in bits, for [T, L] weights.

    With all positions equally likely, this is the entropy of the mean weights less the mean
    entropy. It is 0 where every position has the same weights.
    """
    return max(0.0, float(_entropy(weights.mean(axis=0))) - entropy_bits(weights))


def leanings(weights: Floats) -> list[Leaning]:
    """Return the stretches of positions that lean on one landmark, given [T, L] weights.

    A position leans on the landmark with the largest weight if that weight is at least
    `STANDS_OUT` times the even share of 1/L.
    """
    best = weights.argmax(axis=1)
    marked = np.where(weights.max(axis=1) >= STANDS_OUT / weights.shape[1], best, -1)
    stretches = []
    for landmark, group in groupby(range(len(marked)), key=lambda p: int(marked[p])):
        positions = list(group)
        if landmark >= 0:
            mean = float(weights[positions, landmark].mean())
            stretches.append(Leaning(positions[0], positions[-1], landmark, mean))
    return stretches


def _entropy(weights: Floats) -> Floats:
    logs = np.log2(weights, out=np.zeros_like(weights), where=weights > 0)
    return np.asarray(-(weights * logs).sum(axis=-1))
