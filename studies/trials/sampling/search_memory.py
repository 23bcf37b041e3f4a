"""The trials of an arm and search in memory, where its sampler reads them.

In the database, a sampler's look at the other trials costs a query for each of their tables, and
each parameter that it draws a transaction.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState


class SearchMemory:
    """An Optuna study in memory that holds whatever a sampler may look at.

    Of the reports of a trial it holds the last one, and that only once the trial has ended: no
    sampler looks at the others.

    Args:
        trials: The trials that the database holds.
    """

    def __init__(self, trials: Sequence[FrozenTrial]) -> None:
        self._study = optuna.create_study(direction="minimize")
        self._study.add_trials(trials)

    @property
    def count(self) -> int:
        """The number of trials so far."""
        return len(self._study.get_trials(deepcopy=False))

    def ask(
        self, sampler: BaseSampler, given: Mapping[str, Any], attributes: Mapping[str, Any]
    ) -> optuna.Trial:
        """Return a new trial, whose parameters are not drawn yet.

        Args:
            sampler: The sampler of this trial.
            given: Values that the sampler must not draw.
            attributes: User attributes of a trial that has such values.
        """
        if given:
            self._study.enqueue_trial(dict(given), user_attrs=dict(attributes))
        self._study.sampler = sampler
        return self._study.ask()

    def trial(self, number: int) -> FrozenTrial:
        """Return a trial as it is now."""
        return self._study.get_trials(deepcopy=False)[number]

    def end(
        self, number: int, state: TrialState, value: float | None, last: tuple[int, float] | None
    ) -> None:
        """End a trial.

        Args:
            number: Its number.
            state: How it has ended.
            value: Its value, if it has one.
            last: Step and loss of its last report, if it has one.
        """
        storage, trial_id = self._study._storage, self.trial(number)._trial_id
        if last is not None:
            storage.set_trial_intermediate_value(trial_id, *last)
        storage.set_trial_state_values(trial_id, state, None if value is None else [value])
