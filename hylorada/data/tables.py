"""Read files of plain text and tables, compressed or not, into rows."""

import bz2
import gzip
import io
import lzma
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hylorada.base_models.error_texts import first_line
from hylorada.base_models.lfs_pointers import pointer_problem
from hylorada.data.columns import Rows, Table, read_texts
from hylorada.data.delimited import read_delimited
from hylorada.data.json_lines import read_json_lines
from hylorada.data.splits import SUFFIXES, kind_of, supported
from hylorada.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_DECOMPRESS = {".bz2": bz2.decompress, ".gz": gzip.decompress, ".xz": lzma.decompress}
_BROKEN = (EOFError, OSError, ValueError, lzma.LZMAError, zlib.error)


def read_file(
    path: Path, text_column: str | None, tokenizer: "PreTrainedTokenizerBase | None"
) -> Rows:
    """Read the rows of a file; a file of plain text is a single row.

    Args:
        path: path of the file; its suffixes determine the format.
        text_column: column of a table that holds the text; None finds it.
        tokenizer: the tokenizer whose chat template turns chats into text.

    Raises:
        InputError: the file can't be read, or its text column is unclear.
    """
    suffix, compression = kind_of(path.name)
    if suffix not in SUFFIXES:
        raise InputError(
            f"data {str(path)!r}: suffix {path.suffix!r} is not supported; {supported()}"
        )
    if problem := pointer_problem(path):
        raise InputError(f"data {str(path)!r}: {problem}")
    content = _decompressed(path, compression)
    if suffix == ".parquet":
        return read_texts(_parquet(path, content), text_column, tokenizer)
    text = _decode(path, content)
    if suffix == ".txt":
        return Rows((text,))
    if not text.strip():
        return Rows(())
    table = _json_lines(path, text) if suffix == ".jsonl" else _delimited(path, text)
    return read_texts(table, text_column, tokenizer)


def _decompressed(path: Path, compression: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"data {str(path)!r}: can't be read: {error.strerror}") from error
    if not compression:
        return content
    try:
        return (
            _DECOMPRESS[compression](content)
            if compression in _DECOMPRESS
            else _decompress_zst(content)
        )
    except _BROKEN as error:
        raise InputError(
            f"data {str(path)!r}: can't be decompressed: {first_line(error)}"
        ) from error


def _decompress_zst(content: bytes) -> bytes:
    import pyarrow as pa

    stream = pa.CompressedInputStream(pa.py_buffer(content), "zstd")
    decompressed: bytes = stream.read()
    return decompressed


def _decode(path: Path, content: bytes) -> str:
    try:
        text = content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise InputError(f"data {str(path)!r}: byte {error.start} is not UTF-8") from error
    if "\0" in text:
        raise InputError(
            f"data {str(path)!r}: holds NUL characters (first at {text.index(chr(0))}): "
            "not a text file"
        )
    return text


def _json_lines(path: Path, text: str) -> Table:
    types, columns = read_json_lines(text, str(path))
    return Table(str(path), types, columns.__getitem__)


def _delimited(path: Path, text: str) -> Table:
    names, rows, delimiter = read_delimited(text, str(path))
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    types = {
        name: "numbers" if _are_numbers(cells) else "string" for name, cells in columns.items()
    }
    return Table(str(path), types, columns.__getitem__, delimiter)


def _are_numbers(cells: list[str]) -> bool:
    filled = [cell for cell in cells if cell.strip()]
    try:
        return bool([float(cell) for cell in filled])
    except ValueError:
        return False


def _parquet(path: Path, content: bytes) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(io.BytesIO(content))
        types = {field.name: _type_name(field.type) for field in file.schema_arrow}

        def read(column: str) -> list[Any]:
            try:
                values: list[Any] = file.read(columns=[column]).column(column).to_pylist()
            except (*_BROKEN, pa.ArrowException, KeyError) as error:
                raise InputError(
                    f"data {str(path)!r}: column {column!r} can't be read: {first_line(error)}"
                ) from error
            return values

    except (*_BROKEN, pa.ArrowException) as error:
        raise InputError(
            f"data {str(path)!r}: can't be read as parquet: {first_line(error)}"
        ) from error
    return Table(str(path), types, read)


def _type_name(dtype: Any) -> str:
    """Return the name of an Arrow type as users know it; all kinds of text have the same name."""
    import pyarrow as pa

    if pa.types.is_dictionary(dtype):
        return _type_name(dtype.value_type)
    if (
        pa.types.is_string(dtype)
        or pa.types.is_large_string(dtype)
        or pa.types.is_string_view(dtype)
    ):
        return "string"
    return "list" if pa.types.is_list(dtype) or pa.types.is_large_list(dtype) else str(dtype)
