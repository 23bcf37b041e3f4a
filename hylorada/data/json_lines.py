"""Read tables of JSON objects, one per line.

Arrow's own reader crashes the process on some broken files.
"""

import json
from collections.abc import Mapping
from typing import Any

from hylorada.errors import InputError

_NAMES = {str: "string", type(None): "null"}


def read_json_lines(text: str, source: str) -> tuple[dict[str, str], dict[str, list[Any]]]:
    """Read the columns of a text with one JSON object per line, ignoring blank lines.

    Args:
        text: content of the file.
        source: named in error messages.

    Returns:
        The type of each column ("string" for one of nothing but text and null), and its values.

    Raises:
        InputError: a line is not a JSON object; the message names its number.
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
        raise InputError(f"{where} is not JSON: {error.msg} at column {error.colno}") from error
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where} holds {error.object[error.start]!r}, an unpaired surrogate"
        ) from error
    # a number with thousands of digits raises ValueError
    except (RecursionError, ValueError) as error:
        raise InputError(f"{where} can't be read: {error}") from error
    if not isinstance(row, dict):
        raise InputError(f"{where} must be a JSON object, got {type(row).__name__}")
    return row


def _type(values: list[Any]) -> str:
    types = {type(value) for value in values}
    named = sorted(_NAMES.get(t, t.__name__) for t in types)
    return "string" if str in types <= _NAMES.keys() else " and ".join(named)
