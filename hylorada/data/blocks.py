"""Blocks: tokenised documents, joined by the end-of-text token and cut to equal length."""

import hashlib
import json
import logging
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from hylorada.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# A part of the cache key; it must be raised when the same input is packed into other blocks.
_PACKER_VERSION = 1
_DOCUMENTS_PER_CALL = 1024
_DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)

_logger = logging.getLogger("hylorada")

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Blocks:
    """N blocks of T tokens each, without padding; a block's tokens 1..T-1 are predicted.

    Attributes:
        input_ids: tokens, shape [N, T].
        num_bytes: UTF-8 bytes of the text of each block's predicted tokens, shape [N].
        dropped_tokens: number of tokens after the last full block.
        fingerprint: first 16 hex digits of the SHA-256 over tokens and block size.
    """

    input_ids: npt.NDArray[np.int32]
    num_bytes: _Ints
    dropped_tokens: int
    fingerprint: str

    @property
    def num_blocks(self) -> int:
        """Number of blocks, N."""
        return int(self.input_ids.shape[0])

    @property
    def block_size(self) -> int:
        """Number of tokens in a block, T."""
        return int(self.input_ids.shape[1])

    def head(self, num_blocks: int | None) -> "Blocks":
        """Return the first `num_blocks` blocks, or all for None.

        `dropped_tokens` remains that of the whole split.
        """
        return self._taken(num_blocks, spread=False)

    def spread(self, num_blocks: int | None) -> "Blocks":
        """Return `num_blocks` blocks at equal distances over the whole split, or all for None."""
        return self._taken(num_blocks, spread=True)

    def after(self, num_blocks: int) -> "Blocks":
        """Return the blocks that :meth:`head` leaves out for this number; there may be none."""
        return self._at(np.arange(num_blocks, max(num_blocks, self.num_blocks)))

    def _taken(self, num_blocks: int | None, *, spread: bool) -> "Blocks":
        if num_blocks is None:
            return self
        return self._at(self.places(num_blocks, spread=spread))

    def places(self, num_blocks: int, *, spread: bool) -> _Ints:
        """Return the indices of the blocks that :meth:`head` or :meth:`spread` takes."""
        if not 1 <= num_blocks <= self.num_blocks:
            raise InputError(f"`num_blocks` must be 1 to {self.num_blocks}, got {num_blocks}")
        places = np.arange(num_blocks)
        return (2 * places + 1) * self.num_blocks // (2 * num_blocks) if spread else places

    def documents(self, end_token: int) -> _Ints:
        """Return the index of the document in which each block begins, shape [N].

        Args:
            end_token: id of the token that ends a document.
        """
        ends = (self.input_ids == end_token).sum(axis=1)
        return np.asarray(np.cumsum(ends) - ends)

    def _at(self, places: _Ints) -> "Blocks":
        input_ids = self.input_ids[places]
        return Blocks(
            input_ids, self.num_bytes[places], self.dropped_tokens, fingerprint_of(input_ids)
        )


def build_blocks(
    documents: Sequence[str],
    tokenizer: "PreTrainedTokenizerBase",
    block_size: int,
    *,
    split: str,
    cache_dir: Path | None = None,
    num_embeddings: int | None = None,
) -> Blocks:
    """Tokenise documents and cut them into blocks without overlap.

    One end-of-text token separates two documents, and none follows the last; attention is not reset
    there. The bytes of a token are those that it adds to the text covered so far, so a character
    that is spread over several tokens counts once.

    Args:
        documents: texts in order.
        tokenizer: a fast tokenizer; special tokens are not added.
        block_size: number of tokens in a block, T.
        split: named in error messages.
        cache_dir: folder that caches blocks for later calls and other processes; None caches none.
        num_embeddings: rows of the base's embedding table, if known.

    Raises:
        InputError: the text is shorter than a block, there are several documents and no end-of-text
            token, or the base has no embedding for a token.
    """
    if block_size < 2:
        raise InputError(f"`block_size` must be at least 2, got {block_size}")
    if tokenizer.eos_token_id is None and len(documents) > 1:
        raise InputError(
            f"split {split!r}: {len(documents)} documents, "
            "but the tokenizer has no end-of-text token"
        )
    if cache_dir is None:
        blocks = _pack(documents, tokenizer, block_size, split)
    else:
        blocks = _pack_once(documents, tokenizer, block_size, split, cache_dir)
    check_ids(blocks, tokenizer, split, num_embeddings)
    return blocks


def check_ids(
    blocks: Blocks, tokenizer: "PreTrainedTokenizerBase", split: str, num_embeddings: int | None
) -> None:
    """Refuse tokens without an embedding: a forward pass would fail, on a GPU without a reason.

    Raises:
        InputError: the largest token id is beyond the base's embedding table.
    """
    largest = int(blocks.input_ids.max())
    if num_embeddings is None or largest < num_embeddings:
        return
    token = tokenizer.convert_ids_to_tokens(largest)
    raise InputError(
        f"split {split!r}: token id {largest} ({token!r}) is beyond the base's embedding table of "
        f"{num_embeddings} rows; resize the base's embeddings (`resize_token_embeddings`), "
        "or use its own tokenizer"
    )


