"""Points of a scrambled Sobol sequence as proposals: they need no results, only their number."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from studies.spec.parameters import Scalar


class SobolPoint:
    """A stand-in for ``optuna.Trial`` that suggests the values of one point of the sequence.

    Args:
        names: Parameters that the sequence spans, always in the same order.
        seed: Seed of the scrambling.
        index: Number of the point, from 1.
    """

    def __init__(self, names: Sequence[str], seed: int, index: int) -> None:
        point = _sobol(len(names), seed, index).tolist() if names else []  # SciPy needs one
        self._point: Mapping[str, float] = dict(zip(names, point, strict=True))

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        """Return the value at the point's share of the range, or of its logarithm."""
        u = self._point[name]
        return low * (high / low) ** u if log else low + (high - low) * u

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        """Return the whole number at the point's share of the range."""
        if log:  # each whole number gets the share of the log range that rounds to it
            real = self.suggest_float(name, low - 0.5, high + 0.5, log=True)
            return min(max(round(real), low), high)
        return min(low + int(self._point[name] * (high - low + 1)), high)

    def suggest_categorical(self, name: str, choices: Sequence[Scalar]) -> Any:
        """Return one of the choices, all of which have an equal share."""
        return choices[min(int(self._point[name] * len(choices)), len(choices) - 1)]


def _sobol(dimensions: int, seed: int, index: int) -> npt.NDArray[np.float64]:
    """Return point ``index`` (from 1) of a scrambled Sobol sequence in [0, 1)^dimensions.

    The scrambling is Owen's (1998).
    """
    from scipy.stats import qmc  # takes half a second to import

    engine = qmc.Sobol(dimensions, scramble=True, rng=seed)
    if index > 1:
        engine.fast_forward(index - 1)
    return np.asarray(engine.random(1)[0])
