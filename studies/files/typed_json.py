"""Checks of JSON values against annotations; without torch, because trial processes use them."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Literal, get_args, get_origin


def typed(kind: Any, value: Any, name: str = "all of it") -> Any:
    """Convert a JSON value to its annotated type: a dataclass, a tuple, a mapping or a plain type.

    Raises:
        ValueError: the value has another type; the message names the field.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(value, dict):
        return _filled(kind, value)
    if origin is UnionType:
        return None if value is None else typed(inner[0], value, name)
    if origin is tuple and isinstance(value, list):
        return tuple(typed(inner[0], v, name) for v in value)
    if origin is Mapping and isinstance(value, dict):
        return {k: typed(inner[1], v, f"{name}.{k}") for k, v in value.items()}
    plain = (
        value in inner
        if origin is Literal
        else type(value) in ((int, float) if kind is float else (kind,))
    )
    if not plain and kind is not Any:
        raise ValueError(f"{name} can't be {value!r}")
    return value


def _filled(kind: Any, values: Mapping[str, Any]) -> Any:
    known = {f.name: f for f in fields(kind)}
    if unknown := values.keys() - known:
        raise ValueError(f"unknown field {min(unknown)!r}")
    needed = {
        name for name, f in known.items() if f.default is MISSING and f.default_factory is MISSING
    }
    if lost := needed - values.keys():
        raise ValueError(f"no field {min(lost)!r}")
    return kind(**{name: typed(known[name].type, value, name) for name, value in values.items()})
