"""A search run through Optuna's own methods and database, to compare with a store's."""

import math
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState
from store_trials import ARM, VALUES, loss_of, make_report, sampler_of

from studies.spec.common_values import given_values
from studies.spec.study import Study
from studies.trials.optuna_database import OPTUNA_STATES, address, disconnect
from studies.trials.records import State
from studies.trials.store import Store

TRIALS = 16  # TPE begins after five
_RATE = {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
_OWN = {k: v for k, v in VALUES["arms"][ARM]["space"].items() if k not in _RATE}
_LEARNABLE = {"config": {"landmark_bucketing": "learnable"}, "space": _OWN}
_FEW = {"space": {"num_buckets": {"choice": [4, 8, 16, 32]}, "r": {"choice": [2, 4, 8, 16]}}}
CHANGES: dict[str, dict[str, Any]] = {
    "alone": {"trials": TRIALS},
    "matched": {
        "trials": TRIALS,
        "common": {"space": _RATE},
        "arms": {ARM: _LEARNABLE, "baseline": {"config": {"landmarks": False}}},
    },
    "few points": {"trials": TRIALS, "arms": {ARM: _FEW}},
}
# How trial n ends once trial n + 2 has been proposed, and after which losses; the fifth never does.
_ENDS: list[tuple[State, int, float]] = [
    ("complete", 8, 0.0),
    ("pruned", 4, 0.0),
    ("diverged", 4, math.nan),
    ("complete", 8, -0.4),
    ("pruned", 2, math.inf),
    ("running", 6, 0.0),
    ("pruned", 6, math.nan),
    ("failed", 2, 0.0),
]


def _reports(number: int) -> list[tuple[int, float]]:
    """Return the steps and losses that a trial reports; the last loss may be no number."""
    _, last, added = _ENDS[number % len(_ENDS)]
    losses = [(s, loss_of(number) - s / 50) for s in range(2, last + 1, 2)]
    return [*losses[:-1], (last, losses[-1][1] + added)]


def plain_search(study: Study, path: Path) -> list[Any]:
    """Return what Optuna proposes when all goes through its own database and methods."""
    database = optuna.storages.RDBStorage(address(path))
    kept = optuna.create_study(storage=database)
    trials: list[optuna.Trial] = []
    proposals = []
    for number in range(TRIALS):
        if given := given_values(study, ARM, 0, number):
            kept.enqueue_trial(given)
        kept.sampler = sampler_of(study, number)
        trials.append(kept.ask())
        proposals.append(study.space(ARM).sample(trials[-1]))
        if number >= 2:
            _end_in_optuna(kept, trials[number - 2])
    disconnect(database)
    return proposals


def _end_in_optuna(kept: optuna.Study, trial: optuna.Trial) -> None:
    for step, loss in _reports(trial.number):
        trial.report(loss, step)
    state = OPTUNA_STATES[_ENDS[trial.number % len(_ENDS)][0]]
    if state != TrialState.RUNNING:
        value = _reports(trial.number)[-1][1] if state == TrialState.COMPLETE else None
        kept.tell(trial, value, state=state)


def end(store: Store, number: int) -> None:
    record, state = store.of("search", ARM)[number], _ENDS[number % len(_ENDS)][0]
    for step, loss in _reports(number):
        store.report(record.name, make_report(step, loss))
    if state != "running":
        store.finish(record.name, state)
