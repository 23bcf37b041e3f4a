"""JSON Schema of search spaces: for each field a constant, a choice of values, or a range."""

from collections.abc import Iterable, Mapping

from studies.spec.schema.config_fields import holds_lists, number_schema
from studies.spec.schema.json_types import Schema

_WHEN = "another searched field and its value; this one is drawn only if that one has the value"


def space_definitions(fields: Mapping[str, Schema]) -> dict[str, Schema]:
    """Return the definitions "space" and "when" of a schema that also defines these fields."""
    parameters = {name: _parameter(name, field) for name, field in fields.items()}
    when = {
        "description": _WHEN,
        **closed(references(fields)),
        "minProperties": 1,
        "maxProperties": 1,
    }
    return {"space": closed(parameters), "when": when}


def closed(properties: Mapping[str, Schema], *required: str) -> Schema:
    """Return the schema of a mapping with these keys and no others."""
    needed = {"required": list(required)} if required else {}
    return {
        "type": "object",
        "properties": dict(properties),
        **needed,
        "additionalProperties": False,
    }


def references(names: Iterable[str]) -> dict[str, Schema]:
    """Return a reference to the definition of each name."""
    return {name: reference(name) for name in names}


def reference(name: str) -> Schema:
    """Return a reference to a definition."""
    return {"$ref": f"#/$defs/{name}"}


def _parameter(name: str, field: Schema) -> Schema:
    when = {"when": reference("when")}
    values = {"type": "array", "items": reference(name), "minItems": 1, "uniqueItems": True}
    choice = closed({"choice": values, **when}, "choice")
    # A list is one of the values of a choice, so it can't be a constant.
    constant = {"type": "null"} if holds_lists(field) else reference(name)
    forms = [constant, choice]
    if (number := number_schema(field)) is not None:
        ends = {"low": number, "high": number}
        forms.append(closed({**ends, "log": {"type": "boolean"}, **when}, "low", "high"))
    text = {"description": field["description"]} if "description" in field else {}
    return {**text, "anyOf": forms}
