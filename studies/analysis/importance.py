"""Importance of each searched parameter: Optuna's conditional PED-ANOVA on first-rung losses."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optuna
from optuna.trial import create_trial

from hylorada.runtime.random_streams import derive_seed
from studies.spec.study import Study
from studies.statistics.differences import Floats
from studies.trials.optuna_database import expected
from studies.trials.records import Record, records_of

FEWEST = 20  # trials of an arm
MOST = 500  # trials; of more, this many are drawn at random, because time grows with their number
_TOP = 5  # trials: the smallest top group that Optuna advises for PED-ANOVA
_SHUFFLES = 199
_LEVEL = 0.05


@dataclass(frozen=True)
class Share:
    """The importance of one parameter.

    Attributes:
        share: Its share of the importance of all parameters.
        chance: Share that a parameter without influence exceeds with probability
            5 % / number of parameters.
    """

    share: float
    chance: float

    @property
    def stands_out(self) -> bool:
        """Whether the share exceeds what chance allows."""
        return self.share > self.chance


@dataclass(frozen=True)
class Importance:
    """The importance of each of an arm's parameters.

    Attributes:
        trials: Number of trials that have a loss at the step or diverged before it.
        shares: Share of each parameter, the most important first; empty with too few trials.
    """

    trials: int
    shares: Mapping[str, Share]


def rung_step(study: Study) -> int:
    """Return the step at which losses are compared.

    It is ASHA's first rung, which every trial reaches, or the last step without rungs.
    """
    return min((*study.rungs(), study.max_steps))


def importance(
    records: Mapping[str, Record], study: Study, arm: str, folder: Path
) -> Importance | None:
    """Return the importance of an arm's parameters, with all of its searches pooled.

    Args:
        records: All records of the study, by name.
        study: The study.
        arm: Name of the arm.
        folder: Folder of the study, for messages.

    Returns:
        The importance; None if the arm searches fewer than two parameters, or no trial has a loss.

    Raises:
        InputError: A record does not fit the study.
    """
    searched = [n for n, p in study.space(arm).parameters.items() if p.values.size != 1]
    step = rung_step(study)
    ranked = [(r, _loss(r, step)) for r in records_of(records, "search", arm)]
    losses = {r.name: loss for r, loss in ranked if loss is not None}
    if len(searched) < 2 or not losses:
        return None
    if len(losses) < FEWEST or not any(map(math.isfinite, losses.values())):
        return Importance(len(losses), {})
    draws = np.random.default_rng(derive_seed(study.seed, "importance", arm))
    names = sorted(draws.permutation(list(losses))[:MOST].tolist())
    pooled = _pool([records[name] for name in names], study, folder)
    return Importance(
        len(losses), _shares(pooled, [losses[name] for name in names], searched, draws)
    )


def _loss(record: Record, step: int) -> float | None:
    """Return the validation loss at a step: infinity if the trial diverged, None if it has none."""
    for report in record.reports:
        nll = report.metrics.get("eval/nll")
        if report.step == step and nll is not None and math.isfinite(nll):
            return nll
    return math.inf if record.state == "diverged" else None


def _pool(records: Sequence[Record], study: Study, folder: Path) -> optuna.Study:
    """Return an Optuna study of these trials without their losses.

    All of them are marked as complete, because PED-ANOVA ignores other trials.
    """
    trials = [expected(folder, study, r) for r in records]
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        pooled = optuna.create_study()
    finally:
        optuna.logging.set_verbosity(verbosity)
    pooled.add_trials(
        [create_trial(value=0.0, params=t.params, distributions=t.distributions) for t in trials]
    )
    return pooled


def _shares(
    pooled: optuna.Study, losses: Sequence[float], names: Sequence[str], draws: np.random.Generator
) -> dict[str, Share]:
    """Return each share and its chance level, from shuffled losses and Bonferroni's correction."""
    # PED-ANOVA needs ranks alone, and would not take infinite losses.
    ranks = np.argsort(np.argsort(losses, kind="stable")).astype(np.float64)
    measured = _importances(pooled, ranks, names)
    shuffled = np.sort(
        [_importances(pooled, draws.permutation(ranks), names) for _ in range(_SHUFFLES)], axis=0
    )
    # Chance exceeds the shuffle at this place with probability _LEVEL / len(names).
    place = math.ceil((1 - _LEVEL / len(names)) * (1 + _SHUFFLES))
    chance = shuffled[min(place, _SHUFFLES) - 1]
    total = measured.sum() or 1.0
    order = sorted(range(len(names)), key=lambda i: (-measured[i], i))
    return {names[i]: Share(float(measured[i] / total), float(chance[i] / total)) for i in order}


def _importances(pooled: optuna.Study, ranks: Floats, names: Sequence[str]) -> Floats:
    # imports scikit-learn
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    evaluator = PedAnovaImportanceEvaluator(target_quantile=max(0.1, _TOP / len(ranks)))
    with warnings.catch_warnings():
        # Optuna warns that it takes low values of `target` as good, and about conditions that only
        # one trial meets.
        warnings.simplefilter("ignore")
        importances = get_param_importances(
            pooled,
            evaluator=evaluator,
            target=lambda trial: float(ranks[trial.number]),
            normalize=False,
        )
    return np.array([importances.get(name, 0.0) for name in names])
