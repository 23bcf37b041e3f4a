"""Python types as JSON Schema."""

import inspect
import math
import re
from typing import Any, Literal, TypeAlias, get_args, get_origin

Schema: TypeAlias = dict[str, Any]

_OWN_CODE = r"\.py:[^\W\d]\w*$"
_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}


def type_schema(hint: Any) -> Schema:
    """Return the schema of a type: plain, a Literal, a tuple of texts, or one of these or None.

    A Literal or text stands for one of the names, or for ``FILE.py:CLASS``.

    Example:
        >>> type_schema(int | None)
        {'type': ['integer', 'null']}
    """
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    if hint in _NAMES:
        return {"type": _NAMES[hint]}
    options = [option for option in get_args(hint) if option is not type(None)]
    if len(options) < len(get_args(hint)):
        schema = type_schema(options[0])
        if "enum" in schema:
            return {"enum": [*schema["enum"], None]}
        return {**schema, "type": [schema["type"], "null"]}
    if names := [option for option in options if get_origin(option) is Literal]:
        return {"anyOf": [type_schema(names[0]), {"type": "string", "pattern": _OWN_CODE}]}
    return {"type": "array", "items": {"type": "string"}, "minItems": 1}


def limits_schema(low: float | None, high: float | None) -> Schema:
    """Return the limits of a number, both allowed themselves; None and infinity are no limits."""
    ends = {"minimum": low, "maximum": high}
    return {k: end for k, end in ends.items() if end is not None and math.isfinite(end)}


def attribute_texts(cls: type) -> dict[str, str]:
    """Return what the docstring of a class says about each of its attributes.

    The result is empty where Python has stripped docstrings (``-OO``).
    """
    section = (inspect.getdoc(cls) or "").partition("\nAttributes:\n")[2]
    paragraphs = re.split(r"\n    (?=\w+: )", "\n" + section.partition("\n\n")[0])
    pairs = (paragraph.partition(": ") for paragraph in paragraphs if paragraph.strip())
    return {name: " ".join(text.split()) for name, _, text in pairs}
