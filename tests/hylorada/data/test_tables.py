"""Cells, delimiters, columns and compressed files."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from hylorada.data.tables import read_file
from hylorada.data.text import load_text
from hylorada.errors import InputError

_POINTER = (
    "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 94371840\n"
)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiter_is_found(tmp_path: Path, delimiter: str) -> None:
    lines = [
        ["id", "text", "label"],
        ["1", "one, two; three" if delimiter not in ",;" else "one", "a"],
    ]
    (tmp_path / "a.csv").write_text("".join(delimiter.join(line) + "\n" for line in lines * 1))
    rows = read_file(tmp_path / "a.csv", None, None)
    assert (rows.column, rows.delimiter, rows.texts) == ("text", delimiter, (lines[1][1],))


def test_cells_are_what_the_file_says(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id;text\n1;None\n2;NA\n3;\n4;"a;\nb"\n5;null\n6; \n7;nan\n\n')
    rows = read_file(tmp_path / "a.csv", None, None)
    assert rows.texts == ("None", "NA", "", "a;\nb", "null", " ", "nan")
    text = load_text(str(tmp_path / "a.csv"))
    assert (text.sources["train"].rows, text.sources["train"].empty) == (7, 2)
    assert "".join(sum(text.splits.values(), ())) == "NoneNAa;\nbnullnan"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            "text\none\ntwo, three\n",
            r"the row that ends at line 3 has 2 cells, the first row 1 \(delimiter comma\)",
        ),
        ("id;text\n1;a\n2;b;c\n", r"line 3 has 3 cells, the first row 2 \(delimiter semicolon\)"),
        ("text,text\na,b\n", "column 'text' occurs twice in the first row"),
        ('text\n"a\n', "line 2: unexpected end of data"),
        (
            "line\nfoo\n",
            r"name the text column with --text-column; columns: line \(string, such as 'foo'\)",
        ),
    ],
)
def test_cells_that_are_not_clear_are_refused(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(InputError, match=problem):
        load_text(str(tmp_path / "a.csv"))


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ('{"id": "c-0", "content": "b", "text": "a"}', "text"),
        ('{"id": "c-0", "Content": "b", "title": "a"}', "Content"),
        ('{"n": 1, "sentence": "b"}', "sentence"),
        ('{"id": "c-0", "sentence": "b"}', None),
        ('{"id": "c-0"}', None),
    ],
)
def test_known_names_are_the_text_and_others_are_asked_for(
    tmp_path: Path, row: str, column: str | None
) -> None:
    (tmp_path / "a.jsonl").write_text(row)
    if column is None:
        with pytest.raises(
            InputError,
            match=r"name the text column with --text-column; columns: id \(string, such as",
        ):
            read_file(tmp_path / "a.jsonl", None, None)
    else:
        assert read_file(tmp_path / "a.jsonl", None, None).column == column


def test_files_of_one_text_have_one_column(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n' * 9)
    (tmp_path / "test.jsonl").write_text('{"content": "a"}\n' * 9)
    with pytest.raises(
        InputError, match=r"the text column is 'content' in test.jsonl, 'text' in train.jsonl; name"
    ):
        load_text(str(tmp_path))


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
        (".zst", lambda content: pa.Codec("zstd").compress(content, asbytes=True)),
    ],
)
def test_compressed_files_are_read(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    (tmp_path / f"train.jsonl{suffix}").write_bytes(compress(b'{"text": "abcdefghij"}\n'))
    (tmp_path / f"test.txt{suffix}").write_bytes(compress(b"xyz"))
    text = load_text(str(tmp_path))
    assert text.splits == {"train": ("abcdefghi",), "validation": ("j",), "test": ("xyz",)}
    (tmp_path / f"test.txt{suffix}").write_bytes(compress(b"xyz")[:-3])
    with pytest.raises(InputError, match=rf"test.txt{suffix}': can't be decompressed: "):
        load_text(str(tmp_path))


@pytest.mark.parametrize("name", ["a.txt", "a.parquet", "a.jsonl.gz", "a.csv"])
def test_git_lfs_pointers_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(_POINTER)
    with pytest.raises(
        InputError, match=rf"{name} is a Git LFS pointer, not the file itself; run `git lfs pull`"
    ):
        load_text(str(tmp_path / name))
