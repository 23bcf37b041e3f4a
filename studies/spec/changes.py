"""How a requested study differs from the one that its folder stores."""

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from studies.files.own_designs import source_digests
from studies.spec.study import FREE, GROWING, Study


def changes(before: Mapping[str, Any], study: Study) -> list[str]:
    """Return what a stored study and a requested one differ in, apart from what may change."""
    then, now = _both(before, study)
    return [
        f"{key} was {_shown(then, key)}, now {_shown(now, key)}" for key in differing(before, study)
    ]


def differing(before: Mapping[str, Any], study: Study) -> list[str]:
    """Return the dotted names of the settings that :func:`changes` describes."""
    then, now = _both(before, study)
    return [
        key
        for key in sorted(then.keys() | now.keys())
        if key not in FREE and (key in then, then.get(key)) != (key in now, now.get(key))
    ]


def is_same(stored: Mapping[str, Any], study: Study) -> bool:
    """Return whether a requested study is the stored one in all settings, the free ones too."""
    then, now = _both(as_requested(stored, study), study)
    return then == now


def as_requested(stored: Mapping[str, Any], study: Study) -> dict[str, Any]:
    """Return a stored study with what the text decides left open where the request leaves it open.

    The folder stores the separator that "auto" stands for, and the steps that epochs take.
    """
    values = dict(stored)
    if study.document_separator == "auto":
        values["document_separator"] = "auto"
    if study.epochs is None:
        return values
    if "max_steps" not in study.defaults:
        values["defaults"] = {k: v for k, v in values["defaults"].items() if k != "max_steps"}
    for field in ("eval_every", "grace_steps"):
        if getattr(study, field) is None:
            values[field] = None
    return values


def _both(before: Mapping[str, Any], study: Study) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of both studies by dotted name, with equal names for equal files."""
    then, now = (dict(_leaves(json.loads(json.dumps(v)))) for v in (before, study.to_dict()))
    for key in ("model", "data"):
        # Only the last part of a path is compared: the path may be relative to another folder, or
        # the files may have moved. `bind_inputs` compares the contents.
        basename = os.path.basename(str(then.get(key)))
        if os.path.exists(now[key]) and basename == os.path.basename(now[key]):
            then[key] = now[key]
    return {**then, **_digests(then)}, {**now, **_digests(now)}


def _digests(values: Mapping[str, Any]) -> dict[str, str]:
    """Return checksums in place of the sources of a study's own designs."""
    sources = {k: v for k, v in values.items() if k.startswith("designs.")}
    return {file: f"source {sha}" for file, sha in source_digests(sources).items()}


def _shown(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "absent"


def fewer(before: Mapping[str, Any], study: Study) -> list[str]:
    """Return in what a requested study is smaller than the stored one."""
    return [
        f"{key} was {before[key]}, now {now}; a study can't shrink: give {before[key]} or more"
        for key, now in ((key, getattr(study, key)) for key in GROWING)
        if now < before.get(key, 0)
    ]


def _leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values that are not mappings with their dotted path."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value
