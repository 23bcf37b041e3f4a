"""Padded rows and their loss, against rows and sums written by hand."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hylorada import Adapter, BatchOrder, HyLoRADAConfig, InputError, Pack, evaluate
from hylorada.base_models.loading import load_tokenizer
from hylorada.data.blocks import Blocks
from hylorada.data.padded_rows import build_padded_rows


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer("tiny")


def test_each_paragraph_is_a_row_filled_with_end_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    long = "one two three four five six seven eight nine ten"
    rows = build_padded_rows([f"A word.\n \nB\n\n\n{long}", "", "é"], tokenizer, 6, split="test")
    end = tokenizer.eos_token_id
    by_hand = []
    for text in ("A word.", "B", long, "é"):
        ids = tokenizer(text, add_special_tokens=False).input_ids[:6]
        by_hand.append(ids + [end] * (6 - len(ids)))
    assert rows.input_ids.tolist() == by_hand
    count = len(tokenizer(long, add_special_tokens=False).input_ids)
    assert rows.dropped_tokens == count - 6
    kept = str(tokenizer.decode(by_hand[2][1:]))
    assert rows.num_bytes[2] == len(kept.encode())
    assert rows.num_bytes[1] == sum(len(tokenizer.decode([t])) for t in by_hand[1][1:] if t != end)


def test_pads_count_in_the_loss(
    make_base: Callable[..., PreTrainedModel], make_config: Callable[..., HyLoRADAConfig]
) -> None:
    """The loss of a row is the mean over all of its T - 1 predictions, pads included."""
    base, end = make_base("gpt2", torch.float64), 7
    ids = np.array([[3, 4, 5, *[end] * 13], [9, 8, *[end] * 14]], dtype=np.int32)
    adapter = Adapter(base, make_config(), seed=0)
    (found,) = evaluate(Pack(base), [adapter], Blocks(ids, np.ones(2, dtype=np.int64), 0, "0" * 16))
    tokens = torch.from_numpy(ids).long()
    with torch.no_grad():
        logits = make_base("gpt2", torch.float64)(tokens).logits[:, :-1]
    by_hand = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    assert found.tokens == 30
    np.testing.assert_allclose(found.block_nll, by_hand.sum(1).numpy(), rtol=1e-9)


def test_text_that_is_too_short_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(InputError, match="split 'test': 1 paragraphs, replication_pads needs at"):
        build_padded_rows(["one\ntwo"], tokenizer, 8, split="test")


def test_order_over_padded_rows_is_that_over_blocks_moved() -> None:
    """Padded rows follow the blocks in one array."""
    plain, moved = BatchOrder(5, 2, seed=3), BatchOrder(5, 2, seed=3, first=100)
    for step in range(7):
        assert (moved.indices(step) - 100).tolist() == plain.indices(step).tolist()
