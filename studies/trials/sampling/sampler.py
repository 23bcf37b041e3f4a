"""The samplers of a search, seeded so that a resumed one proposes what an unbroken one would.

A sampler may look only at the study's seed, the trial's number and the trials so far, because no
other state survives a crash. Optuna's own ``QMCSampler`` and ``GPSampler`` are therefore not here:
both keep state in the database that the trial files don't hold.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, BruteForceSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial

from hylorada.runtime.random_streams import derive_seed
from studies.spec.proposals.sobol import SobolPoint

_SCARCE = 4  # points for each trial, below which a sampler would soon propose the same points again


@dataclass(frozen=True, kw_only=True)
class SampledArm:
    """An arm in one search, as far as its sampler has to know it.

    Attributes:
        seed: Seed of the study.
        name: Name of the arm and search, which seeds random streams.
        names: Parameters that the arm's sampler draws.
        trials: Number of trials that the arm will have.
        points: Number of different points in the space; None if it is unbounded. If points are
            scarce, each is drawn once, at random, whatever the sampler.
    """

    seed: int
    name: str
    names: Sequence[str] = ()
    trials: int
    points: int | None = None

    def stream(self, *more: int | str) -> int:
        """Return the seed of one of the random streams, all of which are independent."""
        return derive_seed(self.seed, "sampler", self.name, *more) % 2**32


class _TPE(TPESampler):
    """Describe a running trial by the values it trains with, as its files store them.

    Optuna's own also reads what was drawn for parameters whose conditions don't hold, which is in
    the database alone: after a rebuild, the search would go on differently.
    """

    def _get_params(self, trial: FrozenTrial, study: optuna.Study) -> dict[str, Any]:
        return trial.params


def _tpe(arm: SampledArm, number: int) -> BaseSampler:
    def make(parameter: str) -> BaseSampler:
        return _TPE(
            n_startup_trials=max(4, min(10, arm.trials // 3)),
            multivariate=True,
            group=True,
            constant_liar=True,
            seed=arm.stream(number, parameter),
        )

    return _ByParameter(make)


def _random(arm: SampledArm, number: int) -> BaseSampler:
    return _ByParameter(lambda parameter: RandomSampler(seed=arm.stream(number, parameter)))


def _qmc(arm: SampledArm, number: int) -> BaseSampler:
    return _Sobol(SobolPoint(arm.names, arm.stream("qmc"), 1 + number))


def _each_once(arm: SampledArm, number: int) -> BaseSampler:
    return _ByParameter(lambda parameter: BruteForceSampler(seed=arm.stream(number, parameter)))


# Each makes the sampler of one proposal, of this number. To add one, name it in
# `studies.spec.study.SAMPLERS` too.
SAMPLERS: Mapping[str, Callable[[SampledArm, int], BaseSampler]] = {
    "tpe": _tpe,
    "random": _random,
    "qmc": _qmc,
}


def make_sampler(name: str, arm: SampledArm, number: int) -> BaseSampler:
    """Return the sampler of one proposal.

    Its random streams depend only on the study's seed, the arm and search, and the trial's number.

    Args:
        name: Name of the sampler.
        arm: The arm and search.
        number: Number of the trial.
    """
    scarce = arm.points is not None and arm.points <= _SCARCE * arm.trials
    return (_each_once if scarce else SAMPLERS[name])(arm, number)


class _ByParameter(BaseSampler):
    """Draws each independent parameter from a random stream of its own.

    A proposal that was interrupted halfway therefore ends as it would have without interruption.

    Args:
        make: Returns the sampler for a parameter's name; ``""`` for all that are drawn together.
    """

    def __init__(self, make: Callable[[str], BaseSampler]) -> None:
        self._make = make
        self._together = self._for("")

    def _for(self, parameter: str) -> BaseSampler:
        with warnings.catch_warnings():
            # Brute force is experimental, and so is `group`, without which TPE can't draw
            # conditional parameters together.
            warnings.simplefilter("ignore", ExperimentalWarning)
            return self._make(parameter)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the parameters that are drawn together."""
        return self._together.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Draw the parameters that are drawn together."""
        return self._together.sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Draw one parameter from its own random stream."""
        return self._for(param_name).sample_independent(
            study, trial, param_name, param_distribution
        )


class _Sobol(BaseSampler):
    """Draws each parameter at its own coordinate of a point, which conditions can't shift.

    Args:
        point: The point of the proposal.
    """

    def __init__(self, point: SobolPoint) -> None:
        self._point = point

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return no parameters: none depends on the value of another."""
        return {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Draw no parameters together."""
        return {}

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return the parameter's value at the point."""
        match param_distribution:
            case FloatDistribution(low=low, high=high, log=log):
                return self._point.suggest_float(param_name, low, high, log=log)
            case IntDistribution(low=low, high=high, log=log):
                return self._point.suggest_int(param_name, low, high, log=log)
            case CategoricalDistribution(choices=choices):
                return self._point.suggest_categorical(param_name, choices)
            case _:
                raise TypeError(f"{param_name} has an unknown distribution: {param_distribution}")
