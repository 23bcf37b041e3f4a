"""transformers' Trainer reports the model's losses and resumes bit for bit from checkpoints."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from hylorada import HyLoRADAModel, InputError

MakeModel = Callable[..., HyLoRADAModel]

_STEPS, _LENGTH, _BATCH = 4, 12, 4


@pytest.fixture
def make(make_model: MakeModel) -> Callable[[], HyLoRADAModel]:
    return lambda: make_model(dtype=torch.float32, landmark_bucketing="learnable", lora_dropout=0.3)


def _texts() -> list[dict[str, Tensor]]:
    chance = torch.Generator().manual_seed(0)
    ids = torch.randint(50, (_STEPS * _BATCH, _LENGTH), generator=chance)
    return [{"input_ids": row, "labels": row} for row in ids]


def _trainer(model: HyLoRADAModel, folder: Path, **changes: Any) -> Trainer:
    options: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": _STEPS,
        "per_device_train_batch_size": _BATCH,
        "learning_rate": 1e-2,
        "eval_strategy": "steps",
        "eval_steps": _STEPS // 2,
        "save_steps": _STEPS // 2,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
    }
    return Trainer(
        model=model,
        args=TrainingArguments(**{**options, **changes}),
        train_dataset=_texts(),
        eval_dataset=_texts(),
    )


def _by_hand(model: HyLoRADAModel) -> float:
    ids = torch.stack([text["input_ids"] for text in _texts()])
    with torch.no_grad():
        logits = model.eval()(input_ids=ids).logits[:, :-1]
    return float(nn.functional.cross_entropy(logits.flatten(0, 1).double(), ids[:, 1:].flatten()))


@pytest.mark.parametrize(
    "family", ["llama", "gpt2", "gpt_neox"]
)  # transformers has no loss under the name of GPT-2's class
def test_losses_fall_and_are_those_of_the_model(
    make_model: MakeModel, tmp_path: Path, family: str
) -> None:
    model = make_model(family, torch.float32, landmark_bucketing="learnable", lora_dropout=0.3)
    trainer = _trainer(model, tmp_path)
    before = {name: tensor.clone() for name, tensor in model.base.state_dict().items()}
    assert trainer.evaluate()["eval_loss"] == pytest.approx(_by_hand(model), rel=1e-5)
    at_start = _by_hand(model)
    trainer.train()
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert losses[-1] == pytest.approx(_by_hand(model), rel=1e-5)
    assert losses[-1] < at_start
    assert all(
        torch.equal(before[name], tensor) for name, tensor in model.base.state_dict().items()
    )


def test_label_smoothing_and_noise_on_embeddings_are_those_of_other_models(
    make: Callable[[], HyLoRADAModel], tmp_path: Path
) -> None:
    """Trainer reads the name of a model before it shifts the labels, and its embeddings."""
    model = make()
    trainer = _trainer(model, tmp_path, label_smoothing_factor=1e-9, neftune_noise_alpha=5.0)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(_by_hand(model), rel=1e-5)
    trainer.train()
    assert all(
        math.isfinite(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry
    )


def test_broken_off_run_goes_on_bit_for_bit(
    make: Callable[[], HyLoRADAModel], tmp_path: Path
) -> None:
    whole = make()
    _trainer(whole, tmp_path).train()
    again = make()
    _trainer(again, tmp_path).train(
        resume_from_checkpoint=str(tmp_path / f"checkpoint-{_STEPS // 2}")
    )
    pairs = zip(whole.adapter.named_parameters(), again.adapter.parameters(), strict=True)
    assert [name for (name, one), other in pairs if not torch.equal(one, other)] == []
    assert torch.equal(whole.get_extra_state(), again.get_extra_state())


def test_checkpoint_holds_the_adapter_alone(
    make: Callable[[], HyLoRADAModel], tmp_path: Path
) -> None:
    model = make()
    _trainer(model, tmp_path).train()
    saved = load_file(tmp_path / f"checkpoint-{_STEPS}" / "model.safetensors")
    beside = {
        "_extra_state",
        "hylorada_config",
    }  # the dropout stream and the description of the adapter
    assert saved.keys() == {f"adapter.{name}" for name in model.adapter.state_dict()} | beside


def test_activation_checkpointing_gives_the_same_run(
    make: Callable[[], HyLoRADAModel], tmp_path: Path
) -> None:
    plain, saving = make(), make()
    _trainer(plain, tmp_path / "1").train()
    counts: list[int] = []
    saving.base.get_submodule("model.layers.0.input_layernorm").register_forward_hook(
        lambda *_: counts.append(1)
    )
    _trainer(saving, tmp_path / "2", activation_checkpointing=True, eval_strategy="no").train()
    assert len(counts) == 2 * _STEPS  # each forward pass runs once more in the backward pass
    for one, other in zip(plain.adapter.parameters(), saving.adapter.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "options", [{"use_reentrant": True}, {"context_fn": lambda: None}], ids=["reentrant", "own"]
)
def test_checkpoints_of_another_kind_are_refused(
    make: Callable[[], HyLoRADAModel], options: dict[str, Any]
) -> None:
    model = make()
    for enable in (model.gradient_checkpointing_enable, model.activation_checkpointing_enable):
        with pytest.raises(InputError, match="needs use_reentrant=False"):
            enable(options)
    model.gradient_checkpointing_enable({"use_reentrant": False})


def test_state_without_a_base_leaves_that_of_another_model_alone(
    make: Callable[[], HyLoRADAModel],
) -> None:
    trained, other = make(), make()
    with torch.no_grad():
        for parameter in trained.adapter.parameters():
            parameter.add_(0.1)
        for parameter in other.base.parameters():
            parameter.mul_(1.01)
    weights = {name: tensor.clone() for name, tensor in other.base.state_dict().items()}
    wrapped = nn.ModuleDict(
        {"a": trained, "b": nn.Linear(2, 2)}
    )  # it is restored as a part of a larger module, too
    state = wrapped.state_dict()
    assert not any(".base." in name for name in state)
    taking = nn.ModuleDict({"a": other, "b": nn.Linear(2, 2)})
    taking.load_state_dict(state)  # `strict` is the default
    for one, two in zip(trained.adapter.parameters(), other.adapter.parameters(), strict=True):
        assert torch.equal(one, two)
    assert all(
        torch.equal(weights[name], tensor) for name, tensor in other.base.state_dict().items()
    )
    del state["a.adapter.position_bias.bias"]
    with pytest.raises(
        RuntimeError, match=r"Missing key\(s\) in state_dict: \"a\.adapter\.position_bias\.bias\""
    ):
        taking.load_state_dict(state)
