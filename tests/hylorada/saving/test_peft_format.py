"""Saved adapters: stock PEFT computes the same, every bit is restored, and misfits are refused."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

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
    for names in (None, MLPS[family], ("all-linear",)):
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
    assert not list(saved.glob("*.tmp"))  # they would take up space on a full disk


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
