"""Tables, and the search for the column that holds the text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hylorada.data.chats import holds_chats, render_chats
from hylorada.errors import InputError, nearest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Names of the text column whatever other columns there are, in order of preference.
TEXT_COLUMNS = ("text", "content")
# Names of the text column if no other column holds text.
LONE_TEXT_COLUMNS = ("article", "body", "document", "paragraph", "passage", "sentence")
CHAT_COLUMNS = ("messages", "conversations")

_TEXT_TYPES = ("string", "large_string")
_SAMPLE = 24  # characters
_MOST_NAMED = 8  # columns, in a message


@dataclass(frozen=True)
class Table:
    """A table whose columns are read on demand.

    Attributes:
        source: named in error messages.
        types: type of each column; "string" is text.
        read: function that returns the values of a column.
        delimiter: delimiter of the cells; None for a format without one.
    """

    source: str
    types: Mapping[str, str]
    read: Callable[[str], Sequence[Any]]
    delimiter: str | None = None


@dataclass(frozen=True)
class Rows:
    """The texts of one file, or of one split of a hub data set.

    Attributes:
        texts: the texts in order, blank ones included.
        missing: number of further rows without a value (null).
        column: column of the texts; None for a file of plain text, which is one row.
        delimiter: delimiter of the table's cells; None for a format without one.
        are_chats: whether each text is a rendered chat.
        source: file or split, as messages to the user name it.
    """

    texts: tuple[str, ...]
    missing: int = 0
    column: str | None = None
    delimiter: str | None = None
    are_chats: bool = False
    source: str = ""


def read_texts(
    table: Table, text_column: str | None, tokenizer: "PreTrainedTokenizerBase | None"
) -> Rows:
    """Read the texts of a table.

    Args:
        table: the table.
        text_column: column that holds the text; None finds it, see :data:`TEXT_COLUMNS`.
        tokenizer: the tokenizer whose chat template turns chats into text.

    Raises:
        InputError: the column can't be used, or it is unclear which column holds the text.
    """
    column = _named(table, text_column) if text_column is not None else _find(table)
    values = table.read(column)
    present = [value for value in values if value is not None]
    if table.types[column] in _TEXT_TYPES:
        return Rows(tuple(present), len(values) - len(present), column, table.delimiter)
    chats = render_chats(present, tokenizer, f"data {table.source!r}: column {column!r}")
    return Rows(tuple(chats), len(values) - len(present), column, table.delimiter, are_chats=True)


def _named(table: Table, column: str) -> str:
    if column not in table.types:
        raise InputError(
            f"text_column {column!r} is not in {table.source!r}; {nearest(column, table.types)}"
        )
    if table.types[column] not in _TEXT_TYPES and not holds_chats(table.read(column)):
        raise InputError(
            f"text_column {column!r} of {table.source!r} holds {table.types[column]}, not text"
        )
    return column


def _find(table: Table) -> str:
    texts = [name for name, dtype in table.types.items() if dtype in _TEXT_TYPES]
    lower = {name.lower(): name for name in reversed(texts)} | {name: name for name in texts}
    for name in TEXT_COLUMNS:
        if name in lower:
            return lower[name]
    for name in CHAT_COLUMNS:
        if name in table.types and holds_chats(table.read(name)):
            return name
    if len(texts) == 1 and texts[0].lower() in LONE_TEXT_COLUMNS:
        return texts[0]
    raise InputError(
        f"data {table.source!r}: can't tell which column holds the text; "
        "name the text column with --text-column; "
        f"columns: {', '.join(_listed(table))}"
    )


def _listed(table: Table) -> list[str]:
    """Describe the columns by name, type and the beginning of a value."""
    names = list(table.types)
    listed = [f"{name} ({table.types[name]}{_sample(table, name)})" for name in names[:_MOST_NAMED]]
    return listed + ([f"… ({len(names)} in all)"] if len(names) > _MOST_NAMED else [])


def _sample(table: Table, column: str) -> str:
    value = next((str(v) for v in table.read(column) if v is not None and str(v).strip()), None)
    if value is None:
        return ""
    return f", such as {value[:_SAMPLE] + '…' * (len(value) > _SAMPLE)!r}"
