"""Tables of JSON objects, one a line; read here, since Arrow's reader crashes the process on some broken ones."""

import json
from collections.abc import Mapping
from typing import Any

from hylorada.errors import InputError

_NAMES = {str: "string", type(None): "null"}


def read_json_lines(text: str, source: str) -> tuple[dict[str, str], dict[str, list[Any]]]:
    """Columns of a text with a JSON object a line; blank lines count for nothing.

    Args:
        text: of the file.
        source: named in error messages.

    Returns:
        What each column holds ("string" where that is nothing but text and null), and its values.

    Raises:
        InputError: a line that is no JSON object, by its number.
    """
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    rows = [_parse(line, f"data {source!r}: line {number}") for number, line in lines]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    return {name: _type(values) for name, values in columns.items()}, columns


def _parse(line: str, where: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
        if "\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise InputError(f"{where} is no JSON: {error.msg} at column {error.colno}") from error
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where} holds {error.object[error.start]!r}, half of a character"
        ) from error
    except (RecursionError, ValueError) as error:  # the second of a number with thousands of digits
        raise InputError(f"{where} can't be read: {error}") from error
    if not isinstance(row, dict):
        raise InputError(f"{where} is no JSON object but {type(row).__name__}")
    return row


def _type(values: list[Any]) -> str:
    types = {type(value) for value in values}
    named = sorted(_NAMES.get(t, t.__name__) for t in types)
    return "string" if str in types <= _NAMES.keys() else " and ".join(named)
