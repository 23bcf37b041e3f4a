"""ASHA, one for each arm, in optimizer steps (Li et al. 2020, arXiv:1810.05934)."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import ASHAScheduler, TrialScheduler


class Asha:
    """Ray's ``ASHAScheduler``, one per arm and search, called with our own trial names.

    Tune doesn't save the rungs. With our own names they can be rebuilt from the stored reports
    after a crash.

    Args:
        arms: names of the groups whose trials compete with each other: an arm in a search.
        grace_steps: step of the first rung.
        reduction_factor: eta, the factor between rungs; the best 1 / eta of trials pass each rung.
        max_steps: steps of a full run.
    """

    def __init__(
        self, arms: Iterable[str], *, grace_steps: int, reduction_factor: int, max_steps: int
    ) -> None:
        self._schedulers: dict[str, Any] = {  # Any, because it gets stand-ins for Tune's trials
            arm: ASHAScheduler(
                time_attr="step",
                metric="nll",
                mode="min",
                max_t=max_steps,
                grace_period=grace_steps,
                reduction_factor=reduction_factor,
                stop_last_trials=False,
            )
            for arm in arms
        }
        self._added: set[str] = set()

    def stops(self, arm: str, name: str, step: int, nll: float) -> bool:
        """Return whether to stop a trial that has this validation NLL at this step.

        A repeated call with the same values counts once.
        """
        scheduler, trial = self._schedulers[arm], SimpleNamespace(trial_id=name)
        if name not in self._added:
            scheduler.on_trial_add(None, trial)
            self._added.add(name)
        return bool(
            scheduler.on_trial_result(None, trial, {"step": step, "nll": nll})
            == TrialScheduler.STOP
        )
