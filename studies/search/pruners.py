"""The pruners that a study can choose, by name."""

from collections.abc import Callable, Mapping
from typing import Protocol

from studies.search.asha import Asha
from studies.spec.study import Study
from studies.trials.records import place_name


class Pruner(Protocol):
    """Decides which trials end before their last step."""

    def stops(self, arm: str, name: str, step: int, nll: float) -> bool:
        """Return whether to stop a trial that has this validation NLL at this step.

        Args:
            arm: Group that the trial competes with: an arm in a search.
            name: Name of the trial.
            step: Optimizer steps so far.
            nll: Validation NLL. A repeated call with the same values counts once.
        """


def _asha(study: Study) -> Pruner | None:
    rungs = study.rungs()
    if not rungs:
        return None
    groups = [place_name(arm, search) for search in range(study.searches) for arm in study.arms]
    return Asha(
        groups,
        grace_steps=rungs[0],
        reduction_factor=study.reduction_factor,
        max_steps=study.max_steps,
    )


# To add one, name it in `studies.spec.study.PRUNERS` too.
PRUNERS: Mapping[str, Callable[[Study], Pruner | None]] = {"asha": _asha, "none": lambda _: None}


def make_pruner(study: Study) -> Pruner | None:
    """Return the study's pruner; None if every trial runs to its last step."""
    return PRUNERS[study.pruner](study)
