"""JSON Schema of the adapter's and the training's fields, read off their configuration classes."""

from typing import Any, get_args, get_type_hints

from hylorada import HyLoRADAConfig, TrainingConfig
from hylorada.base_models.builtin_names import ALL_LINEAR
from hylorada.config_values import number_limits
from studies.spec.arms import SET_BY_STUDY
from studies.spec.schema.json_types import Schema, attribute_texts, limits_schema, type_schema

_ALONE = {"if": {"contains": {"const": ALL_LINEAR}}, "then": {"maxItems": 1}}
_MORE: dict[str, Schema] = {"target_modules": {**_ALONE, "examples": [[ALL_LINEAR]]}}


def config_fields() -> dict[str, Schema]:
    """Return the schema of each adapter or training field that a study may set, by name."""
    return {
        name: schema
        for cls in (HyLoRADAConfig, TrainingConfig)
        for name, schema in _fields_of(cls).items()
        if name not in SET_BY_STUDY
    }


def number_schema(field: Schema) -> Schema | None:
    """Return the schema of a field's numbers alone, without null; None if it holds no numbers."""
    kinds = [kind for kind in _kinds(field) if kind in ("integer", "number")]
    limits: Schema = {k: field[k] for k in ("minimum", "maximum") if k in field}
    return {"type": kinds[0], **limits} if kinds else None


def holds_lists(field: Schema) -> bool:
    """Return whether a field's values may be lists."""
    return "array" in _kinds(field)


def _kinds(field: Schema) -> list[str]:
    kinds = field.get("type", [])
    return [kinds] if isinstance(kinds, str) else kinds


def _fields_of(cls: type[HyLoRADAConfig] | type[TrainingConfig]) -> dict[str, Schema]:
    texts, defaults = attribute_texts(cls), cls().to_dict()
    schemas = {}
    for name, hint in get_type_hints(cls).items():
        text = {"description": texts[name]} if name in texts else {}
        schemas[name] = {
            **text,
            **type_schema(hint),
            **_limits(name, hint),
            **_MORE.get(name, {}),
            "default": defaults[name],
        }
    return schemas


def _limits(name: str, hint: Any) -> Schema:
    numbers = [kind for kind in (hint, *get_args(hint)) if kind in (int, float)]
    return limits_schema(*number_limits(name, numbers[0])) if numbers else {}
