"""Trials that users add to a study: their parameters, seeds and records.

The verdict of a study rests on matched blocks, in which every arm gets one trial at the same common
values. A trial of a user's own would be one more try for its arm, so it never becomes a winner, and
neither Optuna's sampler nor ASHA sees it. It has the seeds of the trial that it changes: the
difference between the two comes from the change, not from luck.
"""

from collections.abc import Mapping
from typing import Any

from hylorada import InputError, nearest
from studies.spec.arms import field_problems_of
from studies.spec.common_values import search_seeds
from studies.spec.parameters import holds
from studies.spec.published import REPLICATION
from studies.spec.study import Study
from studies.trials.by_hand.requests import Addition, number_of
from studies.trials.records import Record

SOURCES = ("search", "added")  # stages whose trials can be cloned


def plan_addition(
    study: Study,
    records: Mapping[str, Record],
    changes: Mapping[str, Any],
    *,
    arm: str | None = None,
    clone: str | None = None,
) -> Addition:
    """Return a trial that a user wants to add, after all checks.

    Args:
        study: The study.
        records: Its records.
        changes: Adapter and training fields to set.
        arm: The arm whose defaults are changed; None if a trial is cloned.
        clone: The trial whose configuration is changed; None for an arm's defaults.

    Raises:
        InputError: All problems, each with what is allowed.
    """
    problems = _place_problems(study, records, arm, clone) + _change_problems(study, changes)
    if problems:
        raise InputError(problems)
    source = records[clone] if clone is not None else None
    name = source.arm if source is not None else str(arm)
    params = _params(study, name, source.params if source is not None else {}, changes)
    study.configs(name, params)  # raises if the values don't fit together
    return Addition(name, clone or "", params)


def added_record(
    study: Study, records: Mapping[str, Record], name: str, addition: Addition
) -> Record:
    """Return the record of an added trial before it begins.

    Args:
        study: The study.
        records: Its records.
        name: Name of the trial.
        addition: The trial as the user requested it.

    Raises:
        InputError: The study has no such arm or trial, or the values don't fit together.
    """
    source = records.get(addition.clone)
    if addition.arm not in study.arms or (addition.clone and source is None):
        raise InputError(f"study {study.name!r} has no arm or trial for {name}")
    adapter, training = study.configs(addition.arm, addition.params)
    seed, data_seed = (
        (source.seed, source.data_seed) if source else search_seeds(study, addition.arm, 0, 0)
    )
    return Record(
        name=name,
        arm=addition.arm,
        stage="added",
        winner=addition.clone,
        number=number_of(name),
        params=addition.params,
        adapter=adapter.to_dict(),
        training=training.to_dict(),
        seed=seed,
        data_seed=data_seed,
        search=source.search if source else 0,
    )


def _place_problems(
    study: Study, records: Mapping[str, Record], arm: str | None, clone: str | None
) -> list[str]:
    """Return the problems with the choice of an arm or of a trial to clone."""
    if (arm is None) == (clone is None):
        return ["name either the arm of the new trial (--arm) or a trial to change (--clone)"]
    if clone is not None:
        known = [r.name for r in records.values() if r.stage in SOURCES]
        if clone not in known:
            hint = nearest(clone, known) if known else "it has none yet"
            return [f"study {study.name!r} has no search trial {clone!r}; {hint}"]
        arm = records[clone].arm
    if arm not in study.arms:
        return [f"study {study.name!r} has no arm {arm!r}; {nearest(str(arm), study.arms)}"]
    if f"{arm}-added" in study.arms:
        return [f"arm {arm!r} can't have added trials: arm '{arm}-added' has trials of that name"]
    return []


def _change_problems(study: Study, changes: Mapping[str, Any]) -> list[str]:
    """Return the problems with the fields that a user sets."""
    if not changes:
        return ["set at least one field, such as --set learning_rate=3e-4"]
    problems, wrong = field_problems_of("set", changes)
    fixed = {"max_steps": "all trials of a study have the same number of steps"}
    if study.epochs is not None:
        fixed["batch_size"] = "a study with epochs has one batch size"
    problems += [f"set.{f} can't be set: {why}" for f, why in fixed.items() if f in changes]
    design = str(changes.get("landmark_design", ""))
    if ".py:" in design and design.rpartition(":")[0] not in study.designs:
        problems.append(
            f"set.landmark_design {design!r} is no code of this study; put it into a study of its "
            "own"
        )
    if study.definition != REPLICATION:
        problems += [
            f"set.{field} repeats a fault of the published code, which only the study "
            f"{REPLICATION!r} may do"
            for field in changes
            if field.startswith("replication_") and field not in wrong
        ]
    return problems


def _params(
    study: Study, arm: str, base: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the point of an arm's space with these values, and the values outside of the space.

    A parameter whose condition no longer holds is left out, unless the user has set it.
    """
    wanted = {**base, **changes}
    filled = {**study.point(arm, wanted), **wanted}
    space = study.space(arm).parameters
    params: dict[str, Any] = {}
    for name, parameter in space.items():
        if parameter.when is None or holds(parameter.when, params):
            params[name] = filled.get(name, parameter.values.examples()[0])
    others = {n: v for n, v in wanted.items() if n not in space or n in changes}
    return {**params, **others}
