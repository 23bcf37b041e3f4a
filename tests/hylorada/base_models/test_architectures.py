"""The modules that an adapter adapts, and the refusal of misspelt names."""

from collections.abc import Callable

import peft
import pytest
import torch
from peft.tuners.lora import LoraLayer
from transformers import PreTrainedModel

from hylorada import Adapter, HyLoRADAConfig, InputError
from hylorada.base_models.architectures import (
    ARCHITECTURES,
    Target,
    architecture_of,
    head_of,
    linear_modules,
    select_targets,
)

MakeBase = Callable[..., PreTrainedModel]


@pytest.mark.parametrize(
    ("family", "names", "target"),
    [
        (
            "llama",
            ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
            Target(16, 8, 1),
        ),
        ("gpt2", ["c_attn", "c_proj", "c_fc", "c_proj"], Target(16, 48, 1)),
        (
            "gpt_neox",
            ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
            Target(16, 48, 1),
        ),
    ],
)
def test_linear_modules_are_those_of_the_layers(
    make_base: MakeBase, family: str, names: list[str], target: Target
) -> None:
    modules = linear_modules(make_base(family))
    assert sorted(path.rsplit(".", 1)[-1] for path in modules) == sorted(names * 2)
    first = {
        "llama": "self_attn.k_proj",
        "gpt2": "attn.c_attn",
        "gpt_neox": "attention.query_key_value",
    }[family]
    assert modules[f"{architecture_of(family).layers}.1.{first}"] == target


@pytest.mark.parametrize(
    ("family", "names", "count"),
    [
        ("llama", None, 8),
        ("gpt2", None, 4),
        ("gpt_neox", None, 4),
        ("gpt2", ("c_proj",), 4),
        ("llama", ("q_proj",), 2),
        ("llama", ("all-linear",), 14),
    ],
)
def test_targets_match_by_suffix(
    make_base: MakeBase, family: str, names: tuple[str, ...] | None, count: int
) -> None:
    assert len(select_targets(make_base(family), names)) == count


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
def test_all_linear_selects_what_peft_does(make_base: MakeBase, family: str) -> None:
    paths = set(select_targets(make_base(family), ("all-linear",)))
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", target_modules="all-linear", fan_in_fan_out=family == "gpt2"
    )
    stock = peft.get_peft_model(make_base(family), config)
    adapted = {n for n, m in stock.named_modules() if isinstance(m, LoraLayer)}
    assert adapted == {f"base_model.model.{path}" for path in paths}


def test_suffix_is_a_whole_name(make_base: MakeBase) -> None:
    with pytest.raises(InputError, match="target 'proj' matches 0 modules; closest: "):
        select_targets(make_base(), ("proj",))


def test_misspelt_target_is_refused_beside_a_good_one(make_base: MakeBase) -> None:
    with pytest.raises(InputError, match=r"^target 'k_prj' matches 0 modules; closest: k_proj$"):
        select_targets(make_base(), ("q_proj", "k_prj"))
    with pytest.raises(InputError, match="target 'c_attn' matches 0 modules") as caught:
        select_targets(make_base(), ("c_attn", "lm_head"))
    assert len(caught.value.problems) == 2


def test_targets_never_match_our_own_modules(
    make_base: MakeBase, make_config: Callable[..., HyLoRADAConfig]
) -> None:
    base = make_base()
    Adapter(base, make_config(), seed=0)
    for name in ("lora_A", "bias", "landmark", "position_gates"):
        with pytest.raises(InputError, match=f"target '{name}' matches 0 modules"):
            select_targets(base, (name,))


def test_adapter_needs_the_block_length(make_base: MakeBase) -> None:
    for needed in (HyLoRADAConfig(position_bias=False), HyLoRADAConfig(landmarks=False)):
        with pytest.raises(
            InputError, match="max_positions must be set to the trained block length"
        ):
            Adapter(make_base(), needed, seed=0)
    Adapter(
        make_base(), HyLoRADAConfig(landmarks=False, position_bias=False), seed=0
    )  # nothing depends on it


@pytest.mark.parametrize("family", sorted({"llama", "gpt2", "gpt_neox"} & ARCHITECTURES.keys()))
def test_paths_exist_and_the_head_is_found(make_base: MakeBase, family: str) -> None:
    base, paths = make_base(family), architecture_of(family)
    for path in (paths.body, paths.layers, paths.final_norm):
        base.get_submodule(path)
    weight, bias = head_of(base)
    hidden = torch.randn(1, 2, 16, generator=torch.Generator().manual_seed(0))
    expected = base.get_output_embeddings()(hidden)
    torch.testing.assert_close(torch.nn.functional.linear(hidden, weight, bias), expected)


def test_unknown_model_type_is_refused_by_name() -> None:
    with pytest.raises(
        InputError, match="model type 'bert' is not supported; one of: gpt2, gpt_neox, llama"
    ):
        architecture_of("bert")
