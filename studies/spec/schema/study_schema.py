"""JSON Schema of study files, by which editors check and complete them.

Types, limits, defaults and descriptions are those of the declarations: :class:`Study`,
:class:`hylorada.HyLoRADAConfig` and :class:`hylorada.TrainingConfig`. A file may hold any part of a
study, so no field is required, and rules that join several fields are left to ``hylorada show``.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, get_type_hints

from studies.spec.fields import GRID_AXES, LIST_LIMITS, field_infos, field_types, name_problem
from studies.spec.proposals.start_entries import ARMS, FROM
from studies.spec.schema.config_fields import config_fields
from studies.spec.schema.json_types import Schema, limits_schema, type_schema
from studies.spec.schema.spaces import closed, reference, references, space_definitions
from studies.spec.study import Study

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_LARGEST = 2**63 - 1
# All of ASCII but letters, digits, spaces and `_-.`; no space at an end, and neither `.` nor `..`.
_ODD = r"\x00-\x1f!" + '"' + r"#$%&'()*+,/:;<=>?@\[\\\]^`{|}~\x7f"
_NAME: Schema = {
    "pattern": rf"^(?!\.\.?$)[^ {_ODD}]([^{_ODD}]*[^ {_ODD}])?$",
    "maxLength": 100,
}


def study_schema(definitions: Iterable[str]) -> Schema:
    """Return the schema of a study file.

    Args:
        definitions: names of the study definitions that there are.
    """
    fields = config_fields()
    infos = field_infos(Study)
    structured = _structured()
    properties = {
        name: {"description": infos[name].text, **(structured.get(name) or _plain(name))}
        for name in infos
    }
    properties["definition"]["examples"] = list(definitions)
    per_arm = [name for name in fields if name != "max_steps"]  # all arms have an equal budget
    searched = space_definitions({name: fields[name] for name in per_arm})
    arm = closed({"config": closed(references(per_arm)), "space": reference("space")})
    properties["defaults"] |= closed(references(fields))
    properties["start"] |= _start(per_arm)
    properties["designs"] |= {"type": "object", "maxProperties": 0}  # code, which files can't hold
    title = {"$schema": DIALECT, "title": "A study of hylorada"}
    return {**title, **closed(properties), "$defs": {**fields, **searched, "arm": arm}}


def _start(fields: Iterable[str]) -> Schema:
    """Return the schema of configurations to begin with, some for one arm, some of a study."""
    values = references(fields)
    of_arms = {"type": "object", "additionalProperties": closed(values)}
    entry = closed({**values, FROM: {"type": "string", "minLength": 1}, ARMS: of_arms})
    return {"type": "array", "items": {**entry, "minProperties": 1}, "default": []}


def _plain(name: str) -> Schema:
    """Return the schema of a field of a plain type; empty for any other field."""
    if name not in field_types(Study):
        return {}
    info, kind = field_infos(Study)[name], type_schema(get_type_hints(Study)[name])
    if info.one_of:
        kind = {"enum": list(info.one_of)}
    if "integer" in kind.get("type", ()):
        high = _LARGEST if info.at_most is None else info.at_most
        kind |= limits_schema(info.at_least, high)
    else:
        kind |= limits_schema(info.at_least, info.at_most)
    return {**kind, **(_NAME if info.check is name_problem else {}), **_default(name)}


def _default(name: str) -> Schema:
    default = next(f.default for f in dataclasses.fields(Study) if f.name == name)
    return {} if default is dataclasses.MISSING else {"default": default}


def _structured() -> dict[str, Schema]:
    """Return the schema of each field that holds a list or a mapping, by name."""
    factor, number = {"type": "number", "exclusiveMinimum": 0}, {"type": "integer", "minimum": 0}
    axes = {axis: _distinct(type_schema(kind), minItems=1) for axis, kind in GRID_AXES.items()}
    pair = {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2}
    lists = {
        "profile": _distinct(factor, contains={"const": 1}, default=[1.0]),
        "looks": _distinct({"type": "integer", "minimum": 2}, default=[]),
        "seed_list": _distinct({**number, "maximum": 2**32 - 1}, default=[]),
        "comparisons": _distinct({**pair, "uniqueItems": True}),
    }
    for name, most in LIST_LIMITS.items():
        lists[name]["maxItems"] = most
    arms = {"type": "object", "additionalProperties": reference("arm"), "propertyNames": _NAME}
    common = closed({"space": reference("space")})
    return {**lists, "common": common, "arms": arms, "defaults": {}, "grid": closed(axes)}


def _distinct(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, "uniqueItems": True, **more}
