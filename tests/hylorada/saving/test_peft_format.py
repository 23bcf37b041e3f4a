"""Saved adapters: stock PEFT computes the same, every bit is restored, and misfits are refused."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from hylorada import (
    Adapter,
    HyLoRADAConfig,
    HyLoRADAModel,
    InputError,
    Pack,
    load_adapter,
    save_adapter,
)

MakeBase = Callable[..., PreTrainedModel]
MakeConfig = Callable[..., HyLoRADAConfig]
Scramble = Callable[..., Adapter]

FAMILIES = ["llama", "gpt2", "gpt_neox"]
LORA_ALONE: dict[str, Any] = {"landmarks": False, "position_bias": False}
ARMS: dict[str, dict[str, Any]] = {
    "fixed": {},
    "learnable": {"landmark_bucketing": "learnable", "boundary_init": "random", "temperature": 0.1},
    "LoRA alone": LORA_ALONE,
    "bias alone": {"landmarks": False},
    "landmarks alone": {"position_bias": False, "use_rslora": False, "lora_alpha": 3.5},
}
MLPS = {
    "llama": ("gate_proj", "q_proj"),
    "gpt2": ("mlp.c_proj", "c_attn"),
    "gpt_neox": ("dense_h_to_4h",),
}


def _ids(rows: int = 3, length: int = 12) -> torch.Tensor:
    return torch.randint(50, (rows, length), generator=torch.Generator().manual_seed(0))


def _files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.fixture
def trained(
    make_base: MakeBase, make_config: MakeConfig, scramble: Scramble
) -> Callable[..., HyLoRADAModel]:
    """Return a function that builds a model with an adapter far from its start."""

    def make(
        family: str = "llama", dtype: torch.dtype = torch.float32, **changes: Any
    ) -> HyLoRADAModel:
        model = HyLoRADAModel(make_base(family, dtype), make_config(**changes), seed=5).eval()
        scramble(model.adapter)
        return model

    return make


@pytest.fixture
def saved(trained: Callable[..., HyLoRADAModel], tmp_path: Path) -> Path:
    """Return the folder of a trained learnable adapter of the llama base."""
    trained(**ARMS["learnable"]).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def _peft_logits(base: PreTrainedModel, folder: Path, ids: torch.Tensor) -> torch.Tensor:
    model = peft.PeftModel.from_pretrained(base, folder).eval()
    logits: torch.Tensor = model(input_ids=ids).logits
    return logits


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "changes",
    [{"use_rslora": False, "lora_alpha": 5.0}, {"r": 16, "lora_dropout": 0.3}],
    ids=["plain", "wide"],
)
def test_stock_peft_computes_the_same_logits_in_fp32(
    trained: Callable[..., HyLoRADAModel],
    make_base: MakeBase,
    tmp_path: Path,
    family: str,
    changes: dict[str, Any],
) -> None:
    model, ids = trained(family, **LORA_ALONE, **changes), _ids()
    model.save_pretrained(tmp_path)
    base = make_base(family)
    plain = base(ids).logits
    logits = _peft_logits(base, tmp_path, ids)
    torch.testing.assert_close(logits, model(ids).logits, rtol=0, atol=1e-5)
    assert (logits - plain).abs().max() > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_stock_peft_adapts_the_named_modules_and_no_others(
    trained: Callable[..., HyLoRADAModel], make_base: MakeBase, tmp_path: Path, family: str
) -> None:
    """A GPT-2 layer has two modules named `c_proj`, in the attention and in the MLP."""
    for names in (None, MLPS[family]):
        model = trained(family, torch.float64, **LORA_ALONE, target_modules=names)
        model.save_pretrained(tmp_path)
        stock = peft.PeftModel.from_pretrained(make_base(family, torch.float64), tmp_path)
        adapted = {n for n, m in stock.named_modules() if isinstance(m, peft.tuners.lora.LoraLayer)}
        assert adapted == {f"base_model.model.{path}" for path in model.adapter.targets}
        stock.eval()
        torch.testing.assert_close(
            stock(input_ids=_ids()).logits, model(_ids()).logits, rtol=0, atol=1e-10
        )


@pytest.mark.parametrize("arm", ARMS)
def test_round_trip_keeps_every_bit(
    trained: Callable[..., HyLoRADAModel], make_base: MakeBase, tmp_path: Path, arm: str
) -> None:
    model, ids = trained(**ARMS[arm]), _ids()
    model.save_pretrained(tmp_path / "a" / "b")
    again = HyLoRADAModel.from_pretrained(
        make_base(), str(tmp_path / "a" / "b"), is_trainable=True
    ).eval()
    assert again.active_peft_config == model.active_peft_config
    assert (
        dict(again.adapter.named_parameters()).keys()
        == dict(model.adapter.named_parameters()).keys()
    )
    for one, other in zip(again.adapter.parameters(), model.adapter.parameters(), strict=True):
        assert torch.equal(one, other)
        assert one.requires_grad
        assert one.dtype == torch.float32
    assert torch.equal(again(ids).logits, model(ids).logits)
    first, second = again.adapter.start_boundaries(), model.adapter.start_boundaries()
    assert first is second is None or (
        first is not None and second is not None and torch.equal(first, second)
    )


def test_adapter_of_a_bf16_base_is_saved_and_restored_in_fp32(
    trained: Callable[..., HyLoRADAModel], make_base: MakeBase, tmp_path: Path
) -> None:
    model = trained(dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    assert {t.dtype for t in load_file(tmp_path / "adapter_model.safetensors").values()} == {
        torch.float32
    }
    again = HyLoRADAModel.from_pretrained(make_base("llama", torch.bfloat16), tmp_path).eval()
    assert torch.equal(again(_ids()).logits, model(_ids()).logits)


def test_untrained_adapter_is_restored_and_is_the_base(
    make_base: MakeBase, make_config: MakeConfig, tmp_path: Path
) -> None:
    base = make_base()
    expected = base(_ids()).logits
    HyLoRADAModel(base, make_config()).save_pretrained(tmp_path)
    assert torch.equal(HyLoRADAModel.from_pretrained(base, tmp_path)(_ids()).logits, expected)


def test_folder_holds_no_pickle_and_no_leftovers(saved: Path) -> None:
    names = {
        "adapter_config.json",
        "adapter_model.safetensors",
        "hylorada_config.json",
        "hylorada_model.safetensors",
    }
    assert set(_files(saved)) == names
    assert not any(content.startswith((b"\x80", b"PK")) for content in _files(saved).values())


def test_second_save_replaces_the_first(
    trained: Callable[..., HyLoRADAModel], make_base: MakeBase, saved: Path
) -> None:
    (saved / "README.md").write_text("kept")
    model = trained(**LORA_ALONE)
    model.save_pretrained(saved)
    assert (saved / "README.md").read_text() == "kept"
    assert torch.equal(
        HyLoRADAModel.from_pretrained(make_base(), saved)(_ids()).logits, model(_ids()).logits
    )


def test_interrupted_save_leaves_the_old_adapter(
    trained: Callable[..., HyLoRADAModel],
    make_base: MakeBase,
    saved: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = HyLoRADAModel.from_pretrained(make_base(), saved)(_ids()).logits
    calls = []

    def fail(_: int) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        trained(**LORA_ALONE).save_pretrained(saved)
    monkeypatch.undo()
    assert torch.equal(HyLoRADAModel.from_pretrained(make_base(), saved)(_ids()).logits, before)


@pytest.mark.parametrize("renamed", [1, 2, 3])
def test_crash_between_two_renames_is_seen(
    trained: Callable[..., HyLoRADAModel],
    make_base: MakeBase,
    scramble: Scramble,
    saved: Path,
    monkeypatch: pytest.MonkeyPatch,
    renamed: int,
) -> None:
    """Files of two saves have equal shapes, and would together load as one wrong adapter."""
    model = trained(**{**ARMS["learnable"], "temperature": 0.2})
    scramble(model.adapter, seed=9)
    rename, calls = Path.replace, []

    def fail(path: Path, target: Path) -> Path:
        calls.append(path)
        if len(calls) > renamed:
            raise OSError("power cut")
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="power cut"):
        model.save_pretrained(saved)
    monkeypatch.undo()
    if renamed == 1:  # PEFT's JSON is the same in both saves
        load_adapter(make_base(), saved)
        return
    with pytest.raises(
        InputError, match=r"is not the file that hylorada_config\.json was saved with"
    ):
        load_adapter(make_base(), saved)


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


def test_functions_and_methods_write_and_read_the_same(
    trained: Callable[..., HyLoRADAModel], make_base: MakeBase, saved: Path, tmp_path: Path
) -> None:
    base = make_base()
    adapter = load_adapter(base, saved)
    save_adapter(adapter, base, tmp_path / "again")
    assert _files(tmp_path / "again") == _files(saved)
    nll = Pack(base).token_nll([adapter.eval()], _ids()[None])
    expected = Pack(base).token_nll([trained(**ARMS["learnable"]).adapter], _ids()[None])
    assert torch.equal(nll, expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["lora.model/layers/1/self_attn/v_proj.lora_B", "landmark.scale"])
def test_non_finite_adapter_is_not_saved(
    trained: Callable[..., HyLoRADAModel], tmp_path: Path, name: str, value: float
) -> None:
    model = trained()
    model.save_pretrained(tmp_path)
    before = _files(tmp_path)
    with torch.no_grad():
        model.adapter.get_parameter(name).view(-1)[0] = value
    with pytest.raises(InputError) as caught:
        model.save_pretrained(tmp_path)
    file, saved = ("hylorada_model.safetensors", name)
    if name.startswith("lora."):
        file, saved = (
            "adapter_model.safetensors",
            "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight",
        )
    expected = (
        f"{tmp_path / file}: tensor {saved!r} has numbers that are not finite in torch.float32"
    )
    assert caught.value.problems == [expected]
    assert _files(tmp_path) == before


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 1e300])
@pytest.mark.parametrize("file", ["adapter_model.safetensors", "hylorada_model.safetensors"])
def test_non_finite_tensor_is_refused_by_name(
    saved: Path, make_base: MakeBase, file: str, value: float
) -> None:
    """The number 1e300 fits an adapter of an fp64 base, but not of this one."""
    tensors = load_file(saved / file)
    name = sorted(tensors)[0]
    tensors[name] = torch.full_like(tensors[name], value, dtype=torch.float64)
    save_file(tensors, saved / file)
    with pytest.raises(InputError) as caught:
        load_adapter(make_base(), saved)
    assert caught.value.problems == [
        f"{saved / file}: tensor {name!r} has numbers that are not finite in torch.float32"
    ]


def test_empty_folder_name_is_refused(
    trained: Callable[..., HyLoRADAModel],
    make_base: MakeBase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="adapter '': must name a folder"):
        trained().save_pretrained("")
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="adapter '': must name a folder"):
        HyLoRADAModel.from_pretrained(make_base(), "")
