"""Optuna's samplers, seeded so that a resumed search proposes what an unbroken one would."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, BruteForceSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial

from hylorada.runtime.random_streams import derive_seed

_SCARCE = 4  # points for each trial, below which a sampler would soon propose the same points again


def _tpe(stream: int, trials: int) -> BaseSampler:
    return TPESampler(
        n_startup_trials=max(4, min(10, trials // 3)),
        multivariate=True,
        group=True,
        constant_liar=True,
        seed=stream,
    )


def _random(stream: int, _trials: int) -> BaseSampler:
    return RandomSampler(seed=stream)


# Each builds a sampler from a seed and the number of trials that an arm will have. To add one, name
# it in `studies.spec.study.SAMPLERS` too.
SAMPLERS: Mapping[str, Callable[[int, int], BaseSampler]] = {
    "tpe": _tpe,
    "random": _random,
}


def make_sampler(
    seed: int,
    arm: str,
    number: int,
    *,
    trials: int,
    points: int | None,
    name: str = "tpe",
) -> BaseSampler:
    """Return the sampler of one proposal.

    Its random streams depend only on the study's seed, the arm and the trial's number.

    Args:
        seed: Seed of the study.
        arm: Name of the Optuna study, which is that of the arm and search.
        number: Number of the trial.
        trials: Number of trials that the arm will have.
        points: Number of different points in the space; None if it is unbounded. If points are
            scarce, each is drawn once, at random, whatever the sampler.
        name: Name of the sampler.
    """

    def make(parameter: str) -> BaseSampler:
        stream = derive_seed(seed, "sampler", arm, number, parameter) % 2**32
        with warnings.catch_warnings():
            # Brute force is experimental, and so is `group`, without which TPE can't draw
            # conditional parameters together.
            warnings.simplefilter("ignore", ExperimentalWarning)
            if points is not None and points <= _SCARCE * trials:
                return BruteForceSampler(seed=stream)
            return SAMPLERS[name](stream, trials)

    return _ByParameter(make)


class _ByParameter(BaseSampler):
    """Draws each independent parameter from a random stream of its own.

    A proposal that was interrupted halfway therefore ends as it would have without interruption.

    Args:
        make: Returns the sampler for a parameter's name; ``""`` for all that are drawn together.
    """

    def __init__(self, make: Callable[[str], BaseSampler]) -> None:
        self._make, self._together = make, make("")

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
        return self._make(param_name).sample_independent(
            study, trial, param_name, param_distribution
        )
