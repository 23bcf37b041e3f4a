"""Rows that are documents, rows that are lines, and the same text as a file."""

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hylorada.base_models.loading import load_tokenizer
from hylorada.data.blocks import build_blocks
from hylorada.data.text import Text, load_text
from hylorada.errors import InputError

_LINES = ["one line\n", "\n", "another line\n", "the third\n"] * 40


def _write(folder: Path, rows: list[str | None]) -> str:
    path = folder / "rows.parquet"
    pq.write_table(pa.table({"text": pa.array(rows, pa.string())}), path)
    return str(path)


def _table(folder: Path, rows: list[str | None]) -> Text:
    return load_text(_write(folder, rows))


@pytest.mark.parametrize(
    "rows",
    [
        _LINES,
        [line.removesuffix("\n") for line in _LINES],  # as `datasets` reads a text file
        [line if line.strip() else "" for line in _LINES],  # as the hub stores WikiText
        [line for line in _LINES if line.strip()],
    ],
    ids=["newlines", "blank", "both", "no blank"],
)
def test_rows_that_are_lines_make_the_text_of_the_file(
    tmp_path: Path, rows: list[str | None]
) -> None:
    text = _table(tmp_path, rows)
    whole = "".join(f"{row}".removesuffix("\n") + "\n" for row in rows)
    (tmp_path / "file.txt").write_text(whole)
    assert text.separator == "newline"
    assert text.splits == load_text(str(tmp_path / "file.txt")).splits


@pytest.mark.parametrize(
    "rows",
    [
        ["a document", "another", "a third"],
        ["two\nlines\n", "one line\n", "one more\n"],
        ["", *["a document"] * 40],  # one row in twenty must be blank
        [None, "a document", "another"],
    ],
    ids=["plain", "line within", "one blank", "null"],
)
def test_rows_that_are_documents_stay_so(tmp_path: Path, rows: list[str | None]) -> None:
    text = _table(tmp_path, rows)
    filled = [row for row in rows if row]
    assert (text.separator, text.splits["train"][0]) == ("eos", filled[0])
    assert text.sources["train"].empty == len(rows) - len(filled)


def test_separator_can_be_set(tmp_path: Path) -> None:
    path = _write(tmp_path, ["abcd", "efgh", "", "ijkl"])
    whole = {
        s: "".join(sum(load_text(path, document_separator=s).splits.values(), ()))
        for s in ("newline", "none")
    }
    assert whole == {"newline": "abcd\nefgh\n\nijkl\n", "none": "abcdefghijkl"}
    assert load_text(path, document_separator="eos").splits["train"] == ("abcd", "efgh", "i")
    with pytest.raises(
        InputError, match="document_separator 'eoss' is unknown; did you mean 'eos'"
    ):
        load_text(path, document_separator="eoss")


def test_separator_is_part_of_the_cache_key(tmp_path: Path) -> None:
    path, tokenizer, fingerprints = (
        _write(tmp_path, ["ab" * 40, "cd" * 40]),
        load_tokenizer("tiny"),
        [],
    )
    for separator in ("eos", "newline", "none"):
        documents = load_text(path, document_separator=separator).splits["train"]
        cache = tmp_path / "cache"
        fingerprints.append(
            build_blocks(documents, tokenizer, 8, split="train", cache_dir=cache).fingerprint
        )
    assert len(list((tmp_path / "cache").glob("*.npz"))) == len(set(fingerprints)) == 3


def test_wikitext_rows_make_the_tokens_of_the_file(tmp_path: Path) -> None:
    path = Path(__file__).parents[4] / "shared" / "data" / "wikitext-2" / "test.txt"
    if not path.is_file():
        pytest.skip("needs shared/data")
    whole = path.read_bytes().decode()
    text = _table(tmp_path, [*io.StringIO(whole, newline="\n")])
    assert text.splits == load_text(str(path)).splits


def test_chats_are_written_by_the_chat_template(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Yes."}]
    share = [{"from": "human", "value": "Hello?"}, {"from": "gpt", "value": "Yes."}]
    tokenizer = load_tokenizer("tiny")
    for name, messages in (("messages", chat), ("conversations", share)):
        path = tmp_path / f"{name}.jsonl"
        path.write_text(
            "".join(json.dumps({"id": f"c-{i}", name: messages}) + "\n" for i in range(40))
        )
        tokenizer.chat_template = None
        with pytest.raises(
            InputError,
            match=f"column '{name}' holds chats, and the tokenizer of the base has no chat",
        ):
            load_text(str(path), tokenizer=tokenizer)
        with pytest.raises(InputError, match=f"'{name}' holds chats, .*; pass the tokenizer of"):
            load_text(str(path))
        tokenizer.chat_template = (
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
        )
        text = load_text(str(path), tokenizer=tokenizer)
        assert (text.column, text.separator) == (name, "none")
        assert "".join(sum(text.splits.values(), ())) == "<user>Hello?\n<assistant>Yes.\n" * 40
        tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
        with pytest.raises(
            InputError, match="chat 1: the chat template rejects it: roles must alternate"
        ):
            load_text(str(path), tokenizer=tokenizer)
