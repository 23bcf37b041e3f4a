"""What the weights of a gate over landmarks say, position by position."""

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from studies.statistics.differences import Floats

STANDS_OUT = 1.5  # times its even share: from this weight on a position leans on a landmark


@dataclass(frozen=True)
class Leaning:
    """Neighbouring positions that lean on one landmark.

    Attributes:
        first: First position.
        last: Last position.
        landmark: The landmark of largest weight.
        weight: Its mean weight there.
    """

    first: int
    last: int
    landmark: int
    weight: float


def entropy_bits(weights: Floats) -> float:
    """Return the mean entropy of [T, L] weights in bits: log2 L if they are all equal, 0 if each row has a single 1."""
    return float(_entropy(weights).mean())


def information_bits(weights: Floats) -> float:
    """Return what a position tells about the landmark, in bits, with [T, L] weights and all positions equally likely.

    This is the mutual information: the entropy of the mean weights less the mean entropy. It is 0
    where every position has the same weights.
    """
    return max(0.0, float(_entropy(weights.mean(axis=0))) - entropy_bits(weights))


def leanings(weights: Floats) -> list[Leaning]:
    """Return the runs of positions of which one landmark has at least `STANDS_OUT` times its even share of 1/L."""
    best = weights.argmax(axis=1)
    marked = np.where(weights.max(axis=1) >= STANDS_OUT / weights.shape[1], best, -1)
    found = []
    for landmark, group in groupby(range(len(marked)), key=lambda p: int(marked[p])):
        positions = list(group)
        if landmark >= 0:
            mean = float(weights[positions, landmark].mean())
            found.append(Leaning(positions[0], positions[-1], landmark, mean))
    return found


def _entropy(weights: Floats) -> Floats:
    logs = np.log2(weights, out=np.zeros_like(weights), where=weights > 0)
    return np.asarray(-(weights * logs).sum(axis=-1))
