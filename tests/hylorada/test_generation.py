"""Generation beyond the contract suite: no cache, beams, samples, pads on both sides, errors."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from designs import DESIGNS
from transformers import DynamicCache, StaticCache

from hylorada import HyLoRADAModel, InputError

FAMILIES = ["llama", "gpt2", "gpt_neox"]
ARMS: dict[str, dict[str, Any]] = {
    "fixed": {"bucket_spacing": "linear"},
    "learnable": {"landmark_bucketing": "learnable", "temperature": 0.05},
}
NEW = 5
PAD = 0
LENGTHS = (6, 3, 1, 4)

POOLING: list[dict[str, Any]] = [
    {"landmark_design": "global"},
    {"landmark_design": "per_layer"},
    DESIGNS["own, pooling"],
]

MakeModel = Callable[..., HyLoRADAModel]


def _prompts() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(1, 50, (1, n), generator=generator) for n in LENGTHS]


def _left_padded(prompts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(p.shape[1] for p in prompts)
    ids = torch.cat(
        [torch.nn.functional.pad(p, (longest - p.shape[1], 0), value=PAD) for p in prompts]
    )
    lengths = torch.tensor([p.shape[1] for p in prompts])
    return ids, (torch.arange(longest)[None] >= longest - lengths[:, None]).long()


def _options(**changes: Any) -> dict[str, Any]:
    return {
        "max_new_tokens": NEW,
        "do_sample": False,
        "pad_token_id": PAD,
        "eos_token_id": None,
        **changes,
    }


def _by_hand(model: HyLoRADAModel, prompt: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Continue a prompt by whole forward passes, without cache, mask or ``generate``.

    Where they equal the generated ones, greedy decoding token by token yields them, too.
    """
    return torch.cat(
        [prompt, model(tokens[:, :-1]).logits[:, prompt.shape[1] - 1 :].argmax(-1)], dim=1
    )


def _cache_name(model: HyLoRADAModel) -> str:
    return (
        "cache"
        if "cache" in inspect.signature(model.base.forward).parameters
        else "past_key_values"
    )


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_generation_equals_whole_forwards(
    make_model: MakeModel, family: str, use_cache: bool
) -> None:
    model = make_model(family, **ARMS["learnable"])
    for prompt in _prompts():
        tokens = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), **_options(use_cache=use_cache)
        )
        assert tokens.tolist() == _by_hand(model, prompt, tokens).tolist()


