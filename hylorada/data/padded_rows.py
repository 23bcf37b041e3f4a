"""Padded rows: a fault of the published code, kept for replications."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hylorada.data.blocks import Blocks, check_ids, fingerprint_of, tokenized
from hylorada.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BLANK_LINES = re.compile(r"\n\s*\n")


def build_padded_rows(
    documents: Sequence[str],
    tokenizer: "PreTrainedTokenizerBase",
    block_size: int,
    *,
    split: str,
    num_embeddings: int | None = None,
) -> Blocks:
    """Return a row for each paragraph: its first T tokens, filled up with end-of-text tokens.

    The published code trained and evaluated on such rows, and let the filling count in the loss.
    Paragraphs end at blank lines, as the rows of WikiText do.

    Args:
        documents: texts in order.
        tokenizer: a fast tokenizer; special tokens are not added.
        block_size: number of tokens in a row, T.
        split: named in error messages.
        num_embeddings: rows of the base's embedding table, if known.

    Raises:
        InputError: the tokenizer has no end-of-text token, the text has fewer than two paragraphs,
            or the base has no embedding for a token.
    """
    if tokenizer.eos_token_id is None:
        raise InputError("replication_pads needs a tokenizer with an end-of-text token")
    paragraphs = [part for text in documents for part in _BLANK_LINES.split(text) if part.strip()]
    pairs = list(tokenized(paragraphs, tokenizer))
    if len(pairs) < 2:
        raise InputError(
            f"split {split!r}: {len(pairs)} paragraphs, replication_pads needs at least 2"
        )
    input_ids = np.stack(
        [_filled(ids, block_size, tokenizer.eos_token_id) for ids, _ in pairs]
    ).astype(np.int32)
    num_bytes = np.array([sizes[1:block_size].sum() for _, sizes in pairs], dtype=np.int64)
    dropped = sum(max(0, len(ids) - block_size) for ids, _ in pairs)
    rows = Blocks(input_ids, num_bytes, dropped, fingerprint_of(input_ids))
    check_ids(rows, tokenizer, split, num_embeddings)
    return rows


def _filled(ids: npt.NDArray[np.int64], length: int, end_token: int) -> npt.NDArray[np.int64]:
    kept = ids[:length]
    return np.pad(kept, (0, length - len(kept)), constant_values=end_token)
