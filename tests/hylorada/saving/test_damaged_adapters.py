"""Saved adapters that are damaged, changed or of another base are refused by name."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from hylorada import HyLoRADAConfig, HyLoRADAModel, InputError, load_adapter

MakeBase = Callable[..., PreTrainedModel]
MakeConfig = Callable[..., HyLoRADAConfig]


def _change_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


Q_PROJ_A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
TENSORS = [
    ("adapter_model.safetensors", Q_PROJ_A),
    ("hylorada_model.safetensors", "landmark.boundaries"),
    ("hylorada_model.safetensors", "position_bias.bias"),
]


@pytest.mark.parametrize(("file", "name"), TENSORS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors, name: tensors.pop(name), "tensor '{}' is missing"),
        (
            lambda tensors, name: tensors.update({name: torch.zeros(7, 5)}),
            r"tensor '{}' has shape \[7, 5\], must be",
        ),
        (
            lambda tensors, name: tensors.update({name: tensors[name].bfloat16()}),
            r"tensor '{}' is torch\.bfloat16, must be float32",
        ),
    ],
    ids=["missing", "shape", "dtype"],
)
def test_tensor_that_does_not_fit_is_refused_by_name(
    make_base: MakeBase,
    saved: Path,
    file: str,
    name: str,
    change: Callable[..., object],
    message: str,
) -> None:
    _change_tensors(saved / file, lambda tensors: change(tensors, name))
    with pytest.raises(
        InputError, match=file.replace(".", r"\.") + ": " + message.format(name)
    ) as caught:
        HyLoRADAModel.from_pretrained(make_base(), saved)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "hylorada_model.safetensors"])
def test_unexpected_tensor_is_refused_by_name(make_base: MakeBase, saved: Path, file: str) -> None:
    _change_tensors(saved / file, lambda tensors: tensors.update({"stranger": torch.zeros(1)}))
    with pytest.raises(InputError, match=f"{file}: tensor 'stranger' is unexpected"):
        load_adapter(make_base(), saved)


def test_keys_without_pefts_prefix_are_refused_ten_named_and_all_counted(
    make_base: MakeBase, saved: Path
) -> None:
    path = saved / "adapter_model.safetensors"
    tensors = load_file(path)
    save_file({name.removeprefix("base_model.model."): t for name, t in tensors.items()}, path)
    with pytest.raises(
        InputError, match=f"{2 * len(tensors)} tensors don't fit, the first 10 are named"
    ) as caught:
        load_adapter(make_base(), saved)
    assert len(caught.value.problems) == 11


def test_changed_number_is_refused(make_base: MakeBase, saved: Path) -> None:
    _change_tensors(
        saved / "hylorada_model.safetensors", lambda tensors: tensors["landmark.scale"].add_(1)
    )
    with pytest.raises(InputError, match=r"hylorada_model\.safetensors is not the file"):
        load_adapter(make_base(), saved)


def test_trained_adapter_without_effect_is_refused(make_base: MakeBase, saved: Path) -> None:
    def clear(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            if "lora_B" in name:
                tensor.zero_()

    _change_tensors(saved / "adapter_model.safetensors", clear)
    with pytest.raises(InputError, match="adapter has no effect"):
        load_adapter(make_base(), saved)


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "hylorada_model.safetensors"])
@pytest.mark.parametrize("keep", [0, 4, 60, -1])
def test_truncated_tensors_are_refused(
    make_base: MakeBase, saved: Path, file: str, keep: int
) -> None:
    (saved / file).write_bytes((saved / file).read_bytes()[:keep])
    with pytest.raises(InputError, match=f"{file} is damaged: "):
        load_adapter(make_base(), saved)


@pytest.mark.parametrize("file", ["adapter_config.json", "hylorada_config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]"])
def test_damaged_json_is_refused(
    make_base: MakeBase, saved: Path, file: str, content: bytes
) -> None:
    (saved / file).write_bytes(content)
    with pytest.raises(InputError, match=f"{file} (is damaged|must hold a JSON object)"):
        load_adapter(make_base(), saved)


@pytest.mark.parametrize(
    "file", ["adapter_config.json", "adapter_model.safetensors", "hylorada_model.safetensors"]
)
def test_missing_file_is_refused_by_name(make_base: MakeBase, saved: Path, file: str) -> None:
    (saved / file).unlink()
    with pytest.raises(InputError, match=f"no file {file}"):
        load_adapter(make_base(), saved)


@pytest.mark.parametrize(
    "file", ["adapter_config.json", "hylorada_config.json", "adapter_model.safetensors"]
)
def test_git_lfs_pointer_is_named(make_base: MakeBase, saved: Path, file: str) -> None:
    (saved / file).write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 94371840\n"
    )
    said = f"{file} is a Git LFS pointer, not the file itself; run `git lfs pull` in its folder"
    with pytest.raises(InputError, match=f"adapter '{saved}': {said}"):
        load_adapter(make_base(), saved)


def test_trainer_checkpoint_that_is_a_git_lfs_pointer_is_named(
    make_base: MakeBase, tmp_path: Path
) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 94371840\n"
    (tmp_path / "model.safetensors").write_text(pointer)
    with pytest.raises(
        InputError, match=r"model\.safetensors is a Git LFS pointer, not the file itself"
    ):
        HyLoRADAModel.from_pretrained(make_base(), tmp_path)


def test_missing_folder_and_file_in_its_place_are_refused(
    trained: Callable[..., HyLoRADAModel], make_base: MakeBase, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="nowhere': no such folder"):
        load_adapter(make_base(), tmp_path / "nowhere")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is a file, must be a folder"):
        trained().save_pretrained(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"format": "hylorada-adapter-0"},
            "format 'hylorada-adapter-0', expected 'hylorada-adapter-1'",
        ),
        ({"seed": "5"}, "seed must be of type int, got '5'"),
        ({"stranger": 1}, "unexpected field 'stranger'"),
        ({"config": {"rank": 2}}, r"hylorada_config\.json: unknown field 'rank'"),
        ({"config": {"r": 0}}, r"hylorada_config\.json: r must be at least 1"),
        ({"config": {"r": 2}}, "max_positions must be set"),
    ],
)
def test_changed_configuration_is_refused(
    make_base: MakeBase, saved: Path, changes: dict[str, Any], message: str
) -> None:
    path = saved / "hylorada_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(InputError, match=message):
        load_adapter(make_base(), saved)


@pytest.mark.parametrize(
    "changes",
    [
        {"r": 4},
        {"lora_alpha": 1},
        {"use_rslora": False},
        {"fan_in_fan_out": True},
        {"target_modules": ["x"]},
    ],
)
def test_configuration_that_stock_peft_would_read_otherwise_is_refused(
    make_base: MakeBase, saved: Path, changes: dict[str, Any]
) -> None:
    path = saved / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(
        InputError, match=rf"adapter_config\.json: {next(iter(changes))} is .* the base say"
    ):
        load_adapter(make_base(), saved)


def test_adapter_saved_before_there_was_dora_is_loaded(make_base: MakeBase, saved: Path) -> None:
    path, ours = saved / "adapter_config.json", saved / "hylorada_config.json"
    content = {k: v for k, v in json.loads(path.read_text()).items() if k != "use_dora"}
    path.write_text(json.dumps(content))
    values = json.loads(ours.read_text())
    del values["config"]["use_dora"]
    values["sha256"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    ours.write_text(json.dumps(values))
    assert not load_adapter(make_base(), saved).config.use_dora


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 32}, "hidden_size 16, this one has 32"),
        ({"num_hidden_layers": 3}, "num_hidden_layers 2, this one has 3"),
        (
            {"num_key_value_heads": 2},
            r"k_proj\.lora_B\.weight' has shape \[8, 2\], must be \[16, 2\]",
        ),
    ],
)
def test_base_of_another_shape_is_refused_and_left_alone(
    saved: Path, changes: dict[str, Any], message: str
) -> None:
    shape = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    config = LlamaConfig(vocab_size=50, intermediate_size=24, **{**shape, **changes})
    base = LlamaForCausalLM(config)
    with pytest.raises(InputError, match=message):
        HyLoRADAModel.from_pretrained(base, saved)
    assert all(p.requires_grad for p in base.parameters())
    assert base.training


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
def test_base_of_another_family_is_refused(make_base: MakeBase, saved: Path, family: str) -> None:
    with pytest.raises(InputError, match=f"base with model_type 'llama', this one has '{family}'"):
        HyLoRADAModel.from_pretrained(make_base(family), saved)
