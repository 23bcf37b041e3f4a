"""How a study that is asked for differs from the one that its folder holds."""

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from studies.spec.study import GROWING, Study

FREE = (*GROWING, "subject", "margin", "looks")  # what may change of a study that has been run


def changes(before: Mapping[str, Any], study: Study) -> list[str]:
    """Return what differs between a stored study and one asked for, but for what may change."""
    then, now = dict(_leaves(before)), dict(_leaves(json.loads(json.dumps(study.to_dict()))))
    for key in (
        "model",
        "data",
    ):  # a path may have been told from elsewhere, or all of it moved: see `bind_inputs`
        if os.path.exists(now[key]) and os.path.basename(str(then.get(key))) == os.path.basename(
            now[key]
        ):
            then[key] = now[key]
    return [
        f"{key} was {_shown(then, key)}, now {_shown(now, key)}"
        for key in sorted(then.keys() | now.keys())
        if key not in FREE and (key in then, then.get(key)) != (key in now, now.get(key))
    ]


def _shown(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "absent"


def fewer(before: Mapping[str, Any], study: Study) -> list[str]:
    """What is asked for less than a stored study has."""
    return [
        f"{key} was {before[key]}, now {now}; what has been run stays: ask for as many or more"
        for key, now in ((key, getattr(study, key)) for key in GROWING)
        if now < before.get(key, 0)
    ]


def _leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The values that are no mappings, by their dotted path."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value
