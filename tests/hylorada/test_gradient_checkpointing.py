"""Checkpointing on a frozen base: gradients are unchanged, and layers really are recomputed."""

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import peft
import pytest
import torch
from torch import Tensor

from hylorada import HyLoRADAModel
from hylorada.base_models.architectures import architecture_of

FAMILIES = ["llama", "gpt2", "gpt_neox"]
ARMS: dict[str, dict[str, Any]] = {
    "learnable": {"landmark_bucketing": "learnable", "lora_dropout": 0.3},
    "first layer alone": {"target_modules": ("0.self_attn.q_proj",)},
}

Trained = Callable[..., HyLoRADAModel]


@pytest.fixture
def trained(make_model: Trained) -> Trained:
    return lambda *args, **changes: make_model(*args, **changes).train()


def _ids() -> Tensor:
    return torch.randint(50, (2, 12), generator=torch.Generator().manual_seed(0))


def _gradients(model: HyLoRADAModel, times: int = 1) -> dict[str, Tensor]:
    """Return the gradients of the sum of ``times`` losses; dropout differs from step to step."""
    model.zero_grad()
    for _ in range(times):
        model(_ids(), labels=_ids()).loss.backward()
    return {n: p.grad.clone() for n, p in model.adapter.named_parameters() if p.grad is not None}


def _count_layer_norms(model: HyLoRADAModel, counts: list[int]) -> None:
    layers = model.base.get_submodule(architecture_of(model.base.config.model_type).layers)
    first_norm = next(m for m in layers.modules() if "Norm" in type(m).__name__)
    first_norm.register_forward_hook(lambda *_: counts.append(1))


@pytest.mark.parametrize(
    ("family", "arm"), [*((f, "learnable") for f in FAMILIES), ("llama", "first layer alone")]
)
def test_gradients_are_those_without_checkpoints(trained: Trained, family: str, arm: str) -> None:
    expected = _gradients(trained(family, **ARMS[arm]), times=2)
    model = trained(family, **ARMS[arm])
    counts: list[int] = []
    _count_layer_norms(model, counts)
    model.gradient_checkpointing_enable()
    gradients = _gradients(model, times=2)
    assert len(counts) == 4  # each forward pass runs once more in the backward pass
    names = {name for name, _ in model.adapter.named_parameters()}
    assert gradients.keys() == expected.keys() == names
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=1e-10)
        if "lora_B" in name:
            assert gradient.abs().max() > 0


def test_backward_may_be_run_twice(trained: Trained) -> None:
    expected = _gradients(trained())
    model = trained()
    model.gradient_checkpointing_enable()
    loss = model(_ids(), labels=_ids()).loss
    loss.backward(retain_graph=True)
    loss.backward()
    for name, parameter in model.adapter.named_parameters():
        torch.testing.assert_close(parameter.grad, 2 * expected[name], rtol=0, atol=1e-10)


def test_two_forwards_before_their_backwards_keep_their_own_adapters(trained: Trained) -> None:
    """Each call recomputes with its own adapter, not with the one that ran last."""
    model, expected = trained(), _gradients(trained())
    model.gradient_checkpointing_enable()
    first = model(_ids(), labels=_ids()).loss
    with model.disable_adapter(), torch.no_grad():
        model(_ids())
    model(_ids()[:1], position_ids=torch.arange(4, 16)[None], labels=_ids()[:1])
    first.backward()
    for name, parameter in model.adapter.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=0, atol=1e-10)


def test_only_training_with_gradients_is_checkpointed(trained: Trained) -> None:
    model = trained()
    counts: list[int] = []
    _count_layer_norms(model, counts)
    model.gradient_checkpointing_enable()
    prompt = _ids()
    options: dict[str, Any] = {
        "attention_mask": torch.ones_like(prompt),
        "max_new_tokens": 3,
        "do_sample": False,
    }
    whole = model.generate(prompt, use_cache=False, **options)
    assert model.generate(prompt, use_cache=True, **options).tolist() == whole.tolist()
    model.eval()
    counts.clear()
    _gradients(model)
    assert len(counts) == 1
    model.train()
    model.gradient_checkpointing_disable()
    counts.clear()
    _gradients(model)
    assert len(counts) == 1


def test_frozen_base_stays_frozen_and_in_eval_mode(trained: Trained) -> None:
    model = trained()
    model.gradient_checkpointing_enable()
    _gradients(model)
    assert not any(m.training for m in model.base.modules())
    assert all(p.grad is None and not p.requires_grad for p in model.base.parameters())
    assert not model.base(_ids()).logits.requires_grad


def test_another_model_on_the_same_base_is_not_checkpointed(
    trained: Trained, scramble: Any
) -> None:
    model = trained()
    expected = _gradients(trained())
    other = HyLoRADAModel(model.base, model.active_peft_config).train()
    scramble(other.adapter)
    model.gradient_checkpointing_enable()
    for name, gradient in _gradients(other).items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_trainable_parameters_are_printed_in_pefts_words(
    trained: Trained, family: str, tmp_path: Any
) -> None:
    model = trained(family, landmarks=False, position_bias=False)
    model.save_pretrained(tmp_path)
    ours, theirs = io.StringIO(), io.StringIO()
    with redirect_stdout(ours):
        model.print_trainable_parameters()
    model.close()
    with redirect_stdout(theirs):
        peft.PeftModel.from_pretrained(
            model.base, tmp_path, is_trainable=True
        ).print_trainable_parameters()
    assert ours.getvalue() == theirs.getvalue() != ""