def test_the_adapter_decides_what_is_generated(make_model: MakeModel) -> None:
    """The equalities above do not hold just because `generate` ignores the adapter."""
    model, prompt = make_model("gpt2"), _prompts()[0]
    adapted = model.generate(prompt, attention_mask=torch.ones_like(prompt), **_options())
    with model.disable_adapter():
        off = model.generate(prompt, attention_mask=torch.ones_like(prompt), **_options())
    plain = model.base.generate(prompt, attention_mask=torch.ones_like(prompt), **_options())  # type: ignore[operator]
    assert off.tolist() == plain.tolist()
    assert adapted.tolist() != plain.tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_a_left_padded_batch_generate_as_alone_without_the_cache(
    make_model: MakeModel, family: str
) -> None:
    model, prompts = make_model(family, **ARMS["learnable"]), _prompts()
    ids, mask = _left_padded(prompts)
    rows = model.generate(ids, attention_mask=mask, **_options(use_cache=False))
    for row, prompt in zip(rows, prompts, strict=True):
        tokens = row[None, -NEW - prompt.shape[1] :]
        assert tokens.tolist() == _by_hand(model, prompt, tokens).tolist()


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("changes", [ARMS["learnable"], *POOLING])
def test_beams_and_samples_with_and_without_the_cache_agree(
    make_model: MakeModel, changes: dict[str, Any], num_beams: int
) -> None:
    model = make_model("gpt2", **changes)
    ids, mask = _left_padded(_prompts())
    outputs = []
    for use_cache in (True, False):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            options = _options(use_cache=use_cache, num_beams=num_beams, do_sample=num_beams == 1)
            outputs.append(model.generate(ids, attention_mask=mask, **options).tolist())
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("changes", POOLING)
def test_statistics_follow_a_cache_that_is_cropped_repeated_and_chosen_from(
    make_model: MakeModel, changes: dict[str, Any]
) -> None:
    model = make_model("gpt2", **changes)
    ids = torch.randint(1, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    more = torch.randint(1, 50, (4, 3), generator=torch.Generator().manual_seed(1))
    cache = DynamicCache(config=model.base.config)
    model(ids, past_key_values=cache)
    cache.crop(-2)
    cache.batch_repeat_interleave(2)
    logits = model(more, past_key_values=cache).logits
    whole = torch.cat([ids[:, :7].repeat_interleave(2, 0), more], 1)
    torch.testing.assert_close(logits, model(whole).logits[:, 7:], rtol=0, atol=1e-10)
    cache.batch_select_indices(torch.tensor([3, 0]))
    logits = model(more[:2], past_key_values=cache).logits
    whole = torch.cat([whole[[3, 0]], more[:2]], 1)
    torch.testing.assert_close(logits, model(whole).logits[:, 10:], rtol=0, atol=1e-10)


@pytest.mark.parametrize("changes", POOLING[:2])  # the other one has as many pools as "global"
def test_cache_without_its_statistics_is_refused(
    make_model: MakeModel, changes: dict[str, Any]
) -> None:
    model, other = (
        make_model("gpt2", **changes),
        make_model("gpt2", **next(c for c in POOLING if c != changes)),
    )
    ids = _prompts()[0]
    cache = DynamicCache(config=model.base.config)
    with model.disable_adapter():
        model(ids, past_key_values=cache)
    with pytest.raises(InputError, match="this cache was filled without the adapter's landmarks"):
        model(ids, past_key_values=cache)
    assert len(cache.layers) == 2  # the cache is unchanged
    with pytest.raises(InputError, match="this cache was filled without the adapter's landmarks"):
        model(
            ids,
            past_key_values=other(
                ids, past_key_values=DynamicCache(config=model.base.config)
            ).past_key_values,
        )
    static = StaticCache(config=model.base.config, max_cache_len=20)
    with pytest.raises(InputError, match="need a DynamicCache, got StaticCache"):
        model(ids, past_key_values=static)


@pytest.mark.parametrize("design", ["global", "per_layer"])
def test_pooling_over_the_whole_block_goes_on_from_no_cache(
    make_model: MakeModel, design: str
) -> None:
    model, prompt = (
        make_model("gpt2", landmark_design=design, replication_noncausal_pooling=True),
        _prompts()[0],
    )
    tokens, by_hand = (
        model.generate(prompt, attention_mask=torch.ones_like(prompt), **_options()),
        prompt,
    )
    for _ in range(NEW):
        by_hand = torch.cat([by_hand, model(by_hand).logits[:, -1:].argmax(-1)], dim=1)
    assert tokens.tolist() == by_hand.tolist()
    refused = "replication_noncausal_pooling can't (go on|continue) from a cache"
    with pytest.raises(InputError, match=refused):
        model(prompt, use_cache=True)
    for option in ({"past_key_values": DynamicCache()}, {"prompt_lookup_num_tokens": 2}):
        with pytest.raises(InputError, match=refused):
            model.generate(prompt, **option, **_options())


@pytest.mark.parametrize("changes", POOLING)
def test_masks_that_do_not_show_the_pads_are_refused(
    make_model: MakeModel, changes: dict[str, Any]
) -> None:
    model, prompt = make_model("gpt2", **changes), _prompts()[0]
    with pytest.raises(InputError, match=r"need an attention_mask \[b, T\], 0 at pads"):
        model(prompt, attention_mask=torch.zeros(1, 1, prompt.shape[1], prompt.shape[1]))


@pytest.mark.parametrize("family", ["gpt2", "qwen2"])
def test_static_cache_of_a_design_that_pools_nothing(make_model: MakeModel, family: str) -> None:
    model, prompt = make_model(family, torch.float32, **ARMS["learnable"]), _prompts()[0]
    options = _options(
        attention_mask=torch.ones_like(prompt), cache_implementation="static", max_new_tokens=3
    )
    tokens = model.generate(prompt, **options)
    assert tokens.tolist() == _by_hand(model, prompt, tokens).tolist()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", FAMILIES)
def test_pads_change_no_logit_of_a_real_token(
    make_model: MakeModel, family: str, side: str
) -> None:
    model = make_model(family, torch.float32, **ARMS["learnable"])
    long, short = torch.arange(1, 10)[None], torch.arange(20, 25)[None]
    pad = (4, 0) if side == "left" else (0, 4)
    ids = torch.cat([long, torch.nn.functional.pad(short, pad, value=PAD)])
    mask = torch.cat([torch.ones_like(long), torch.nn.functional.pad(torch.ones_like(short), pad)])
    logits = model(ids, attention_mask=mask).logits
    torch.testing.assert_close(logits[:1], model(long).logits, rtol=0, atol=1e-4)
    torch.testing.assert_close(logits[1:, mask[1].bool()], model(short).logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("cut", [1, 5, 11])
@pytest.mark.parametrize("family", FAMILIES)
def test_forward_in_two_pieces_equals_one(make_model: MakeModel, family: str, cut: int) -> None:
    """Positions continue from the length of the cache."""
    model = make_model(family, **ARMS["learnable"])
    ids = torch.randint(1, 50, (2, 12), generator=torch.Generator().manual_seed(0))
    whole = model(ids).logits
    first = model(ids[:, :cut], use_cache=True)
    name = _cache_name(model)
    cache = getattr(first, name)
    assert cache.get_seq_length() == cut
    second = model(ids[:, cut:], **{name: cache}, use_cache=True)
    torch.testing.assert_close(
        torch.cat([first.logits, second.logits], 1), whole, rtol=0, atol=1e-10
    )
    third = model(ids[:, :1], past_key_values=getattr(second, name), use_cache=True).logits
    again = model(torch.cat([ids, ids[:, :1]], 1)).logits[:, -1:]
    torch.testing.assert_close(third, again, rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_a_padded_second_piece_go_on_from_their_own_positions(
    make_model: MakeModel, family: str
) -> None:
    """Positions are counted from a mask that is longer than the piece of text.

    `generate` passes positions itself.
    """
    model, (ids, mask) = make_model(family, **ARMS["learnable"]), _left_padded(_prompts())
    whole = model(ids, attention_mask=mask).logits
    first = model(ids[:, :4], attention_mask=mask[:, :4], use_cache=True)
    second = model(
        ids[:, 4:],
        attention_mask=mask,
        use_cache=True,
        **{(n := _cache_name(model)): getattr(first, n)},
    )
    real = mask[:, 4:].bool()
    torch.testing.assert_close(second.logits[real], whole[:, 4:][real], rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_given_position_ids_are_those_of_base_and_adapter(
    make_model: MakeModel, family: str
) -> None:
    model = make_model(family, **ARMS["fixed"])
    ids = torch.randint(1, 50, (2, 8), generator=torch.Generator().manual_seed(0))
    counted = torch.arange(8)[None]
    assert torch.equal(model(ids, position_ids=counted).logits, model(ids).logits)
    # The positions of the two rows differ, so that a broadcast from the first row would show.
    shifted = torch.stack([torch.arange(3, 11), torch.arange(8)])
    mask = torch.ones_like(ids)
    logits = model(ids, attention_mask=mask, position_ids=shifted).logits
    torch.testing.assert_close(logits[1:], model(ids[1:]).logits, rtol=0, atol=1e-10)
    assert (logits[0] - model(ids[:1]).logits).abs().max() > 1e-3


def test_no_cache_is_kept_unless_asked_for(make_model: MakeModel) -> None:
    model, ids = make_model("llama"), _prompts()[0]
    model.base.config.use_cache = False
    names = {"cache", "past_key_values"}
    assert not names & {k for k, v in model(ids).items() if v is not None}
    assert names & {k for k, v in model(ids, use_cache=True).items() if v is not None}


def test_generate_leaves_the_base_as_it_was_also_after_an_error(make_model: MakeModel) -> None:
    model, prompt = make_model("llama"), _prompts()[0]
    plain = model.base(prompt).logits
    hooks = len(model.base._forward_pre_hooks), len(model.base._forward_hooks)
    with pytest.raises(IndexError, match="out of range"):
        model.generate(prompt + 1000, attention_mask=torch.ones_like(prompt), **_options())
    assert torch.equal(model.base(prompt).logits, plain)
    assert (len(model.base._forward_pre_hooks), len(model.base._forward_hooks)) == hooks
    tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), **_options())
    assert tokens.tolist() == _by_hand(model, prompt, tokens).tolist()
