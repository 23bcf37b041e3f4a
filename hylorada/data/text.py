"""Read the text that a user names with `--data` into documents of three splits."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from hylorada.base_models.builtin_names import TEXTS
from hylorada.data.builtin_texts import builtin_documents
from hylorada.data.columns import Rows
from hylorada.data.hub_text import HUB_ID, read_hub
from hylorada.data.separators import DOCUMENT_SEPARATORS, decide, join
from hylorada.data.splits import COMPRESSIONS, SPLITS, SUFFIXES, find_splits, keywords, kind_of
from hylorada.data.tables import read_file
from hylorada.errors import InputError, nearest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class SplitSource:
    """The origin of a split.

    Attributes:
        files: the files, or the split of a hub data set; none if it was cut from other text.
        rows: number of rows, empty ones included.
        empty: number of rows that were dropped because they are empty.
        cut_from: what the split was cut from, "train" or "the whole text"; else None.
    """

    files: tuple[str, ...] = ()
    rows: int = 0
    empty: int = 0
    cut_from: str | None = None


@dataclass(frozen=True)
class Text:
    """Documents of the three splits; none is blank.

    Attributes:
        name: the source, as the user gave it.
        splits: "train", "validation" and "test", each with its documents in order.
        fingerprint: first 16 hex digits of the SHA-256 over the contents of all splits.
        revision: commit of a hub data set, if `datasets` knows it; None for anything local.
        separator: separator of documents: "eos", "newline" or "none"; see :func:`load_text`.
        column: column of the tables that holds the text; None for plain text.
        delimiter: delimiter of the cells of a .csv or .tsv file.
        sources: origin of each split.
        left_out: splits and files of the source that are not part of the text.
    """

    name: str
    splits: dict[str, tuple[str, ...]]
    fingerprint: str
    revision: str | None = None
    separator: str = "eos"
    column: str | None = None
    delimiter: str | None = None
    sources: Mapping[str, SplitSource] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Source:
    """The rows of a source by split; under "" for a source without splits."""

    rows: dict[str, list[Rows]]
    revision: str | None = None
    left_out: tuple[str, ...] = ()


def load_text(
    data: str,
    *,
    text_column: str | None = None,
    document_separator: str = "auto",
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    split: str | None = None,
) -> Text:
    """Read a built-in text, a file, a folder, or a hub data set `name` or `name:config`.

    A source without named splits is cut 80/10/10 by characters into contiguous pieces; a document
    may be cut in two. If a source has a train split and lacks another one, that is cut off the end
    of the train split, 10 % each.

    Args:
        data: the source; `pydocs`, `pydocstrings` and `pysource` are built in. An existing file or
            folder takes precedence over a hub id of its name.
        text_column: the column that holds the text; by default `text`, then `content`, then chats
            (`messages`, `conversations`), then a column of another usual name if no other column
            holds text.
        document_separator: "eos": the tokenizer's end token separates documents. "newline": rows
            are lines of one running text. "none": rows are joined unchanged. "auto": "newline" if
            rows are evidently lines (they end in their own newline, or blank rows lie between
            them), "none" for chats, else "eos".
        tokenizer: the tokenizer whose chat template turns chats into text; only chats need it.
        split: the only split that is needed; the source then needs no train split.

    Raises:
        InputError: the source, its column or one of its splits can't be used.

    Example:
        >>> sorted(load_text("pydocs").splits)
        ['test', 'train', 'validation']
    """
    if document_separator not in DOCUMENT_SEPARATORS:
        hint = nearest(document_separator, DOCUMENT_SEPARATORS)
        raise InputError(f"document_separator {document_separator!r} is unknown; {hint}")
    source = _read_source(data, text_column, tokenizer)
    everything = [rows for parts in source.rows.values() for rows in parts]
    column, delimiter = _common_column(data, everything)
    separator = decide(everything) if document_separator == "auto" else document_separator
    whole = {
        name: join((text for rows in parts for text in rows.texts), separator)
        for name, parts in source.rows.items()
    }
    sources = {name: _origin(parts, separator) for name, parts in source.rows.items()}
    documents, sources = _complete(data, whole, sources, split)
    if empty := [
        f"data {data!r}: split {name!r} is empty" for name, texts in documents.items() if not texts
    ]:
        raise InputError(empty)
    return Text(
        data,
        documents,
        _fingerprint(documents),
        source.revision,
        separator,
        column,
        delimiter,
        sources,
        source.left_out,
    )


def _read_source(
    data: str, text_column: str | None, tokenizer: "PreTrainedTokenizerBase | None"
) -> _Source:
    path = Path(os.path.expanduser(data))
    if text_column is not None and (
        data in TEXTS or (os.path.isfile(path) and kind_of(path.name)[0] == ".txt")
    ):
        raise InputError(
            f"text_column {text_column!r}: data {data!r} is plain text and has no columns"
        )
    if data in TEXTS:
        return _Source({"": [Rows((text,), source="") for text in builtin_documents(data)]})
    if data and os.path.isdir(path):
        return _read_folder(path, text_column, tokenizer)
    if os.path.isfile(path):
        return _Source({"": [replace(read_file(path, text_column, tokenizer), source=path.name)]})
    if (
        data.startswith((".", "/", "~"))
        or data.endswith((*SUFFIXES, *COMPRESSIONS))
        or not HUB_ID.fullmatch(data)
    ):
        raise InputError(f"data {data!r}: {_why_not_read(path)}")
    rows, left_out, revision = read_hub(data, text_column, tokenizer)
    return _Source(rows, revision, left_out)


def _why_not_read(path: Path) -> str:
    if os.path.islink(path):
        return f"it is a link to {os.readlink(path)!r}, which can't be followed"
    if os.path.exists(path):
        return "it is neither a file nor a folder"
    return f"no such file or folder{_sibling(path)}"


def _sibling(path: Path) -> str:
    try:
        names = os.listdir(path.parent)
    except (OSError, ValueError):  # a name with a NUL character raises ValueError
        return ""
    return f"; {hint}" if (hint := nearest(path.name, names)).startswith("did you mean") else ""


def _read_folder(
    folder: Path, text_column: str | None, tokenizer: "PreTrainedTokenizerBase | None"
) -> _Source:
    layout = find_splits(folder)
    rows = {
        split: [
            replace(read_file(path, text_column, tokenizer), source=str(path.relative_to(folder)))
            for path in paths
        ]
        for split, paths in layout.files.items()
    }
    return _Source(rows, left_out=layout.left_out)


def _common_column(data: str, rows: Sequence[Rows]) -> tuple[str | None, str | None]:
    """Return the column and the delimiter of all tables.

    Raises:
        InputError: the tables hold the text in different columns.
    """
    columns = {r.column: r.source for r in rows if r.column is not None}
    if len(columns) > 1:
        listed = ", ".join(f"{column!r} in {source}" for column, source in columns.items())
        raise InputError(f"data {data!r}: the text column is {listed}; name one with --text-column")
    delimiters = [r.delimiter for r in rows if r.delimiter is not None]
    return next(iter(columns), None), delimiters[0] if delimiters else None


def _origin(parts: Sequence[Rows], separator: str) -> SplitSource:
    blank = (
        sum(not text.strip() for rows in parts for text in rows.texts) if separator == "eos" else 0
    )
    missing = sum(rows.missing for rows in parts)
    return SplitSource(
        files=tuple(rows.source for rows in parts if rows.source),
        rows=sum(len(rows.texts) for rows in parts) + missing,
        empty=blank + missing,
    )


def _complete(
    data: str, splits: dict[str, list[str]], sources: dict[str, SplitSource], split: str | None
) -> tuple[dict[str, tuple[str, ...]], dict[str, SplitSource]]:
    """Cut the splits that the source lacks off the end of train, and return all three.

    Without a train split, only `split` is returned.

    Raises:
        InputError: there is neither a train split nor `split`.
    """
    if "" in splits:  # a source without splits
        pieces = dict(zip(SPLITS, _cut(splits[""], 2), strict=True))
        cut = {name: replace(sources[""], cut_from="the whole text") for name in SPLITS}
        return {name: tuple(texts) for name, texts in pieces.items()}, cut
    if "train" not in splits:
        if split in splits:
            return {split: tuple(splits[split])}, {split: sources[split]}
        names = ", ".join(sorted(splits))
        there = f"it has: {names}" if names else "none of its files or splits has a split's name"
        raise InputError(f"data {data!r}: no train split; {there}; splits are named {keywords()}")
    missing = [name for name in SPLITS if name not in splits]
    pieces = dict(zip(["train", *missing], _cut(splits["train"], len(missing)), strict=True))
    origins = {**dict.fromkeys(missing, SplitSource(cut_from="train")), **sources}
    return {name: tuple({**splits, **pieces}[name]) for name in SPLITS}, {
        name: origins[name] for name in SPLITS
    }


def _cut(documents: Sequence[str], num_ends: int) -> list[list[str]]:
    """Cut documents into contiguous pieces that together hold every character once.

    The first piece is the beginning, followed by `num_ends` pieces of a tenth of the characters.
    """
    total = sum(map(len, documents))
    inner = [
        _cut_point(documents, total * (10 - tenths) // 10) for tenths in range(num_ends, 0, -1)
    ]
    return [_between(documents, begin, end) for begin, end in pairwise([0, *inner, total])]


def _cut_point(documents: Sequence[str], at: int) -> int:
    """Return `at`, moved to the document's edge if the cut would leave a blank piece of it."""
    start = 0
    for document in documents:
        end = start + len(document)
        if start < at < end:
            blank_left, blank_right = (
                not document[: at - start].strip(),
                not document[at - start :].strip(),
            )
            return start if blank_left else end if blank_right else at
        start = end
    return at


def _between(documents: Sequence[str], begin: int, end: int) -> list[str]:
    pieces, start = [], 0
    for document in documents:
        pieces.append(document[max(begin - start, 0) : max(end - start, 0)])
        start += len(document)
    return [piece for piece in pieces if piece]


def _fingerprint(splits: dict[str, tuple[str, ...]]) -> str:
    digest = hashlib.sha256()
    for name, documents in splits.items():
        digest.update(f"{name} {len(documents)}\n".encode())
        for content in (document.encode() for document in documents):
            digest.update(f"{len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]
