"""Checks of JSON values against annotations; without torch, because trial processes use them."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeAlias, get_args, get_origin

_Convert: TypeAlias = Callable[[Any, str], Any]  # from a JSON value and its name


def typed(kind: Any, value: Any, name: str = "all of it") -> Any:
    """Convert a JSON value to its annotated type: a dataclass, a tuple, a mapping or a plain type.

    Raises:
        ValueError: the value has another type; the message names the field.
    """
    return _converter(kind)(value, name)


@cache
def _converter(kind: Any) -> _Convert:
    """Return the conversion to a type.

    It is made once: a study has tens of thousands of files, each with a hundred values.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value, _: value
    if is_dataclass(kind):
        return _to_dataclass(kind)
    if origin is UnionType:
        return _to_optional(_converter(inner[0]))
    if origin is tuple:
        return _to_tuple(inner[0])
    if origin is Mapping:
        return _to_mapping(inner[1])
    return _to_plain(kind)


def _to_plain(kind: Any) -> _Convert:
    allowed = get_args(kind) if get_origin(kind) is Literal else None
    types = _plain_types(kind) or {kind}

    def convert(value: Any, name: str) -> Any:
        if type(value) not in types if allowed is None else value not in allowed:
            raise _wrong(name, value)
        return value

    return convert


def _plain_types(kind: Any) -> frozenset[type]:
    """Return the types of values that are as a plain annotation says; none for any other one."""
    if get_origin(kind) is UnionType:
        return _plain_types(get_args(kind)[0]) | {type(None)}
    return frozenset({float: (float, int), int: (int,), str: (str,), bool: (bool,)}.get(kind, ()))


def _to_optional(convert: _Convert) -> _Convert:
    return lambda value, name: None if value is None else convert(value, name)


def _to_tuple(kind: Any) -> _Convert:
    convert, plain = _converter(kind), _plain_types(kind)

    def convert_all(values: Any, name: str) -> Any:
        if not isinstance(values, list):
            raise _wrong(name, values)
        if plain.issuperset(map(type, values)):
            return tuple(values)
        return tuple([convert(value, name) for value in values])

    return convert_all


def _to_mapping(kind: Any) -> _Convert:
    """Return the conversion to a mapping with values of a type."""
    convert, plain = _converter(kind), _plain_types(kind)

    def convert_all(values: Any, name: str) -> Any:
        if not isinstance(values, dict):
            raise _wrong(name, values)
        if kind is Any or plain.issuperset(map(type, values.values())):
            return values
        return {key: convert(value, f"{name}.{key}") for key, value in values.items()}

    return convert_all


def _to_dataclass(kind: Any) -> _Convert:
    kinds: dict[str, Any] = {f.name: f.type for f in fields(kind)}
    converters = {name: _converter(of_field) for name, of_field in kinds.items()}
    plain = {name: _plain_types(of_field) for name, of_field in kinds.items()}
    needed = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}

    def convert(values: Any, name: str) -> Any:
        if not isinstance(values, dict):
            raise _wrong(name, values)
        if unknown := values.keys() - converters.keys():
            raise ValueError(f"unknown field {min(unknown)!r}")
        if lost := needed - values.keys():
            raise ValueError(f"no field {min(lost)!r}")
        converted = dict(values)
        for field, value in values.items():
            if type(value) not in plain[field]:
                converted[field] = converters[field](value, field)
        return kind(**converted)

    return convert


def _wrong(name: str, value: Any) -> ValueError:
    return ValueError(f"{name} can't be {value!r}")
