"""ASHA, one for each arm, in optimizer steps (Li et al. 2020, arXiv:1810.05934)."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import ASHAScheduler, TrialScheduler


class Asha:
    """Decides at each rung whether a trial goes on.

    Ray's ``ASHAScheduler`` decides; it is fed by our own trial names, so that after a crash its rungs are rebuilt from
    the stored reports (Tune doesn't save them).

    Args:
        arms: names of what is compared within itself: an arm in a search.
        grace_steps: the first rung.
        reduction_factor: eta.
        max_steps: steps of a full run.
    """

    def __init__(
        self, arms: Iterable[str], *, grace_steps: int, reduction_factor: int, max_steps: int
    ) -> None:
        self._schedulers: dict[str, Any] = {  # Any: it is given stand-ins for Tune's trials
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
        """Whether the trial ends here, with this validation NLL at this step. Told twice, it counts once."""
        scheduler, trial = self._schedulers[arm], SimpleNamespace(trial_id=name)
        if name not in self._added:
            scheduler.on_trial_add(None, trial)
            self._added.add(name)
        return bool(
            scheduler.on_trial_result(None, trial, {"step": step, "nll": nll})
            == TrialScheduler.STOP
        )
