"""The common values of a matched block, a function of seed, search and block alone.

Every arm gets the same draw.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hylorada import derive_seed
from studies.spec.parameters import Scalar
from studies.spec.study import Study


def common_values(study: Study, search: int, block: int) -> dict[str, Any]:
    """Return the common values of one block.

    Block 0 takes the shared defaults. The others are points of a scrambled Sobol sequence, one
    sequence per search: they spread evenly over the space whatever their number, need no results,
    and are the same after a crash.

    Args:
        study: a matched study.
        search: which of its independent searches, from 0.
        block: number of the block within the search, from 0.

    Returns:
        The values by parameter.
    """
    if block == 0:
        return study.common_start()
    names = tuple(study.common.parameters)
    seed = derive_seed(study.seed, "common", search) % 2**32
    point = dict(zip(names, _sobol(len(names), seed, block).tolist(), strict=True))
    return study.common.sample(_AtPoint(point))


def search_seeds(study: Study, arm: str, search: int, number: int) -> tuple[int, int]:
    """Return the seeds of a search trial's adapter and of its data.

    The arms of a matched block share both.
    """
    place = [search] if search else []
    who: list[int | str] = ["block", search, number] if study.blocks else [*place, arm, number]
    return derive_seed(study.seed, *who), derive_seed(study.seed, "data", *place)


def rerun_seeds(study: Study, stage: str, search: int, number: int) -> tuple[int, int]:
    """Return the seeds of the adapter and of the data of a run on fresh seeds.

    All arms, finalists and factors of a search share them. The confirm seeds that a study names
    are, in its first search, both seeds themselves. In each further search they derive from the
    named seed and the search, because searches must be independent of each other.
    """
    if stage == "confirm" and number < len(study.seed_list):
        named = study.seed_list[number]
        derived = derive_seed(named, "search", search), derive_seed(named, "search data", search)
        return derived if search else (named, named)
    place = [search] if search else []
    adapter_seed = derive_seed(study.seed, stage, *place, number)
    return adapter_seed, derive_seed(study.seed, f"{stage} data", *place, number)


def seed_name(named: Sequence[int], number: int) -> int:
    """Return what users call a paired seed: its name if the study names its seeds, or its number.

    Args:
        named: the study's ``seed_list``.
        number: number of the seed, from 0.

    Example:
        >>> seed_name((42, 123), 1), seed_name((), 1)
        (123, 1)
    """
    return named[number] if number < len(named) else number


def _sobol(dimensions: int, seed: int, index: int) -> npt.NDArray[np.float64]:
    """Return point ``index`` (from 1) of a scrambled Sobol sequence in [0, 1)^dimensions.

    The scrambling is Owen's (1998).
    """
    from scipy.stats import qmc  # takes half a second to import

    engine = qmc.Sobol(dimensions, scramble=True, rng=seed)
    if index > 1:
        engine.fast_forward(index - 1)
    return np.asarray(engine.random(1)[0])


class _AtPoint:
    """A stand-in for ``optuna.Trial`` that suggests the values of a point of the unit cube."""

    def __init__(self, point: Mapping[str, float]) -> None:
        self._point = point

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        u = self._point[name]
        return low * (high / low) ** u if log else low + (high - low) * u

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        if log:  # each whole number gets the share of the log range that rounds to it
            real = self.suggest_float(name, low - 0.5, high + 0.5, log=True)
            return min(max(round(real), low), high)
        return min(low + int(self._point[name] * (high - low + 1)), high)

    def suggest_categorical(self, name: str, choices: tuple[Scalar, ...]) -> Any:
        return choices[min(int(self._point[name] * len(choices)), len(choices) - 1)]
