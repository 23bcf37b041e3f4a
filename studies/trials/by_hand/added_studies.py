"""Added trials in ``optuna.db``: for each arm an Optuna study named ``NAME / ARM / added``.

They stay out of the arm's own study, whose sampler would learn from them. A trial is written once,
at its end, with the user attributes of every trial, and ``added``, ``clone`` and ``set`` (the
values that the user has chosen and that the arm's space does not hold).
"""

from typing import Any

import optuna
from optuna.trial import FixedTrial, TrialState, create_trial

from studies.spec.study import Study
from studies.trials.optuna_database import OPTUNA_STATES, attributes, create_study
from studies.trials.records import ADDED, Record, is_finite


def added_study(storage: optuna.storages.RDBStorage, study: Study, arm: str) -> optuna.Study | None:
    """Return the Optuna study of an arm's added trials; None if there is none."""
    if _title(study, arm) not in optuna.get_all_study_names(storage):
        return None
    return optuna.load_study(study_name=_title(study, arm), storage=storage)


def _title(study: Study, arm: str) -> str:
    return f"{study.name} / {arm}{ADDED}"


def keep_added(storage: optuna.storages.RDBStorage, study: Study, record: Record) -> None:
    """Write an added trial that has ended to Optuna's database, unless it is there already."""
    kept = added_study(storage, study, record.arm)
    if kept is None:
        kept = create_study(storage, _title(study, record.arm))
    if all(t.user_attrs.get("name") != record.name for t in kept.get_trials(deepcopy=False)):
        kept.add_trial(_frozen(study, record))


def _frozen(study: Study, record: Record) -> optuna.trial.FrozenTrial:
    state = OPTUNA_STATES[record.state]
    values = {r.step: nll for r in record.reports if (nll := r.metrics.get("eval/nll")) is not None}
    has_value = state != TrialState.FAIL and is_finite(record.nll)
    params, distributions = _inside(study, record)
    outside = {name: value for name, value in record.params.items() if name not in params}
    return create_trial(
        state=state,
        value=record.nll if has_value else None,
        params=params,
        distributions=distributions,
        intermediate_values=values,
        user_attrs=attributes(record) | {"added": True, "clone": record.winner, "set": outside},
    )


def _inside(study: Study, record: Record) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters inside the arm's space, and their distributions, as Optuna has them."""
    labels, distributions = dict[str, Any](), dict[str, Any]()
    for name, parameter in study.space(record.arm).parameters.items():
        value = record.params.get(name)
        if name not in record.params or not parameter.values.contains(value):
            continue
        trial = FixedTrial({name: parameter.values.label(value)})
        parameter.values.suggest(name, trial)
        labels |= trial.params
        distributions |= trial.distributions
    return labels, distributions
