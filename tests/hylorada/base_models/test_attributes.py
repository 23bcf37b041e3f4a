"""Attributes that tools for transformers' and PEFT's models read: each exists or says why not."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel

from hylorada import HyLoRADAModel, InputError
from hylorada.base_models.attributes import DELEGATED, REFUSED

MakeBase = Callable[..., PreTrainedModel]
MakeModel = Callable[..., HyLoRADAModel]


def _answers(model: object, name: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # deprecated names warn
        return hasattr(model, name)


def _lora(family: str) -> peft.LoraConfig:
    return peft.LoraConfig(
        task_type="CAUSAL_LM", target_modules="all-linear", fan_in_fan_out=family == "gpt2"
    )


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox"])
def test_every_name_that_both_others_answer_is_answered_or_refused(
    make_model: MakeModel, make_base: MakeBase, family: str
) -> None:
    model, base = make_model(family), make_base(family)
    stock = peft.get_peft_model(make_base(family), _lora(family))
    names = (
        {n for n in {*dir(base), *vars(base)} if not n.startswith("_")}
        - set(dir(nn.Module))
        - set(base._modules)
    )
    shared = {name for name in names if _answers(stock, name)}
    assert len(shared) > 90
    assert sorted(name for name in shared - REFUSED.keys() if not _answers(model, name)) == []
    assert shared.isdisjoint(set(base._modules))
    assert sorted(REFUSED.keys() & {n for n in names if _answers(model, n)}) == []
    not_of_all = {"vocab_size", "warnings_issued", "is_loaded_in_4bit"}  # versions and families
    assert sorted(DELEGATED - not_of_all - names) == []


def test_refused_names_say_why(make_model: MakeModel) -> None:
    model = make_model()
    for name, reason in REFUSED.items():
        with pytest.raises(AttributeError) as caught:
            getattr(model, name)
        assert str(caught.value) == f"HyLoRADAModel has no {name}: {reason}"
    with pytest.raises(AttributeError, match="has no attribute 'modle'"):
        model.modle  # noqa: B018
    assert {"device", "generation_config"} <= set(dir(model))


def test_values_are_the_bases(make_model: MakeModel) -> None:
    model = make_model(dtype=torch.float64)
    assert (model.device, model.dtype) == (torch.device("cpu"), torch.float64)
    assert model.to(model.device) is model
    assert model.generation_config is model.base.generation_config
    assert model.get_base_model() is model.base
    assert model.can_generate() is True
    assert model.main_input_name == "input_ids"
    assert model.get_output_embeddings() is model.base.get_output_embeddings()


def test_what_is_set_is_set_on_the_base(make_model: MakeModel) -> None:
    model, prompt = make_model(), torch.ones(1, 3, dtype=torch.long)
    model.generation_config = GenerationConfig(max_new_tokens=4, eos_token_id=None, pad_token_id=0)
    assert model.base.generation_config.max_new_tokens == 4
    assert model.generate(prompt, attention_mask=torch.ones_like(prompt)).shape == (1, 7)
    model.add_model_tags(["mine"])
    assert model.base.model_tags == ["mine"]


def test_parameters_are_counted_with_the_adapters(make_model: MakeModel) -> None:
    model = make_model()
    adapter = sum(p.numel() for p in model.adapter.parameters())
    assert model.num_parameters(only_trainable=True) == adapter
    assert model.num_parameters() == model.base.num_parameters() + adapter
    embeddings = model.base.num_parameters() - model.base.num_parameters(exclude_embeddings=True)
    assert model.num_parameters(exclude_embeddings=True) == model.num_parameters() - embeddings
    assert model.get_memory_footprint() > model.base.get_memory_footprint() + 8 * adapter - 1


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox", "qwen3"])
@pytest.mark.parametrize("design", ["position_adaptive", "global", "per_layer", "attention"])
def test_body_computes_with_the_adapter(make_model: MakeModel, family: str, design: str) -> None:
    model = make_model(family, landmark_design=design)
    ids = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    expected = model(input_ids=ids, attention_mask=mask).logits
    for body in (model.base_model, model.get_decoder(), getattr(model, model.base_model_prefix)):
        hidden = body(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        assert torch.equal(model.get_output_embeddings()(hidden), expected)
    assert not torch.equal(model.base(input_ids=ids, attention_mask=mask).logits, expected)
    assert model.base_model.config is model.config


def test_body_of_a_closed_model_is_refused(make_model: MakeModel) -> None:
    model = make_model()
    body = model.base_model
    model.close()
    with pytest.raises(RuntimeError, match="this model is closed"):
        body(input_ids=torch.ones(1, 3, dtype=torch.long))


def test_training_on_the_body_is_refused_with_regularizers(make_model: MakeModel) -> None:
    model, ids = (
        make_model(landmark_bucketing="learnable", boundary_diversity=0.1),
        torch.ones(1, 3, dtype=torch.long),
    )
    model.base_model(input_ids=ids)
    model.train()
    with torch.no_grad():
        model.base_model(input_ids=ids)
    with pytest.raises(
        InputError, match=r"part of the model's own loss; .* and so does TRL's SFTTrainer"
    ):
        model.base_model(input_ids=ids)


def test_loaded_model_is_frozen_and_in_eval_mode_unless_it_is_to_be_trained(
    make_model: MakeModel, make_base: MakeBase, tmp_path: Path
) -> None:
    make_model(dtype=torch.float32, lora_dropout=0.5).save_pretrained(tmp_path)
    ids = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(0))
    model = HyLoRADAModel.from_pretrained(make_base(), tmp_path)
    assert not model.training
    assert torch.equal(model(ids).logits, model(ids).logits)
    assert model.get_nb_trainable_parameters()[0] == 0
    model = HyLoRADAModel.from_pretrained(make_base(), tmp_path, is_trainable=True)
    assert model.training
    assert not model.base.training
    assert not torch.equal(model(ids).logits, model(ids).logits)
    model(ids, labels=ids).loss.backward()
    assert all(p.grad is not None for p in model.adapter.parameters())


@pytest.mark.parametrize("is_trainable", [False, True])
def test_loaded_model_is_in_the_mode_of_pefts(
    make_model: MakeModel, make_base: MakeBase, tmp_path: Path, is_trainable: bool
) -> None:
    made = make_model(dtype=torch.float32, landmarks=False, position_bias=False)
    made.save_pretrained(tmp_path)
    stock = peft.PeftModel.from_pretrained(make_base(), tmp_path, is_trainable=is_trainable)
    model = HyLoRADAModel.from_pretrained(make_base(), tmp_path, is_trainable=is_trainable)
    assert model.training == stock.training == is_trainable
    assert model.get_nb_trainable_parameters() == stock.get_nb_trainable_parameters()
    assert HyLoRADAModel(make_base(), made.active_peft_config).training
    assert peft.PeftModel(make_base(), stock.active_peft_config).training


def test_optimizer_of_a_frozen_adapter_is_refused(
    make_model: MakeModel, make_base: MakeBase, tmp_path: Path
) -> None:
    from hylorada import TrainingConfig

    make_model(dtype=torch.float32).save_pretrained(tmp_path)
    model = HyLoRADAModel.from_pretrained(make_base(), tmp_path)
    with pytest.raises(InputError, match=r"the adapter is frozen; load it with from_pretr"):
        model.create_optimizer(TrainingConfig())


def test_base_may_be_named(tmp_path: Path, make_config: Callable[..., Any]) -> None:
    from hylorada import load_base

    HyLoRADAModel(load_base("tiny"), make_config()).save_pretrained(tmp_path)
    assert (
        json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"]
        == "tiny"
    )
    model, ids = HyLoRADAModel.from_pretrained("tiny", tmp_path), torch.arange(9)[None]
    assert torch.equal(
        model(ids).logits, load_base("tiny")(ids).logits
    )  # untrained, it changes nothing
