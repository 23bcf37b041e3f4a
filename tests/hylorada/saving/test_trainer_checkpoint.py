"""Checkpoints of Trainer load like saved adapters, and errors name the reason."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, Trainer, TrainingArguments

from hylorada import HyLoRADAModel, InputError

MakeBase = Callable[..., PreTrainedModel]
MakeModel = Callable[..., HyLoRADAModel]


def _ids() -> Tensor:
    return torch.randint(50, (8, 12), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def trained(make_model: MakeModel, tmp_path: Path) -> tuple[HyLoRADAModel, Path]:
    """Return a model after 4 steps under Trainer, and its checkpoint of that step."""
    model = make_model(dtype=torch.float32, landmark_bucketing="learnable", lora_dropout=0.3)
    options: dict[str, Any] = {
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "learning_rate": 1e-2,
    }
    args = TrainingArguments(
        str(tmp_path), max_steps=4, save_steps=2, per_device_train_batch_size=2, **options
    )
    Trainer(
        model, args, train_dataset=[{"input_ids": row, "labels": row} for row in _ids()]
    ).train()
    return model, tmp_path / "checkpoint-4"


def test_checkpoint_opens_as_the_trained_model(
    trained: tuple[HyLoRADAModel, Path], make_base: MakeBase
) -> None:
    model, checkpoint = trained
    opened = HyLoRADAModel.from_pretrained(make_base(), checkpoint)
    assert torch.equal(opened(_ids()).logits, model.eval()(_ids()).logits)
    assert opened.active_peft_config == model.active_peft_config
    earlier = HyLoRADAModel.from_pretrained(make_base(), checkpoint.with_name("checkpoint-2"))
    assert not torch.equal(earlier(_ids()).logits, opened(_ids()).logits)


def test_model_that_trainer_saved_at_the_end_opens(
    trained: tuple[HyLoRADAModel, Path], make_base: MakeBase, tmp_path: Path
) -> None:
    model, _ = trained
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    Trainer(model, args).save_model(str(tmp_path / "final"))
    opened = HyLoRADAModel.from_pretrained(make_base(), tmp_path / "final")
    assert torch.equal(opened(_ids()).logits, model.eval()(_ids()).logits)


@pytest.mark.parametrize("earlier", ["trainer", "base"])
def test_saved_adapter_goes_before_weights_in_its_folder(
    make_model: MakeModel, make_base: MakeBase, tmp_path: Path, earlier: str
) -> None:
    model = make_model(dtype=torch.float32).eval()
    if earlier == "trainer":
        args = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
        Trainer(model, args).save_model(str(tmp_path))
    else:
        model.base.save_pretrained(tmp_path)
    with torch.no_grad():
        for parameter in model.adapter.lora.parameters():
            parameter.mul_(1.5)
    model.save_pretrained(tmp_path)
    opened = HyLoRADAModel.from_pretrained(make_base(), tmp_path)
    assert torch.equal(opened(_ids()).logits, model(_ids()).logits)


def test_output_folder_names_its_checkpoints(
    trained: tuple[HyLoRADAModel, Path], make_base: MakeBase
) -> None:
    with pytest.raises(InputError, match="name one of its 2 checkpoints, such as checkpoint-4"):
        HyLoRADAModel.from_pretrained(make_base(), trained[1].parent)


def test_checkpoint_of_another_base_is_refused(
    trained: tuple[HyLoRADAModel, Path], make_base: MakeBase
) -> None:
    with pytest.raises(
        InputError, match="was saved for a base with model_type 'llama', this one has 'gpt2'"
    ):
        HyLoRADAModel.from_pretrained(make_base("gpt2"), trained[1])


def _text(values: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(values).encode()), dtype=torch.uint8)


def _without(name: str) -> Callable[[dict[str, Tensor]], Any]:
    return lambda state: state.pop(name)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_without("adapter.landmark.scale"), "tensor 'adapter.landmark.scale' is missing"),
        (
            _without("hylorada_config"),
            "is from a version whose checkpoints don't hold the adapter's configuration; make the ",
        ),
        (lambda state: state.update(extra=torch.ones(2)), "tensor 'extra' is unexpected"),
        (
            lambda state: state["adapter.landmark.scale"].fill_(torch.nan),
            "numbers that are not finite",
        ),
        (
            lambda state: state.update(hylorada_config=_text("no object")),
            "format None, expected 'hylorada-adapter-1'",
        ),
        (
            lambda state: state.update(hylorada_config=torch.tensor([123])),
            "tensor 'hylorada_config' is damaged",
        ),
    ],
)
def test_damaged_checkpoint_is_refused(
    trained: tuple[HyLoRADAModel, Path],
    make_base: MakeBase,
    damage: Callable[[dict[str, Tensor]], Any],
    message: str,
) -> None:
    path = trained[1] / "model.safetensors"
    state = load_file(path)
    damage(state)
    save_file(state, path)
    with pytest.raises(InputError, match=message):
        HyLoRADAModel.from_pretrained(make_base(), trained[1])


def test_folder_of_a_whole_model_is_no_checkpoint(make_base: MakeBase, tmp_path: Path) -> None:
    make_base().save_pretrained(tmp_path)
    with pytest.raises(
        InputError, match=re.escape(f"{tmp_path}/model.safetensors holds no adapter")
    ):
        HyLoRADAModel.from_pretrained(make_base(), tmp_path)


def test_older_state_without_a_description_is_loaded(make_model: MakeModel) -> None:
    one, other = make_model(), make_model(lora_dropout=0.1)
    state = one.state_dict()
    del state["hylorada_config"]
    torch.nn.init.zeros_(other.adapter.get_parameter("landmark.scale"))
    other.load_state_dict(state)  # `strict` is the default
    assert torch.equal(other(_ids()).logits, one(_ids()).logits)
