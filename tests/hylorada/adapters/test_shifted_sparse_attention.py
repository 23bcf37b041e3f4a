"""Shifted sparse attention: loops compute who sees whom, and what that makes of the attention."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from designs import FAMILIES
from torch import Tensor
from transformers import PreTrainedModel

from hylorada import (
    Adapter,
    BatchOrder,
    HyLoRADAConfig,
    HyLoRADAModel,
    InputError,
    Pack,
    Seat,
    TrainingConfig,
    evaluate,
    train_step,
)
from hylorada.adapters.buckets import Positions
from hylorada.adapters.shifted_sparse_attention import group_heads, visible_keys
from hylorada.data.blocks import Blocks

MakeBase = Callable[..., PreTrainedModel]
MakeConfig = Callable[..., HyLoRADAConfig]
MakeModel = Callable[..., HyLoRADAModel]

LENGTH, WINDOW = 16, 6  # of a block, and of the Mistral base's sliding window
S2: dict[str, Any] = {"shifted_sparse_attention": True}
BARE: dict[str, Any] = {"landmarks": False, "position_bias": False}
SIZES = [(16, 4), (16, 8), (16, 5), (13, 4), (9, 3), (4, 2)]  # blocks and groups, even and uneven

every_family = pytest.mark.parametrize("family", FAMILIES)


def _groups(length: int, group: int, head: int, heads: int) -> list[list[int]]:
    """Cut the tokens into the groups of a head, one group after the other."""
    first = group if head < heads // 2 else group - group // 2
    cuts = [0, *range(first, length, group), length]
    return [list(range(a, b)) for a, b in itertools.pairwise(cuts)]


def _sees(query: int, key: int, groups: list[list[int]]) -> bool:
    return key <= query and any(query in g and key in g for g in groups)


def _additive(length: int, group: int, heads: int, window: int | None = None) -> Tensor:
    """Return the mask [1, heads, T, T] of the loops, 0 or -inf."""
    mask = torch.full((1, heads, length, length), -math.inf, dtype=torch.float64)
    for head in range(heads):
        groups = _groups(length, group, head, heads)
        for query in range(length):
            for key in range(length):
                near = window is None or query - key < window
                if near and _sees(query, key, groups):
                    mask[0, head, query, key] = 0
    return mask


def _ids(rows: int = 2, length: int = LENGTH) -> Tensor:
    return torch.randint(1, 50, (rows, length), generator=torch.Generator().manual_seed(0))


def _plain(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, None]:
    """Compute attention as transformers' implementations do, with the output's axes swapped."""
    assert mask is not None
    weights = (query @ key.mT / math.sqrt(query.shape[-1]) + mask).softmax(-1)
    return (weights @ value).transpose(1, 2), None


def _attended(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return the attention of one query [e] over keys and values [n, e], number by number."""
    logits = [sum(float(q) * float(k) for q, k in zip(query, key, strict=True)) for key in keys]
    powers = [math.exp(x / math.sqrt(len(query))) for x in logits]
    return torch.stack([p / sum(powers) * v for p, v in zip(powers, values, strict=True)]).sum(0)


@pytest.mark.parametrize("heads", [2, 3, 1])
@pytest.mark.parametrize(("length", "group"), SIZES)
def test_visible_keys_are_those_of_the_loops(length: int, group: int, heads: int) -> None:
    visible = visible_keys(torch.arange(length)[None], group, heads)
    assert torch.equal(visible, _additive(length, group, heads) == 0)
    assert visible.diagonal(dim1=-2, dim2=-1).all()
    assert not visible.triu(1).any()


def test_halves_at_the_ends_never_see_each_other_and_shifted_heads_join_neighbours() -> None:
    """Rolled groups would let the tokens 0 and 1 see 14 and 15, or the other way round."""
    plain, shifted = visible_keys(torch.arange(16)[None], 4, 2)[0]
    assert not plain[14:, :2].any()
    assert not shifted[14:, :2].any()
    assert not plain[4, 3]
    assert shifted[4, 3]
    reached = torch.eye(16, dtype=torch.bool)
    for _ in range(7):  # after some layers the last token knows of all others
        reached = (reached.float() @ (plain | shifted).float()) > 0
    assert reached[15].all()


