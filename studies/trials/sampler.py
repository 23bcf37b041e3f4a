"""Optuna's samplers, made so that a search that was broken off goes on as an unbroken one would."""

import warnings
from collections.abc import Callable
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, BruteForceSampler, TPESampler
from optuna.trial import FrozenTrial

from hylorada.runtime.random_streams import derive_seed

_SCARCE = 4  # points for each trial: TPE would soon come back to points that it has seen


def make_sampler(
    seed: int, arm: str, number: int, *, trials: int, points: int | None
) -> BaseSampler:
    """The sampler of one proposal: its random streams depend on the study's seed, the arm and the trial's number.

    Args:
        seed: of the study.
        arm: whose trial it is.
        number: of the trial.
        trials: that the arm is to have.
        points: different ones in the space, or None. Where they are scarce each is drawn once, at random; else TPE.
    """

    def make(parameter: str) -> BaseSampler:
        stream = derive_seed(seed, "sampler", arm, number, parameter) % 2**32
        with warnings.catch_warnings():
            # of the brute force, and of `group`, the one way to conditional parameters
            warnings.simplefilter("ignore", ExperimentalWarning)
            if points is not None and points <= _SCARCE * trials:
                return BruteForceSampler(seed=stream)
            return TPESampler(
                n_startup_trials=max(4, min(10, trials // 3)),
                multivariate=True,
                group=True,
                constant_liar=True,
                seed=stream,
            )

    return _ByParameter(make)


class _ByParameter(BaseSampler):
    """Draws each independent parameter from a stream of its own: a proposal broken off halfway ends as it would have.

    Args:
        make: a sampler for a parameter by name; ``""`` for those that are drawn together.
    """

    def __init__(self, make: Callable[[str], BaseSampler]) -> None:
        self._make, self._together = make, make("")

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self._together.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._together.sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        return self._make(param_name).sample_independent(
            study, trial, param_name, param_distribution
        )
