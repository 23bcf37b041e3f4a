"""Read tables of delimited cells (.csv, .tsv); every cell stays text."""

import csv
import io
from collections.abc import Iterator

from hylorada.errors import InputError

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}

_LOOKED_AT = 200  # rows from which the delimiter is guessed
_LONGEST_CELL = 2**31 - 1  # characters; the default of the csv module, 131,072, is less than a book


def read_delimited(text: str, source: str) -> tuple[list[str], list[list[str]], str]:
    """Find the delimiter of a table and read its header and rows, ignoring blank lines.

    Args:
        text: content of the file.
        source: named in error messages.

    Returns:
        The names of the columns, the cells of each row, and the delimiter.

    Raises:
        InputError: a row has more or fewer cells than there are columns, a name occurs twice, or a
            quote is never closed.
    """
    delimiter = _find_delimiter(text)
    rows = _rows(text, delimiter, source)
    _, header = next(rows, (0, []))
    names = [name.strip() for name in header]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"data {source!r}: column {repeated[0]!r} occurs twice in the first row")
    cells = []
    for line, row in rows:
        if len(row) != len(names):
            raise InputError(
                f"data {source!r}: the row that ends at line {line} has {len(row)} cells, "
                f"the first row {len(names)} (delimiter {DELIMITERS[delimiter]}); "
                "put text that contains the delimiter in quotes"
            )
        cells.append(row)
    return names, cells, delimiter


def _rows(text: str, delimiter: str, source: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not blank, with the number of the line at which each ends."""
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
    """Return the delimiter that splits the first rows into the most cells, equally many in each.

    If none does, return the one with the most cells in the first row; on a tie, the first listed.
    """
    widths = {delimiter: _width(text, delimiter) for delimiter in DELIMITERS}
    return max(DELIMITERS, key=lambda d: widths[d])


def _width(text: str, delimiter: str) -> tuple[bool, int]:
    """Return whether the first rows have equally many cells (two or more), and the first row's."""
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
