"""Changes to a study, in YAML: a file with fields, and ``--set a.b=value``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hylorada import InputError
from hylorada.errors import nearest
from studies.spec.arms import ADAPTER_FIELDS, SET_BY_STUDY, TRAINING_FIELDS
from studies.spec.fields import GRID_AXES, field_infos
from studies.spec.plain_yaml import parse_yaml, reason
from studies.spec.study import Study

_SEARCHABLE = (ADAPTER_FIELDS | TRAINING_FIELDS) - SET_BY_STUDY.keys()


def read_file(path: Path) -> dict[str, Any]:
    """Read the fields of a study file.

    Raises:
        InputError: The file can't be read or holds no fields.
    """
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--config {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"--config {path}: not UTF-8 at byte {error.start}") from error
    except yaml.YAMLError as error:
        raise InputError(f"--config {path}: not YAML: {reason(error)}") from error
    if not isinstance(values, dict) or not all(isinstance(k, str) for k in values):
        raise InputError(f"--config {path}: must hold fields and values at the top level")
    return values


def merge(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` with ``changes``.

    Mappings are merged key by key, but the declaration of a searched parameter is replaced whole.
    """
    result = dict(values)
    for key, value in changes.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and not _is_searched(old):
            value = merge(old, value)
        result[key] = value
    return result


def _is_searched(declared: Mapping[str, Any]) -> bool:
    """Return whether a mapping declares the values of a searched parameter."""
    return not {"low", "choice"}.isdisjoint(declared)


def override(
    values: Mapping[str, Any], assignments: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Apply ``a.b=value`` assignments (values in YAML) to a study's plain values.

    Returns:
        The changed values, and a problem for each assignment that was not applied, because it has
        no ``=``, its value is not YAML, or its path does not exist. For a path that does not
        exist, the problem suggests the nearest name.
    """
    result = _copy(values)
    problems: list[str] = []
    for assignment in assignments:
        path, separator, text = assignment.partition("=")
        try:
            if not separator:
                raise InputError(f"--set {assignment}: write field=value")
            _assign(result, path.strip(), _parse_value(path, text))
        except InputError as error:
            problems += error.problems
    arms = result.get("arms")
    spaces = [result.get("common"), *(arms.values() if isinstance(arms, dict) else ())]
    for arm in spaces:
        if isinstance(arm, dict) and isinstance(arm.get("space"), dict):
            _drop_inactive(arm["space"])
    return result, problems


def read_fields(assignments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the fields that ``field=value`` assignments (values in YAML) set, and all problems."""
    fields: dict[str, Any] = {}
    problems: list[str] = []
    for assignment in assignments:
        name, separator, text = assignment.partition("=")
        try:
            if not separator:
                raise InputError(f"--set {assignment}: write field=value")
            fields[name.strip()] = _parse_value(name, text)
        except InputError as error:
            problems += error.problems
    return fields, problems


def _drop_inactive(space: dict[str, Any]) -> None:
    """Remove each parameter whose condition can't hold because another parameter is a constant."""
    for name, declared in list(space.items()):
        when = declared.get("when") if isinstance(declared, dict) else None
        if isinstance(when, dict) and len(when) == 1:
            ((other, value),) = when.items()
            fixed = space.get(other)
            if other in space and not isinstance(fixed, dict | list) and fixed != value:
                del space[name]


def _copy(values: Any) -> Any:
    """Return a copy whose parts are all separate.

    ``deepcopy`` would let two arms share one declaration, and a change to one would change both.
    """
    if isinstance(values, Mapping):
        return {key: _copy(value) for key, value in values.items()}
    return [_copy(value) for value in values] if isinstance(values, list | tuple) else values


def _parse_value(path: str, text: str) -> Any:
    try:
        return parse_yaml(text)
    except yaml.YAMLError as error:
        raise InputError(f"--set {path}: {text!r} is not a YAML value: {reason(error)}") from error


def _assign(values: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    target: Any = values
    for depth, key in enumerate(parents):
        where = ".".join(parents[:depth]) or "the study"
        if not isinstance(target, dict):
            raise InputError(f"--set {path}: {where} is a value and has no fields")
        if key not in target and not _may_be_new(depth, key, parents):
            allowed = _SEARCHABLE if where.endswith(".space") else {str(k) for k in target}
            raise InputError(f"--set {path}: {where} has no {key!r}; {nearest(key, allowed)}")
        target = target.get(key, {})
    if not isinstance(target, dict):
        raise InputError(f"--set {path}: {'.'.join(parents)} is a value and has no fields")
    allowed = _assignable(target, parents)
    if last not in allowed:
        hint = nearest(last, allowed)
        if not parents and last in _SEARCHABLE:  # of all arms; a study has no such field itself
            hint = f"write {_place_of(last, values)}"
        raise InputError(f"--set {path}: unknown {last!r}; {hint}")
    for key in parents:
        values = values.setdefault(key, {})
    values[last] = value


def _place_of(field: str, values: Mapping[str, Any]) -> str:
    """Return how to set a field of all arms: where it is searched, or else among the defaults."""
    common, arms = values.get("common"), values.get("arms")
    named = arms if isinstance(arms, Mapping) else {}
    holders = {"common": common, **{f"arms.{name}": arm for name, arm in named.items()}}
    searched = [
        f"{place}.space.{field}"
        for place, holder in holders.items()
        if isinstance(holder, Mapping)
        and isinstance(space := holder.get("space"), Mapping)
        and field in space
    ]
    return " and ".join(searched) or f"defaults.{field} to set it for all arms"


def _may_be_new(depth: int, key: str, parents: Sequence[str]) -> bool:
    """Return whether an assignment may create this part of its path.

    It may create an arm's config or space, and a parameter that has not been searched so far.
    """
    if parents[0] == "grid":
        return depth == 0
    if parents[0] == "common":
        return depth == 0 or (depth == 1 and key == "space") or (depth == 2 and key in _SEARCHABLE)
    if parents[0] != "arms" or depth < 2:
        return False
    if depth == 2:
        return key in ("config", "space")
    return depth == 3 and parents[2] == "space" and key in _SEARCHABLE


def _assignable(target: Mapping[Any, Any], parents: Sequence[str]) -> set[str]:
    if not parents:
        return set(field_infos(Study))
    if parents[-1] in ("defaults", "config", "space"):
        return _SEARCHABLE
    if parents == ["common"]:
        return {"space"}
    if parents == ["grid"]:
        return set(GRID_AXES)
    if len(parents) >= 3 and parents[-2] == "space":
        kinds = ({"choice", "when"}, {"low", "high", "log", "when"})
        return set().union(*[kind for kind in kinds if target.keys() <= kind])
    return {str(k) for k in target} | ({"config", "space"} if len(parents) == 2 else set())
