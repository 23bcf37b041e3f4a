"""How much each searched parameter matters: Optuna's conditional PED-ANOVA on first-rung losses, against shuffles."""

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
MOST = 500  # of more trials as many are drawn at random: the time grows with their number
_TOP = 5  # trials that PED-ANOVA should have in the group whose parameters it looks at (Optuna's advice)
_SHUFFLES = 199
_LEVEL = 0.05


@dataclass(frozen=True)
class Share:
    """Holds the importance of one parameter.

    Attributes:
        share: Its part of the importance of all parameters.
        chance: The share that it would exceed by chance with a probability of 5 % divided by the
            number of parameters.
    """

    share: float
    chance: float

    @property
    def stands_out(self) -> bool:
        """Return whether the importance is more than chance."""
        return self.share > self.chance


@dataclass(frozen=True)
class Importance:
    """The importances of one arm's parameters.

    Attributes:
        trials: How many trials have a loss at the step, or diverged before it.
        shares: By parameter, the most important first; empty with too few trials.
    """

    trials: int
    shares: Mapping[str, Share]


def rung_step(study: Study) -> int:
    """Return the step whose losses are compared: ASHA's first rung, which every trial reaches, or the last step."""
    return min((*study.rungs(), study.max_steps))


def importance(
    records: Mapping[str, Record], study: Study, arm: str, folder: Path
) -> Importance | None:
    """Return the importance of an arm's parameters over all its searches; None where it searches fewer than two.

    Args:
        records: all of the study.
        study: the study.
        arm: by name.
        folder: of the study, for messages.

    Raises:
        InputError: a record does not fit the study.
    """
    searched = [n for n, p in study.space(arm).parameters.items() if p.values.size != 1]
    found = [(r, _loss(r, rung_step(study))) for r in records_of(records, "search", arm)]
    losses = {r.name: loss for r, loss in found if loss is not None}
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
    """Return the validation loss at a step; infinity for a trial that diverged before it."""
    for report in record.reports:
        nll = report.metrics.get("eval/nll")
        if report.step == step and nll is not None and math.isfinite(nll):
            return nll
    return math.inf if record.state == "diverged" else None


def _pool(records: Sequence[Record], study: Study, folder: Path) -> optuna.Study:
    """Return an Optuna study of all these trials, each complete, for PED-ANOVA reads no others; losses come apart."""
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
    """Compare each importance with those of shuffled losses: a Monte Carlo test, with Bonferroni's level."""
    ranks = np.argsort(np.argsort(losses, kind="stable")).astype(
        np.float64
    )  # PED-ANOVA needs no more, and no infinity
    found = _importances(pooled, ranks, names)
    shuffled = np.sort(
        [_importances(pooled, draws.permutation(ranks), names) for _ in range(_SHUFFLES)], axis=0
    )
    place = math.ceil(
        (1 - _LEVEL / len(names)) * (1 + _SHUFFLES)
    )  # exceeded with that probability by chance
    chance = shuffled[min(place, _SHUFFLES) - 1]
    total = found.sum() or 1.0
    order = sorted(range(len(names)), key=lambda i: (-found[i], i))
    return {names[i]: Share(float(found[i] / total), float(chance[i] / total)) for i in order}


def _importances(pooled: optuna.Study, ranks: Floats, names: Sequence[str]) -> Floats:
    from optuna.importance import (
        PedAnovaImportanceEvaluator,
        get_param_importances,
    )  # imports scikit-learn

    evaluator = PedAnovaImportanceEvaluator(target_quantile=max(0.1, _TOP / len(ranks)))
    with warnings.catch_warnings():
        # Optuna warns that low values of `target` count as good, and of conditions that hold for a single trial
        warnings.simplefilter("ignore")
        found = get_param_importances(
            pooled,
            evaluator=evaluator,
            target=lambda trial: float(ranks[trial.number]),
            normalize=False,
        )
    return np.array([found.get(name, 0.0) for name in names])
