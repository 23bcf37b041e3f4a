"""Text: what a user names with `--data`, read into documents of three splits."""

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from hylorada._bases import first_line, hub_is_reachable, is_gated
from hylorada._errors import InputError, nearest
from hylorada._json_lines import read_json_lines
from hylorada._names import PYDOCS

SPLITS = ("train", "validation", "test")
SUFFIXES = (".csv", ".jsonl", ".parquet", ".txt")

_ALIASES = {"train": "train", "test": "test"} | dict.fromkeys(("validation", "valid", "val", "dev"), "validation")
_BUILDERS = {".csv": "csv", ".parquet": "parquet"}
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")

_Splits = dict[str, list[str]]


@dataclass(frozen=True)
class Text:
    """Documents of the three splits; none is blank.

    Attributes:
        splits: "train", "validation" and "test", each with its documents in order.
        fingerprint: first 16 hex digits of the SHA-256 over the contents of all splits.
        revision: commit of a hub data set, as far as `datasets` knows it; None for anything local.
    """

    name: str
    splits: dict[str, tuple[str, ...]]
    fingerprint: str
    revision: str | None = None


def load_text(data: str, *, text_column: str | None = None) -> Text:
    """Read `pydocs`, a file, a folder, or a hub data set `name` or `name:config`.

    A source with one text, or with no named splits, is cut 80/10/10 by characters into contiguous pieces; a document
    may be cut in two. Splits that a source with a train split lacks are cut off its end, 10 % each. Without a train
    split, a single named split counts as one text.

    Args:
        data: the source; an existing file or folder goes before a hub id of the same name.
        text_column: the column that holds the text; by default `text`, else the only string column.

    Raises:
        InputError: the source, its column or one of its splits can't be used.

    Example:
        >>> sorted(load_text("pydocs").splits)
        ['test', 'train', 'validation']
    """
    splits, revision = _read_source(data, text_column)
    documents = _complete(data, {name: [text for text in texts if text.strip()] for name, texts in splits.items()})
    if empty := [f"data {data!r}: split {name!r} is empty" for name, texts in documents.items() if not texts]:
        raise InputError(empty)
    return Text(data, documents, _fingerprint(documents), revision)


def _read_source(data: str, text_column: str | None) -> tuple[_Splits, str | None]:
    path = Path(os.path.expanduser(data))
    if text_column is not None and (data == PYDOCS or (os.path.isfile(path) and path.suffix.lower() == ".txt")):
        raise InputError(f"text_column {text_column!r}: data {data!r} is plain text and has no columns")
    if data == PYDOCS:
        from pydoc_data.topics import topics

        return {"train": [topics[name] for name in sorted(topics)]}, None
    if data and os.path.isdir(path):
        return _read_folder(path, text_column), None
    if os.path.isfile(path):
        return {"train": _read_file(path, text_column)}, None
    if data.startswith((".", "/", "~")) or data.endswith(SUFFIXES) or not _HUB_ID.fullmatch(data):
        raise InputError(f"data {data!r}: no such file or folder{_sibling(path)}")
    return _read_hub(data, text_column)


def _sibling(path: Path) -> str:
    try:
        names = os.listdir(path.parent)
    except (OSError, ValueError):  # the second where a name holds NUL
        return ""
    return f"; {hint}" if (hint := nearest(path.name, names)).startswith("did you mean") else ""


