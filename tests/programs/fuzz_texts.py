"""Strategies for malformed and unusual text files."""

import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

_LONG = "The quick brown fox jumps over the lazy dog. "
_PIECES: tuple[str, ...] = (
    "",
    "\n",
    " \n\t\n",
    "a",
    "a\n",
    "\n\n\n",
    "\ufeff",
    "é",
    "e\u0301",
    "学",
    "😀\u200d😀",
    "\0",
    "\x1b[31m",
    "\x85",
    "\u2028",
)
_PIECES += (
    "\r\n",
    "\r",
    "<|endoftext|>",
    '"',
    "'",
    ",",
    "{",
    "}",
    '{"text": "a"}',
    "text\n",
    "text,body\n",
    "1,2,3\n",
    "\ufffd",
)
_PIECES += (
    _LONG * 200,
    "x" * 20_000,
    "😀" * 3000,
    "a\n" * 2000,
    "a\r\n" * 2000,
    "\n" * 3000,
    "1 2 3 " * 1500,
)

_words = st.lists(st.sampled_from(_PIECES), max_size=6).map("".join)
_encoded = st.builds(
    lambda text, encoding: text.encode(encoding),
    _words,
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]),
)
_values = st.one_of(
    st.sampled_from(
        [
            None,
            True,
            1,
            -1.5,
            10**30,
            "",
            "a",
            _LONG * 30,
            "\ud800",
            "\0",
            "😀",
            [1],
            {"a": 1},
            ["a"],
            [],
        ]
    ),
    _words,
)
_rows = st.lists(
    st.one_of(
        st.dictionaries(
            st.sampled_from(["text", "body", "", "é", "a b", "text "]), _values, max_size=3
        ),
        _values,
    ),
    max_size=5,
)


def _json_lines(rows: list[Any], repeats: int, broken: int) -> bytes:
    lines = "".join(
        json.dumps(row, ensure_ascii=i % 2 == 0) + "\n" for i, row in enumerate(rows * repeats)
    )
    return lines.encode(errors="surrogatepass")[: len(lines) - broken if broken else None]


def _csv(rows: list[list[str]], repeats: int) -> bytes:
    return ("\n".join(",".join(row) for row in rows) + "\n").encode() * repeats


_COLUMNS: dict[str, Callable[[int], pa.Array]] = {
    "text": lambda n: pa.array([_LONG] * n),
    "large": lambda n: pa.array([_LONG] * n, pa.large_string()),
    "view": lambda n: pa.array([_LONG] * n, pa.string_view()),
    "category": lambda n: pa.array([_LONG] * n).dictionary_encode(),
    "nulls": lambda n: pa.nulls(n),
    "bytes": lambda n: pa.array([b"\xff"] * n),
    "list": lambda n: pa.array([["a"]] * n),
    "struct": lambda n: pa.array([{"a": 1}] * n),
    "time": lambda n: pa.array([1] * n, pa.timestamp("ns")),
    "decimal": lambda n: pa.array([1] * n).cast(pa.decimal128(20)),
    "map": lambda n: pa.array([[("a", 1)]] * n, pa.map_(pa.string(), pa.int64())),
}


def _parquet(names: list[str], rows: int, cut: int) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table({name: _COLUMNS[name](rows) for name in names}), stream)
    return stream.getvalue()[: -cut or None]


files = st.one_of(
    st.tuples(
        st.sampled_from([".txt", ".csv", ".jsonl", ".parquet", ".TXT", ".md", ""]),
        st.one_of(_encoded, st.binary(max_size=80)),
    ),
    st.tuples(
        st.just(".jsonl"),
        st.builds(_json_lines, _rows, st.sampled_from([1, 300]), st.integers(0, 3)),
    ),
    st.tuples(
        st.just(".csv"),
        st.builds(
            _csv, st.lists(st.lists(_words, max_size=4), max_size=4), st.sampled_from([1, 50])
        ),
    ),
    st.tuples(
        st.just(".parquet"),
        st.builds(
            _parquet,
            st.lists(st.sampled_from(sorted(_COLUMNS)), unique=True, max_size=3),
            st.sampled_from([0, 1, 60]),
            st.sampled_from([0, 0, 1, 20, 200]),
        ),
    ),
)
