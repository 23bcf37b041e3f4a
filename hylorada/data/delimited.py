"""Tables of cells between delimiters (.csv, .tsv): every cell is the text that the file holds."""

import csv
import io
from collections.abc import Iterator

from hylorada.errors import InputError

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}

_LOOKED_AT = 200  # rows
_LONGEST_CELL = 2**31 - 1  # characters; the module's own limit of 131,072 is less than a book


def read_delimited(text: str, source: str) -> tuple[list[str], list[list[str]], str]:
    """Read the header and the rows of a table, finding its delimiter; blank lines count for nothing.

    Args:
        text: of the file.
        source: named in error messages.

    Returns:
        The names of the columns, the cells of each row, and the delimiter.

    Raises:
        InputError: a row has more or fewer cells than there are columns, a name stands twice, a quote has no end.
    """
    delimiter = _find_delimiter(text)
    rows = _rows(text, delimiter, source)
    _, header = next(rows, (0, []))
    names = [name.strip() for name in header]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"data {source!r}: column {twice[0]!r} stands twice in the first row")
    cells = []
    for line, row in rows:
        if len(row) != len(names):
            raise InputError(
                f"data {source!r}: the row that ends at line {line} has {len(row)} cells, the first row {len(names)} "
                f"(delimiter {DELIMITERS[delimiter]}); put text that holds the delimiter in quotes"
            )
        cells.append(row)
    return names, cells, delimiter


def _rows(text: str, delimiter: str, source: str) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, with the number of the line at which each ends."""
    limit = csv.field_size_limit(_LONGEST_CELL)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"data {source!r}: line {reader.line_num}: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _find_delimiter(text: str) -> str:
    """The delimiter that cuts the first rows into the most cells, equally many in each; a comma if none does."""
    widths = {delimiter: _width(text, delimiter) for delimiter in DELIMITERS}
    return max(DELIMITERS, key=lambda d: widths[d])


def _width(text: str, delimiter: str) -> tuple[bool, int]:
    """Whether the first rows have more than one cell and equally many, and how many the header has."""
    counts: list[int] = []
    try:
        for _, row in _rows(text, delimiter, ""):
            counts.append(len(row))
            if len(counts) == _LOOKED_AT:
                break
    except InputError:
        return False, 0
    if not counts:
        return False, 0
    return counts[0] > 1 and len(set(counts)) == 1, counts[0]
