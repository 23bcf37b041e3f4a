"""What keeps a base from being loaded in 4 bits is said in one line, by name."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from hylorada import InputError, builtin_base, inspect_base, load_base
from hylorada.base_models.base_labels import base_label
from hylorada.base_models.quantization import check_quantization


def test_unknown_quantization_is_refused() -> None:
    with pytest.raises(InputError, match="quantization '4bits' is unknown; did you mean '4bit'"):
        load_base("tiny", quantization="4bits")


def test_missing_packages_are_named_with_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "bitsandbytes" else find(name)
    )
    needs = r"model 'tiny': quantization '4bit' needs bitsandbytes: .*\[quantization\]"
    for ask in (inspect_base, load_base):
        with pytest.raises(InputError, match=needs):
            ask("tiny", quantization="4bit")


def test_machine_on_which_bitsandbytes_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    functional = pytest.importorskip("bitsandbytes.functional")

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no kernels for this device")

    monkeypatch.setattr(functional, "quantize_4bit", fail)
    with pytest.raises(InputError, match="fails on this machine: no kernels for this device"):
        inspect_base("tiny", quantization="4bit")


@pytest.mark.parametrize(
    ("gguf_file", "dtype", "says"),
    [
        ("m.gguf", torch.float32, "can't be applied to a GGUF file"),
        (None, torch.float64, "computes in float32 or bfloat16, not in float64"),
    ],
)
def test_formats_that_have_no_4_bits_are_refused(
    gguf_file: str | None, dtype: torch.dtype, says: str
) -> None:
    with pytest.raises(InputError, match=f"model 'm': quantization '4bit' {says}"):
        check_quantization("4bit", "m", gguf_file, dtype)


def test_stored_weights_of_few_bits_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "quantized"
    shutil.copytree(builtin_base(), folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (folder / "config.json").write_text(json.dumps(config))
    for ask in (inspect_base, load_base):
        with pytest.raises(InputError, match="its weights are quantized; name the full base"):
            ask(str(folder))


def test_base_of_4_bits_is_another_base() -> None:
    pytest.importorskip("bitsandbytes")
    full, bits = inspect_base("tiny"), inspect_base("tiny", quantization="4bit")
    assert bits.fingerprint == f"nf4-{full.fingerprint}"
    assert (bits.num_parameters, bits.config_fingerprint) == (
        full.num_parameters,
        full.config_fingerprint,
    )
    assert [base_label("tiny", q) for q in ("none", "4bit")] == ["tiny", "tiny (4-bit nf4)"]
