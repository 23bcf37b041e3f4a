"""The arms of a study: what each fixes and searches, read from plain values and checked."""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from hylorada import HyLoRADAConfig, InputError, TrainingConfig, field_problems, nearest
from studies.spec.fields import name_problem
from studies.spec.space import Space

ADAPTER_FIELDS = {f.name for f in dataclasses.fields(HyLoRADAConfig)}
TRAINING_FIELDS = {f.name for f in dataclasses.fields(TrainingConfig)}
SET_BY_STUDY = {"max_positions": "it follows block_size"}
_REAL_FIELDS = {
    n
    for c in (HyLoRADAConfig, TrainingConfig)
    for n, hint in get_type_hints(c).items()
    if hint is float
}
_CHECKED_TOGETHER = (
    ("landmarks", "num_landmarks", "landmark_design", "num_buckets"),
    ("landmark_bucketing", "landmark_design", "num_buckets"),
    ("landmark_bucketing", "boundary_lr_scale"),
    ("landmark_bucketing", "boundary_warmup"),
    ("landmark_bucketing", "boundary_diversity"),
    ("landmark_bucketing", "boundary_repulsion"),
    ("share_landmarks", "share_gates", "landmark_design"),
    ("replication_noncausal_pooling", "landmark_design"),
    ("replication_bucket_range", "landmarks", "landmark_design", "landmark_bucketing"),
    ("replication_untrained", "landmarks", "landmark_design", "landmark_bucketing"),
    ("boundary_init", "boundary_warmup"),
    ("shifted_sparse_attention", "attention_group"),
    ("shifted_sparse_attention", "landmarks", "num_landmarks", "landmark_design"),
)
_BUCKETING_FIELDS = (
    *("landmarks", "num_landmarks", "landmark_design", "landmark_bucketing"),
    "bucketing_study",
)
_LONGEST_ARM = 200  # bytes


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A family of configurations that competes with the other arms on an equal budget.

    Attributes:
        config: fields of the adapter or the training that this arm fixes.
        space: fields that it searches.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    space: Space = field(default_factory=lambda: Space({}))


def field_problems_of(where: str, values: Any) -> tuple[list[str], set[str]]:
    """Check adapter and training fields, each by itself.

    Returns:
        The problems, and the names of the wrong fields; ``*`` if the values are not a mapping.
    """
    if not isinstance(values, Mapping):
        return [f"{where} must map fields to values, got {values!r}"], {"*"}
    problems: list[str] = []
    wrong: set[str] = set()
    for name, value in values.items():
        if field_problem := _field_problem(where, name, value):
            problems += field_problem
            wrong.add(str(name))
    return problems, wrong


def _field_problem(where: str, name: Any, value: Any) -> list[str]:
    known = ADAPTER_FIELDS | TRAINING_FIELDS
    if name in SET_BY_STUDY:
        return [f"{where}.{name} can't be set: {SET_BY_STUDY[name]}"]
    if name not in known:
        hint = nearest(str(name), known - SET_BY_STUDY.keys())
        return [f"{where}: unknown field {name!r}; {hint}"]
    owner = HyLoRADAConfig if name in ADAPTER_FIELDS else TrainingConfig
    return [f"{where}.{p}" for p in field_problems(owner, {name: value})]


def parse_common(declared: Any) -> tuple[Space, list[str]]:
    """Read the space of the parameters that all arms share; return it and all problems."""
    if not isinstance(declared, Mapping) or set(declared) - {"space"}:
        return Space({}), [f"common must hold space, got {declared!r}"]
    space, problems, _ = _parse_space("common", declared.get("space", {}))
    if "max_steps" in space.parameters:
        problems.append(
            "common.space: max_steps is not searched (equal budgets); set defaults.max_steps"
        )
    return space, problems


def parse_arms(
    declared: Any, shared: Mapping[str, Any], wrong: set[str], common: Space
) -> tuple[dict[str, Arm], list[str]]:
    """Read all arms.

    Args:
        declared: plain values by name of arm.
        shared: fields that every arm takes over: the study's defaults and its ``max_positions``.
        wrong: names of those that are wrong; ``*`` for all.
        common: space of the parameters that all arms share.

    Returns:
        The arms that can be read, and all problems.
    """
    if not isinstance(declared, Mapping) or not declared:
        return {}, [f"arms must name at least one arm, got {declared!r}"]
    arms: dict[str, Arm] = {}
    problems: list[str] = []
    for name, values in declared.items():
        if problem := _arm_name_problem(name):
            problems.append(problem)
        elif not isinstance(values, Mapping) or set(values) - {"config", "space"}:
            problems.append(f"arms.{name} must hold config and space, got {values!r}")
        else:
            arms[name], arm_problems = _parse_arm(name, values, shared, wrong, common)
            problems += arm_problems
    for name in arms:  # trials of arm "a" in search 1 are named a-s1-0000
        if (twin := re.sub(r"-s\d+$", "", name)) != name and twin in arms:
            problems.append(
                f"arms {twin!r} and {name!r} would give trials of the same name; "
                "rename one of the two"
            )
    return arms, problems