def _pack_once(
    documents: Sequence[str],
    tokenizer: "PreTrainedTokenizerBase",
    block_size: int,
    split: str,
    cache_dir: Path,
) -> Blocks:
    """Read the blocks from the cache, or pack and cache them."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    path = cache_dir / f"blocks-{_cache_key(documents, tokenizer, block_size)}.npz"
    # The first process packs the blocks; the others wait and read them.
    with FileLock(path.with_suffix(".lock")):
        blocks = _read_cache(path, block_size)
        if blocks is None:
            blocks = _pack(documents, tokenizer, block_size, split)
            _write_cache(path, blocks)
    return blocks


def _pack(
    documents: Sequence[str], tokenizer: "PreTrainedTokenizerBase", block_size: int, split: str
) -> Blocks:
    tokens, sizes = _tokenize(documents, tokenizer)
    num_blocks = len(tokens) // block_size
    if num_blocks == 0:
        raise InputError(
            f"split {split!r}: {len(tokens)} tokens, block_size {block_size} -> 0 blocks; "
            "lower block_size or add text"
        )
    kept = num_blocks * block_size
    input_ids = tokens[:kept].astype(np.int32).reshape(num_blocks, block_size)
    num_bytes = sizes[:kept].reshape(num_blocks, block_size)[:, 1:].sum(axis=1)
    return Blocks(input_ids, num_bytes, len(tokens) - kept, fingerprint_of(input_ids))


def _tokenize(
    documents: Sequence[str], tokenizer: "PreTrainedTokenizerBase"
) -> tuple[_Ints, _Ints]:
    """Return the tokens of all documents with separators, and the UTF-8 bytes of each token."""
    tokens: list[_Ints] = []
    sizes: list[_Ints] = []
    for ids, num_bytes in tokenized(documents, tokenizer):
        if tokens:
            tokens.append(np.array([tokenizer.eos_token_id], dtype=np.int64))
            sizes.append(np.zeros(1, dtype=np.int64))
        tokens.append(ids)
        sizes.append(num_bytes)
    nothing = np.empty(0, dtype=np.int64)
    return np.concatenate([nothing, *tokens]), np.concatenate([nothing, *sizes])


def tokenized(
    documents: Sequence[str], tokenizer: "PreTrainedTokenizerBase"
) -> Iterator[tuple[_Ints, _Ints]]:
    """Yield the tokens of each non-empty document, and the UTF-8 bytes of each token."""
    for start in range(0, len(documents), _DOCUMENTS_PER_CALL):
        texts = list(documents[start : start + _DOCUMENTS_PER_CALL])
        # `verbose=False` because texts longer than the model's limit are normal here.
        encoded = tokenizer(
            texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        for text, ids, offsets in zip(
            texts, encoded["input_ids"], encoded["offset_mapping"], strict=True
        ):
            if ids:
                spans = np.asarray(offsets, dtype=np.int64)
                yield np.asarray(ids, dtype=np.int64), _token_bytes(text, spans)


def _token_bytes(text: str, offsets: _Ints) -> _Ints:
    """Return the bytes of each token: how far it advances the end of the text covered so far.

    Args:
        text: the tokenised text.
        offsets: [n, 2], start and end of each token in characters.
    """
    code_points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    widths = (
        1
        + (code_points >= 0x80).astype(np.int64)
        + (code_points >= 0x800)
        + (code_points >= 0x10000)
    )
    byte_at = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(widths)])
    furthest = np.maximum.accumulate(byte_at[offsets[:, 1]])
    # Text that the tokenizer skips counts with the next token, or with the last one at the end.
    furthest[-1] = byte_at[-1]
    return np.diff(furthest, prepend=0)


def fingerprint_of(input_ids: npt.NDArray[np.int32]) -> str:
    """Return the first 16 hex digits of the SHA-256 over tokens and block size."""
    digest = hashlib.sha256(f"{input_ids.shape[1]}\n".encode())
    digest.update(np.ascontiguousarray(input_ids, dtype="<i4").tobytes())
    return digest.hexdigest()[:16]


def _cache_key(
    documents: Sequence[str], tokenizer: "PreTrainedTokenizerBase", block_size: int
) -> str:
    contents = json.loads(tokenizer.backend_tokenizer.to_str())
    # Earlier calls of the tokenizer leave these settings in it; our own call resets both.
    contents.pop("truncation", None)
    contents.pop("padding", None)
    header = [_PACKER_VERSION, tokenizer.eos_token_id, block_size, len(documents), contents]
    digest = hashlib.sha256(json.dumps(header).encode())
    for document in documents:
        digest.update(hashlib.sha256(document.encode()).digest())
    return digest.hexdigest()[:32]


def _read_cache(path: Path, block_size: int) -> Blocks | None:
    """Return the cached blocks; None if there are none or they are damaged."""
    if not path.exists():
        return None
    try:
        # The file is opened here because `np.load` would not close a damaged one that it opened.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            input_ids, num_bytes = stored["input_ids"], stored["num_bytes"]
            dropped, fingerprint = int(stored["dropped_tokens"]), str(stored["fingerprint"])
        sound = (
            input_ids.shape == (len(num_bytes), block_size)
            and fingerprint_of(input_ids) == fingerprint
        )
    except _DAMAGE:
        sound = False
    if not sound:
        _logger.warning("cached blocks %s are damaged; building them again", path)
        return None
    return Blocks(input_ids, num_bytes, dropped, fingerprint)


def _write_cache(path: Path, blocks: Blocks) -> None:
    """Write a temporary file, then rename it, so that readers see the whole file or none."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            np.savez(
                stream,
                input_ids=blocks.input_ids,
                num_bytes=blocks.num_bytes,
                dropped_tokens=np.int64(blocks.dropped_tokens),
                fingerprint=np.str_(blocks.fingerprint),
            )
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