def _read_folder(folder: Path, text_column: str | None) -> _Splits:
    """Documents by split where files or subfolders are named after splits, else all under "train"."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    files = [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    if not files:
        raise InputError(f"data {str(folder)!r}: no files; supported: {', '.join(SUFFIXES)}")
    named: _Splits = {}
    for path in files:
        if split := _split_of(path.relative_to(folder).parts[0]):
            named.setdefault(split, []).extend(_read_file(path, text_column))
    return named or {"train": [text for path in files for text in _read_file(path, text_column)]}


def _split_of(name: str) -> str | None:
    """The split a file, subfolder or hub split is named after; shards such as `train-00000-of-00002` count."""
    stem = re.sub(r"-\d+-of-\d+$", "", name.split(".")[0].lower())
    return _ALIASES.get(stem)


def _read_file(path: Path, text_column: str | None) -> list[str]:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"data {str(path)!r}: suffix {path.suffix!r} is not supported; one of: {', '.join(SUFFIXES)}")
    text = "" if suffix == ".parquet" else _decode(path)
    if suffix == ".txt":
        return [text]
    if suffix != ".parquet" and not text.strip():
        return []
    if suffix == ".jsonl":
        types, columns = read_json_lines(text, str(path))
        return _texts(columns[_text_column(types, str(path), text_column)])
    return _read_rows(path, _BUILDERS[suffix], text_column)


def _decode(path: Path) -> str:
    try:
        text = path.read_bytes().decode("utf-8").removeprefix("\ufeff")
    except OSError as error:
        raise InputError(f"data {str(path)!r}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"data {str(path)!r}: byte {error.start} is not UTF-8") from error
    if "\0" in text:
        raise InputError(f"data {str(path)!r}: holds NUL characters (first at {text.index(chr(0))}): no text file")
    return text


def _read_rows(path: Path, builder: str, text_column: str | None) -> list[str]:
    import datasets

    # A cache of its own: jobs that start together share nothing, and an edited file is never served from a stale cache.
    with tempfile.TemporaryDirectory() as cache, _quiet_datasets(offline=False):
        try:
            rows = datasets.load_dataset(builder, data_files=str(path), cache_dir=cache, keep_in_memory=True)["train"]
        except Exception as error:  # of the readers beneath, each with its own
            reason = first_line(error.__cause__ or error)
            if "corresponds to no data" in reason or "BatchSize" in reason:  # a table without rows
                return []
            raise InputError(f"data {str(path)!r}: can't be read as {builder}: {reason}") from error
        return _texts(rows[_text_column(_types(rows), str(path), text_column)])


def _types(rows: Any) -> dict[str, str]:
    return {name: getattr(feature, "dtype", type(feature).__name__) for name, feature in rows.features.items()}


def _texts(values: Iterable[str | None]) -> list[str]:
    return [text for text in values if text]


def _text_column(types: Mapping[str, str], source: str, text_column: str | None) -> str:
    texts = [name for name, dtype in types.items() if dtype in ("string", "large_string")]
    if text_column is not None and text_column not in types:
        raise InputError(f"text_column {text_column!r} is not in {source!r}; {nearest(text_column, types)}")
    if text_column is not None and text_column not in texts:
        raise InputError(f"text_column {text_column!r} of {source!r} holds {types[text_column]}, not text")
    column = text_column or ("text" if "text" in texts else texts[0] if len(texts) == 1 else None)
    if column is None:
        listed = ", ".join(f"{name} ({dtype})" for name, dtype in types.items())
        raise InputError(f"data {source!r}: name the text column with --text-column; columns: {listed}")
    return column


def _read_hub(data: str, text_column: str | None) -> tuple[_Splits, str | None]:
    import datasets

    name, _, config = data.partition(":")
    # To `datasets` these are ways to read whatever lies in the current folder, or in the folder of this name.
    if name in datasets.packaged_modules._PACKAGED_DATASETS_MODULES or os.path.isdir(name):
        raise InputError(f"data {data!r}: {name!r} is no data set of the hub; name a folder or a file by its path")
    offline = not hub_is_reachable()
    with _quiet_datasets(offline):
        try:
            found = datasets.load_dataset(name, config or None)
        except (datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError) as error:
            raise InputError(_hub_problem(data, error, offline)) from error
    named: _Splits = {}
    for split, rows in found.items():
        named.setdefault(_split_of(split) or split, []).extend(
            _texts(rows[_text_column(_types(rows), data, text_column)])
        )
    # The commit stands in the addresses of the downloaded files: hf://datasets/NAME@COMMIT/...
    commit = re.search(r"@([0-9a-f]{40})/", " ".join(next(iter(found.values())).info.download_checksums or {}))
    return named, commit[1] if commit else None


def _hub_problem(data: str, error: BaseException, offline: bool) -> str:
    name, _, config = data.partition(":")
    if is_gated(error):
        return f"data {data!r}: access to {name} needs approval and a token"
    if (hint := nearest(data, [PYDOCS])).startswith("did you mean"):
        return f"data {data!r}: no file, no folder and no hub data set; {hint}"
    if offline:
        names = f"{name!r}, {config!r}" if config else repr(name)
        fetch = f'python -c "from datasets import load_dataset; load_dataset({names})"'
        return f"data {data!r}: no file or folder, the hub can't be reached, no copy is cached; fetch it with: {fetch}"
    return f"data {data!r}: {first_line(error)}"


@contextlib.contextmanager
def _quiet_datasets(offline: bool) -> Iterator[None]:
    """No progress bars; with `offline`, no attempts at the network, whose retries take 23 s."""
    import datasets
    from huggingface_hub import constants

    before = (datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE, datasets.are_progress_bars_disabled())
    level = datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # what it logs of an error, the error says too
    if offline:
        datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before[:2]
        datasets.logging.set_verbosity(level)
        if not before[2]:
            datasets.enable_progress_bars()


def _complete(data: str, splits: _Splits) -> dict[str, tuple[str, ...]]:
    """All three splits, those that the source lacks cut off the end of train."""
    if "train" not in splits:
        if len(splits) != 1:
            raise InputError(f"data {data!r}: no train split; it has: {', '.join(sorted(splits))}")
        splits = {"train": next(iter(splits.values()))}
    missing = [name for name in SPLITS if name not in splits]
    pieces = _cut(splits["train"], len(missing))
    whole = {**splits, **dict(zip(["train", *missing], pieces, strict=True))}
    return {name: tuple(whole[name]) for name in SPLITS}


def _cut(documents: Sequence[str], num_ends: int) -> list[list[str]]:
    """Contiguous pieces: the beginning, then `num_ends` of a tenth of the characters each; nothing lost or twice."""
    total = sum(map(len, documents))
    inner = [_cut_point(documents, total * (10 - tenths) // 10) for tenths in range(num_ends, 0, -1)]
    return [_between(documents, begin, end) for begin, end in pairwise([0, *inner, total])]


def _cut_point(documents: Sequence[str], at: int) -> int:
    """`at`, moved to the document's edge where the cut would leave a blank piece of it."""
    start = 0
    for document in documents:
        end = start + len(document)
        if start < at < end:
            blank_left, blank_right = not document[: at - start].strip(), not document[at - start :].strip()
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