def decide_bucketing(defaults: Mapping[str, Any], arms: Any) -> tuple[Mapping[str, Any], Any]:
    """Replace ``landmark_bucketing: auto`` by what it stands for now, once for all trials.

    Args:
        defaults: the study's, without mistakes.
        arms: plain values by name of arm.

    Returns:
        The defaults without the field if it was auto, and the arms, each of which has it now.

    Raises:
        InputError: There is no verdict to take.
    """
    if not isinstance(arms, Mapping):
        return defaults, arms
    decided = {}
    for name, arm in arms.items():
        config = arm.get("config") if isinstance(arm, Mapping) else None
        fields = {**defaults, **(config if isinstance(config, Mapping) else {})}
        if isinstance(arm, Mapping) and fields.get("landmark_bucketing") == "auto":
            deciding = {k: fields[k] for k in _BUCKETING_FIELDS if k in fields}
            bucketing = HyLoRADAConfig.from_dict(deciding).resolved().landmark_bucketing
            arm = {**arm, "config": {**(config or {}), "landmark_bucketing": bucketing}}
        decided[name] = arm
    return {k: v for k, v in defaults.items() if (k, v) != ("landmark_bucketing", "auto")}, decided


def _arm_name_problem(name: Any) -> str | None:
    """Return what is wrong with an arm's name.

    It must be valid as the name of a study. It is also part of the names of trials, which are
    longer, and of the names of metrics in MLflow.
    """
    if problem := name_problem("the name of an arm", name):
        return problem
    if len(name.encode()) > _LONGEST_ARM or not re.fullmatch(r"[\w .-]+", name):
        return (
            f"the name of an arm must have at most {_LONGEST_ARM} bytes and no combining "
            f"characters, got {name!r}"
        )
    return None


def _parse_arm(
    name: str, values: Mapping[str, Any], shared: Mapping[str, Any], wrong: set[str], common: Space
) -> tuple[Arm, list[str]]:
    config = values.get("config", {})
    problems, wrong_here = field_problems_of(f"arms.{name}.config", config)
    space, space_problems, wrong_values = _parse_space(
        f"arms.{name}", values.get("space", {}), common
    )
    problems += space_problems
    wrong_here |= wrong_values
    if "*" in wrong | wrong_here:
        return Arm(space=space), problems
    if "max_steps" in config or "max_steps" in space.parameters:
        problems.append(
            f"arms.{name}: max_steps is the same for all arms (equal budgets); "
            "set defaults.max_steps"
        )
    for parameter in [p for p in common.parameters if p in space.parameters or p in config]:
        problems.append(
            f"arms.{name}: {parameter} is in common.space, so no arm may set or search it itself"
        )
    whole = Space({**common.parameters, **space.parameters})
    misfits = _misfits(config, whole, shared, wrong | wrong_here)
    return Arm(config=config, space=space), problems + [f"arms.{name}: {p}" for p in misfits]


def _parse_space(
    where: str, declared: Any, earlier: Space | None = None
) -> tuple[Space, list[str], set[str]]:
    """Read a space.

    Returns:
        The space, all problems, and the names of parameters with wrong values (``*``: all).
    """
    try:
        space = Space.from_dict(declared, real=_REAL_FIELDS, earlier=earlier)
    except InputError as error:
        return Space({}), [f"{where}.{p}" for p in error.problems], {"*"}
    problems, wrong = [], set()
    for parameter, values in space.parameters.items():
        for value in values.values.examples():
            value_problems, wrong_value = field_problems_of(f"{where}.space", {parameter: value})
            problems += value_problems
            wrong |= wrong_value
    return space, problems, wrong


def _misfits(
    config: Mapping[str, Any], space: Space, shared: Mapping[str, Any], wrong: set[str]
) -> list[str]:
    """Return problems of values that are valid individually but conflict in some proposal."""
    problems: dict[str, None] = {}
    for values in (point for fields in _CHECKED_TOGETHER for point in space.combinations(fields)):
        merged = {**shared, **config, **values}
        sound = {k: v for k, v in merged.items() if k not in wrong and k in ADAPTER_FIELDS}
        try:
            HyLoRADAConfig.from_dict(sound).resolved()
        except InputError as error:
            problems |= dict.fromkeys(
                p for p in error.problems if not wrong & set(re.findall(r"\w+", p))
            )
    return list(problems)