@pytest.mark.parametrize(("length", "group"), SIZES)
def test_attention_of_each_head_is_that_of_the_loops_at_every_token(
    length: int, group: int
) -> None:
    heads, generator = 3, torch.Generator().manual_seed(0)
    shape = (2, heads, length, 4)
    query, key, value = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3)
    )
    positions = Positions(torch.arange(length)[None], 1)
    grouped = group_heads([group], positions, heads, torch.float64, None)
    assert grouped is not None
    output, _ = grouped.attend(_plain, query, key, value, None)
    for row, head in [(0, 0), (0, 1), (1, 2)]:
        groups = _groups(length, group, head, heads)
        for token in range(length):
            seen = [j for j in range(length) if _sees(token, j, groups)]
            expected = _attended(
                query[row, head, token], key[row, head, seen], value[row, head, seen]
            )
            torch.testing.assert_close(output[row, token, head], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@every_family
def test_training_computes_what_the_base_does_with_the_mask_of_the_loops(
    make_base: MakeBase, make_config: MakeConfig, family: str, attention: str
) -> None:
    base, ids = make_base(family, torch.float64), _ids()
    base.set_attn_implementation(attention)
    mask = _additive(LENGTH, 4, 2, WINDOW if family == "mistral" else None)
    expected, full = base(ids, attention_mask=mask).logits, base(ids).logits
    model = HyLoRADAModel(base, make_config(**S2))  # untrained, it changes the attention alone
    torch.testing.assert_close(model.train()(ids).logits, expected, rtol=0, atol=1e-6)
    assert (expected - full).abs().max() > 1e-2
    assert torch.equal(model.eval()(ids).logits, full)
    assert base.config._attn_implementation == attention


@pytest.mark.parametrize("group", [2, 4, 5, 8])
@every_family
def test_no_logit_in_training_depends_on_later_tokens_or_other_rows(
    make_model: MakeModel, family: str, group: int
) -> None:
    model = make_model(family, **S2, attention_group=group).train()
    ids = _ids(1).expand(LENGTH - 1, -1)
    later = torch.arange(LENGTH) >= torch.arange(1, LENGTH)[:, None]  # each row from a new token on
    changed = torch.where(later, (ids + 1) % 50, ids)
    moved = (model(changed).logits - model(ids).logits).abs().amax(-1)
    assert moved[~later].max() <= 1e-12
    assert (moved * later).amax(1).min() > 1e-2


@every_family
def test_evaluation_equals_full_attention_bit_for_bit(make_model: MakeModel, family: str) -> None:
    grouped, full = make_model(family, torch.float32, **S2), make_model(family, torch.float32)
    assert torch.equal(grouped(_ids()).logits, full(_ids()).logits)
    with torch.no_grad():  # as when text is generated in training mode
        assert torch.equal(grouped.train()(_ids()).logits, full(_ids()).logits)
    assert (grouped(_ids()).logits - full(_ids()).logits).abs().max() > 1e-2


@every_family
def test_every_parameter_gets_a_gradient_in_training(make_model: MakeModel, family: str) -> None:
    model, ids = make_model(family, **S2).train(), _ids()
    model(ids, labels=ids).loss.backward()
    without = {n for n, p in model.adapter.named_parameters() if p.grad is None or not p.grad.any()}
    assert not without


GROUPS: list[int | None] = [4, None, 8, 4, None, 5]


def _seats(base: PreTrainedModel, make_config: MakeConfig) -> list[Seat]:
    training = TrainingConfig(max_steps=4, batch_size=2, learning_rate=1e-2)
    configs = [
        make_config() if group is None else make_config(**S2, attention_group=group)
        for group in GROUPS
    ]
    return [
        Seat(Adapter(base, config, seed=k), training, BatchOrder(24, 2, seed=k))
        for k, config in enumerate(configs)
    ]


@pytest.mark.parametrize("members", [range(6), [5, 2, 1], [0, 3], [4, 3]])
@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral"])
def test_seats_of_any_groups_train_side_by_side_as_alone(
    make_base: MakeBase,
    make_config: MakeConfig,
    token_blocks: npt.NDArray[np.int32],
    blocks: Blocks,
    family: str,
    members: list[int],
) -> None:
    base = make_base(family, torch.float64)
    pack = Pack(base)
    together = {k: _seats(base, make_config)[k] for k in members}
    losses = [train_step(pack, together, token_blocks) for _ in range(4)]
    evaluations = evaluate(pack, [s.adapter for s in together.values()], blocks)
    for k, evaluation in zip(members, evaluations, strict=True):
        alone = {k: _seats(base, make_config)[k]}
        expected = [train_step(pack, alone, token_blocks)[k] for _ in range(4)]
        assert [row[k] for row in losses] == pytest.approx(expected, rel=0, abs=1e-10)
        for found, wanted in zip(
            together[k].adapter.parameters(), alone[k].adapter.parameters(), strict=True
        ):
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
        (wanted_evaluation,) = evaluate(pack, [alone[k].adapter], blocks)
        assert evaluation.nll == pytest.approx(wanted_evaluation.nll, rel=0, abs=1e-10)


def test_neighbour_that_turns_to_nan_harms_nobody(
    make_base: MakeBase, make_config: MakeConfig, token_blocks: npt.NDArray[np.int32]
) -> None:
    base = make_base("gpt2", torch.float64)
    pack, seats = Pack(base), _seats(base, make_config)
    for parameter in seats[0].adapter.parameters():
        parameter.data.fill_(math.nan)
    found = train_step(pack, dict(enumerate(seats)), token_blocks)
    for k in range(1, 6):
        expected = train_step(pack, {k: _seats(base, make_config)[k]}, token_blocks)
        assert found[k] == pytest.approx(expected[k], rel=0, abs=1e-10)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2", "gpt_neox"])
def test_groups_count_from_a_rows_first_real_token(
    make_model: MakeModel, family: str, side: str, attention: str
) -> None:
    # "eager" takes its softmax in fp32, where a mask of fp64's least number is infinite
    eager = attention == "eager"
    model = make_model(family, torch.float32 if eager else torch.float64, **S2).train()
    model.base.set_attn_implementation(attention)
    long, short = torch.arange(1, 14)[None], torch.arange(20, 30)[None]
    pad = (3, 0) if side == "left" else (0, 3)
    ids = torch.cat([long, torch.nn.functional.pad(short, pad)])
    mask = torch.cat([torch.ones_like(long), torch.nn.functional.pad(torch.ones_like(short), pad)])
    logits = model(ids, attention_mask=mask).logits
    assert logits.isfinite().all()
    tolerance = 1e-4 if eager else 1e-10
    torch.testing.assert_close(logits[:1], model(long).logits, rtol=0, atol=tolerance)
    real = mask[1].bool()
    torch.testing.assert_close(logits[1:, real], model(short).logits, rtol=0, atol=tolerance)


def test_training_from_a_cache_is_refused_and_generating_attends_fully(
    make_model: MakeModel,
) -> None:
    model, full = make_model(**S2).train(), make_model()
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    options |= {"pad_token_id": 0, "attention_mask": torch.ones_like(_ids())}
    assert torch.equal(model.generate(_ids(), **options), full.generate(_ids(), **options))
    cache = model.eval()(_ids(), use_cache=True).past_key_values
    with pytest.raises(InputError, match="can't train on a text that continues from a key/value"):
        model.train()(_ids(2, 1), past_key_values=cache)


def test_attention_that_is_not_known_is_refused_in_training_alone(make_model: MakeModel) -> None:
    model = make_model(**S2)
    model.base.config._attn_implementation = "flex_attention"
    with pytest.raises(InputError, match="shifted_sparse_attention works with the attention impl"):
        model.train()(_ids())


def test_saved_adapter_keeps_the_setting_and_trains_on_with_it(
    make_model: MakeModel, make_base: MakeBase, tmp_path: Path
) -> None:
    model = make_model(**S2, attention_group=5)
    model.save_pretrained(tmp_path)
    loaded = HyLoRADAModel.from_pretrained(
        make_base("llama", torch.float64), tmp_path, is_trainable=True
    )
    assert loaded.active_peft_config == model.active_peft_config
    assert loaded.adapter.attention_group == 5
    assert torch.equal(loaded(_ids()).logits, model.train()(_ids()).logits)
    assert torch.equal(loaded.eval()(_ids()).logits, model.eval()(_ids()).logits)


def test_default_group_is_a_quarter_of_the_block(
    make_base: MakeBase, make_config: MakeConfig
) -> None:
    assert make_config(**S2).tokens_in_group == 4
    assert make_config(**S2, attention_group=6).tokens_in_group == 6
    assert make_config().tokens_in_group is None
    base, unknown = make_base(), {**BARE, **S2, "max_positions": None}
    with pytest.raises(InputError, match="max_positions must be set to the trained block length"):
        Adapter(base, make_config(**unknown), seed=0)
    adapter = Adapter(base, make_config(**unknown, attention_group=4), seed=0)
    assert adapter.attention_group == 4
    assert adapter.eval().attention_group is None
