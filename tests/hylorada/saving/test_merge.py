"""Merged weights compute the same as the unmerged adapter, and unmerging restores every bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from hylorada import HyLoRADAModel, InputError

FAMILIES = ["llama", "gpt2", "gpt_neox"]
TARGETS = {
    "llama": ("q_proj", "o_proj", "down_proj"),
    "gpt2": ("c_attn", "c_proj"),
    "gpt_neox": ("query_key_value",),
}

Trained = Callable[..., HyLoRADAModel]


@pytest.fixture
def trained(make_model: Trained) -> Trained:
    def make(
        family: str = "llama", dtype: torch.dtype = torch.float64, **changes: Any
    ) -> HyLoRADAModel:
        return make_model(
            family, dtype, **{"position_bias": False, "target_modules": TARGETS[family], **changes}
        )

    return make


def _ids() -> torch.Tensor:
    return torch.randint(50, (2, 12), generator=torch.Generator().manual_seed(0))


def _bits(base: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in base.named_parameters()}


def _differing(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, value in first.items() if not torch.equal(value, second[name])}


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_equals_unmerged_and_unmerging_restores_every_bit(
    trained: Trained, family: str
) -> None:
    model, ids = trained(family, landmark_bucketing="learnable", lora_dropout=0.5), _ids()
    before, logits = _bits(model.base), model(ids).logits
    model.merge()
    torch.testing.assert_close(model(ids).logits, logits, rtol=0, atol=1e-10)
    merged = _bits(model.base)
    assert _differing(before, merged) == {f"{path}.weight" for path in model.adapter.targets}
    model.merge()  # a second merge has no effect
    assert _differing(merged, _bits(model.base)) == set()
    model.unmerge()
    assert _differing(before, _bits(model.base)) == set()
    assert torch.equal(model(ids).logits, logits)
    model.unmerge()
    assert torch.equal(model(ids).logits, logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_base_of_lower_precision_gets_its_own_bits_back(
    trained: Trained, dtype: torch.dtype
) -> None:
    """Restored weights are the originals; W + delta - delta would be rounded."""
    model = trained("gpt2", dtype)
    before = _bits(model.base)
    model.merge()
    assert {p.dtype for p in model.base.parameters()} == {dtype}
    model.unmerge()
    assert _differing(before, _bits(model.base)) == set()


@pytest.mark.parametrize("family", FAMILIES)
def test_unloaded_base_alone_computes_what_the_model_did(trained: Trained, family: str) -> None:
    model, ids = trained(family, landmarks=False), _ids()
    logits = model(ids).logits
    base = model.merge_and_unload()
    torch.testing.assert_close(base(ids).logits, logits, rtol=0, atol=1e-10)
    assert not any(m._forward_hooks for m in base.modules())
    with pytest.raises(RuntimeError, match="this model is closed"):
        model(ids)
    with pytest.raises(RuntimeError, match="this model is closed"):
        model.generate(ids)
    with pytest.raises(RuntimeError, match="this model is closed"):
        model.merge()


def test_landmarks_cannot_be_unloaded(trained: Trained) -> None:
    model = trained()
    before, logits = _bits(model.base), model(_ids()).logits
    with pytest.raises(
        InputError, match="an adapter with landmarks can't be unloaded into its base"
    ):
        model.merge_and_unload()
    assert _differing(before, _bits(model.base)) == set()
    assert torch.equal(model(_ids()).logits, logits)


def test_position_bias_cannot_be_merged(trained: Trained) -> None:
    model = trained(position_bias=True)
    before, logits = _bits(model.base), model(_ids()).logits
    for merge in (model.merge, trained(position_bias=True, landmarks=False).merge_and_unload):
        with pytest.raises(InputError, match="an adapter with a position bias can't be merged"):
            merge()
    assert _differing(before, _bits(model.base)) == set()
    assert torch.equal(model(_ids()).logits, logits)


def test_second_merge_into_one_base_is_refused_and_changes_nothing(trained: Trained) -> None:
    first = trained(landmarks=False)
    ids, before, logits = _ids(), _bits(first.base), first(_ids()).logits
    second = HyLoRADAModel(first.base, first.active_peft_config, seed=1)
    second.adapter.load_state_dict(first.adapter.state_dict())
    first.merge()
    merged = _bits(first.base)
    for merge in (second.merge, second.merge_and_unload):
        with pytest.raises(
            InputError, match="the base is merged already, with the adapter of another model"
        ):
            merge()
    assert _differing(merged, _bits(first.base)) == set()
    first.unmerge()
    assert _differing(before, _bits(first.base)) == set()
    base = second.merge_and_unload()  # the first model no longer blocks it
    torch.testing.assert_close(base(ids).logits, logits, rtol=0, atol=1e-10)


def test_unloaded_base_may_be_merged_again(trained: Trained) -> None:
    first, ids = trained(landmarks=False), _ids()
    config = first.active_peft_config
    second = HyLoRADAModel(first.merge_and_unload(), config, seed=1).eval()
    with torch.no_grad():
        for parameter in second.adapter.parameters():
            parameter.fill_(0.1)
    expected = second(ids).logits
    second.merge()
    torch.testing.assert_close(second.base(ids).logits, expected, rtol=0, atol=1e-10)


def test_non_finite_update_is_refused_by_name_and_changes_nothing(trained: Trained) -> None:
    model = trained("gpt2")
    before = _bits(model.base)
    path = "transformer.h.1.attn.c_attn"
    lora = model.adapter.lora_at(path)
    assert lora is not None
    with torch.no_grad():
        lora.lora_B[0, 0] = float("nan")
    with pytest.raises(InputError, match="non-finite weights") as caught:
        model.merge()
    assert [p.split()[0] for p in caught.value.problems] == [path]
    assert _differing(before, _bits(model.base)) == set()


def test_disabled_merged_adapter_is_the_base_and_comes_back(
    trained: Trained, make_base: Any
) -> None:
    model, ids = trained(landmarks=False), _ids()
    plain, logits = make_base("llama", torch.float64)(ids).logits, model(ids).logits
    model.merge()
    with model.disable_adapter():
        assert torch.equal(model(ids).logits, plain)
    torch.testing.assert_close(model.base(ids).logits, logits, rtol=0, atol=1e-10)


def test_merged_model_generates_the_same(trained: Trained) -> None:
    model, ids = trained("gpt2"), _ids()
    options: dict[str, Any] = {
        "attention_mask": torch.ones_like(ids),
        "max_new_tokens": 8,
        "do_sample": False,
    }
    expected = model.generate(ids, **options)
    model.merge()
    assert model.generate(ids, **options).tolist() == expected.tolist()


def test_merged_adapter_is_saved_as_it_is(trained: Trained, make_base: Any, tmp_path: Any) -> None:
    model, ids = trained(), _ids()
    logits = model(ids).logits
    model.merge()
    model.save_pretrained(tmp_path)
    again = HyLoRADAModel.from_pretrained(make_base("llama", torch.float64), tmp_path).eval()
    assert torch.equal(again(ids).logits, logits)


def test_closed_model_leaves_the_base_as_it_came(trained: Trained, make_base: Any) -> None:
    model, ids = trained(), _ids()
    model.merge()
    model.gradient_checkpointing_enable()
    model.close()
    model.close()
    fresh = make_base("llama", torch.float64)
    assert _differing(_bits(fresh), _bits(model.base)) == set()
    for module in model.base.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not getattr(module, "gradient_checkpointing", False)
    assert torch.equal(model.base(ids).logits, fresh(ids).logits)


def test_row_of_zeros_merges_into_a_row_of_zeros(trained: Trained, make_base: Any) -> None:
    base = make_base("llama", torch.float64)
    with torch.no_grad():
        base.get_submodule("model.layers.0.self_attn.q_proj").weight[3] = 0
    config = trained(use_dora=True, landmarks=False).adapter.config
    model, ids = HyLoRADAModel(base, config, seed=1).eval(), _ids()
    logits = model(ids).logits
    model.merge()
    torch.testing.assert_close(model(ids).logits, logits, rtol=0, atol=1e-10)
