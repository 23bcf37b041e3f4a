"""Checks of all points of a study before the first one is trained."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hylorada import HyLoRADAConfig
from studies.files.folder_files import stored_study
from studies.spec.arms import ADAPTER_FIELDS, TRAINING_FIELDS, Arm
from studies.spec.published import REPLICATION
from studies.spec.study import Study

_BUCKET_FIELDS = (
    *("landmarks", "num_landmarks", "landmark_design", "landmark_bucketing"),
    *("num_buckets", "bucket_spacing"),
)
_STRUCTURE = (*_BUCKET_FIELDS, "position_bias", "shifted_sparse_attention")
# The fields that decide which parameters an adapter has and where they enter the base.
_PROBED = (
    *("landmarks", "landmark_design", "landmark_bucketing", "share_landmarks", "share_gates"),
    *("use_dora", "position_bias", "target_modules", "shifted_sparse_attention"),
)
# For each field that only some adapters use: whether an adapter uses it.
_MATTERS: Mapping[str, Callable[[HyLoRADAConfig], bool]] = {
    "position_bias_buckets": lambda c: c.position_bias,
    "attention_group": lambda c: c.shifted_sparse_attention,
    **dict.fromkeys(("num_landmarks", "landmark_design"), lambda c: c.landmarks),
    **dict.fromkeys(
        (
            *("landmark_dropout", "share_landmarks", "share_gates"),
            "replication_noncausal_pooling",
        ),
        lambda c: c.has_landmarks,
    ),
    **dict.fromkeys(
        ("landmark_bucketing", "bucketing_study", "num_buckets"), lambda c: c.has_buckets
    ),
    **dict.fromkeys(
        ("bucket_spacing", "replication_bucket_range"),
        lambda c: c.has_buckets and not c.has_soft_buckets and c.num_buckets > 1,
    ),
    **dict.fromkeys(("temperature", "boundary_init"), lambda c: c.has_soft_buckets),
    "replication_untrained": lambda c: c.learns_boundaries,
    **dict.fromkeys(
        ("boundary_lr_scale", "boundary_warmup", "boundary_diversity", "boundary_repulsion"),
        lambda c: c.learns_boundaries,
    ),
}


def target_modules(study: Study) -> set[str]:
    """Return the names of target modules in all possible proposals.

    A proposal that names no modules, and so leaves the choice to the base, adds none.
    """
    return {
        name
        for arm in study.arms
        for c in _configs(study, arm, ("target_modules",))
        for name in c.target_modules or ()
    }


def may_set(study: Study, field: str) -> bool:
    """Return whether a study sets or searches a field."""
    searched = (study.space(arm).parameters for arm in study.arms)
    fixed = (arm.config for arm in study.arms.values())
    return any(field in fields for fields in (study.defaults, *fixed, *searched))


def replication_problems(study: Study) -> list[str]:
    """Return a problem for each fault of the published code that another study would repeat."""
    if study.definition == REPLICATION:
        return []
    known = (f for f in sorted(ADAPTER_FIELDS | TRAINING_FIELDS) if f.startswith("replication_"))
    return [
        f"{field} repeats a fault of the published code, which only the study {REPLICATION!r} "
        f"may do; leave it out, or use `hylorada run {REPLICATION}`"
        for field in known
        if may_set(study, field)
    ]


def first_points(study: Study, arm: str) -> list[dict[str, Any]]:
    """Return whole points of an arm's space, one for each adapter structure it can propose.

    They take the shared defaults wherever these lie inside the space.
    """
    space, points = study.space(arm), []
    for values in space.combinations(_PROBED):
        structure = {k: v for k, v in values.items() if k in _PROBED}
        point = space.first({**study.fields(arm), **structure})
        if point not in points:
            points.append(point)
    return points


def new_start_problems(study: Study, folder: Path | None) -> list[str]:
    """Return the problems with start values that the study as stored does not have already.

    Earlier versions began studies with such values, and these must resume.

    Args:
        study: the requested study.
        folder: folder of the study if it has been begun; read only where there are problems.
    """
    problems = start_problems(study)
    if not problems or folder is None:
        return problems
    accepted = start_problems(Study.from_dict(stored_study(folder / "study.json")))
    return [problem for problem in problems if problem not in accepted]


def start_problems(study: Study) -> list[str]:
    """Return a problem for each value given for a searched field that no trial would ever have.

    Library defaults are not reported, because the user has not set them. A field that only the
    study of the published code may set is a problem too.
    """
    problems = replication_problems(study)
    problems += [
        f"{_outside(study, field, allowed, arms)}; the search starts from the defaults, "
        "so change one of the two"
        for field, allowed, arms in _dropped_defaults(study)
        if not _takers(study, field)
    ]
    for name, arm in study.arms.items():
        problems += [
            f"arms.{name}: {field} is both fixed (config: {arm.config[field]!r}) and searched "
            f"(space: {arm.space.parameters[field].values}); remove one of the two"
            for field in _fixed_and_searched(arm)
        ]
    return problems


def _outside(study: Study, field: str, allowed: str, arms: list[str]) -> str:
    where = f"arm {arms[0]}" if len(arms) == 1 else f"arms {', '.join(arms)}"
    value = study.defaults[field]
    return f"defaults.{field} {value!r} is outside the searched range {allowed} of {where}"


def _dropped_defaults(study: Study) -> list[tuple[str, str, list[str]]]:
    """Return each default outside a searched range, with the range and the arms that search it."""
    arms_by_range: dict[tuple[str, str], list[str]] = {}
    for name in study.arms:
        for field, allowed in study.space(name).outside(study.defaults).items():
            arms_by_range.setdefault((field, str(allowed)), []).append(name)
    return [(*key, arms) for key, arms in arms_by_range.items()]


def _takers(study: Study, field: str) -> list[str]:
    """Return the arms in whose trials a default makes a difference."""
    matters = _MATTERS.get(field, lambda _: True)
    open_arms = [
        n for n, arm in study.arms.items() if field not in {*study.space(n).parameters, *arm.config}
    ]
    return [name for name in open_arms if any(map(matters, _configs(study, name, _STRUCTURE)))]


def _fixed_and_searched(arm: Arm) -> list[str]:
    """Return the fields that an arm both fixes and searches.

    A decided ``landmark_bucketing: auto`` is not one of them, although it becomes part of the
    config.
    """
    both = [field for field in arm.config if field in arm.space.parameters]
    return [
        f
        for f in both
        if f != "landmark_bucketing" or not arm.space.parameters[f].values.contains(arm.config[f])
    ]


def notes(study: Study) -> list[str]:
    """Return a note for each setting that is legal but may not be what the user meant."""
    lines = [
        f"{_outside(study, field, allowed, arms)}; it applies only to {', '.join(takers)}"
        for field, allowed, arms in _dropped_defaults(study)
        if (takers := _takers(study, field))
    ]
    for arm in study.arms:
        lines += _inactive_starts(study, arm)
        worst = max(_configs(study, arm, _BUCKET_FIELDS), key=_empty_log_buckets)
        if empty := _empty_log_buckets(worst):
            lines.append(
                f"arms.{arm}: {empty} of {worst.num_buckets} log buckets hold no position of a "
                f"block of {study.block_size}; from {4 * worst.num_buckets} positions on each "
                "holds one"
            )
    return lines


def _inactive_starts(study: Study, arm: str) -> list[str]:
    """Return a note for each default that the arm's trial with the defaults does not search."""
    space = study.space(arm)
    active = space.first({**study.defaults, **study.labels(arm, study.fields(arm))})
    return [
        f"defaults.{field} {study.defaults[field]!r}: the trial of arms.{arm} with the defaults "
        f"does not search it; it is searched when {parameter.when[0]} is {parameter.when[1]!r}"
        for field, parameter in space.parameters.items()
        if field in study.defaults and parameter.when is not None and field not in active
    ]


def _configs(study: Study, arm: str, fields: tuple[str, ...]) -> list[HyLoRADAConfig]:
    """Return an arm's adapters, one for each combination of values that can reveal a mistake."""
    return [study.configs(arm, point)[0] for point in study.space(arm).combinations(fields)]


def _empty_log_buckets(config: HyLoRADAConfig) -> int:
    """Return how many fixed buckets of logarithmic width hold no position of a block."""
    from hylorada.adapters.buckets import fixed_edges  # imports torch

    if not config.has_buckets or config.has_soft_buckets or config.bucket_spacing != "log":
        return 0
    if config.replication_bucket_range is not None:
        return 0
    assert config.max_positions is not None
    starts = {0, *fixed_edges(config.num_buckets, config.max_positions, "log")}
    return config.num_buckets - sum(start < config.max_positions for start in starts)
