"""Tiny random bases, blocks and adapters, each built from its own seed.

No fixture changes a global generator.
"""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from hylorada import Adapter, HyLoRADAConfig, HyLoRADAModel
from hylorada.data.blocks import Blocks

VOCABULARY = 50
BLOCK_SIZE = 16
Family = Literal["llama", "gpt2", "gpt_neox", "mistral", "qwen2", "qwen3"]

_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    # ten times the default, so that attention is far from uniform and a look ahead would show
    "initializer_range": 0.2,
}


def _build(family: Family) -> PreTrainedModel:
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**_SMALL, num_key_value_heads=1))
    if family == "mistral":  # its window is shorter than a block
        return MistralForCausalLM(MistralConfig(**_SMALL, num_key_value_heads=1, sliding_window=6))
    if family == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**_SMALL, num_key_value_heads=2))
    if family == "qwen3":  # heads of another size than hidden_size / num_attention_heads
        return Qwen3ForCausalLM(Qwen3Config(**_SMALL, num_key_value_heads=1, head_dim=6))
    if family == "gpt_neox":
        return GPTNeoXForCausalLM(GPTNeoXConfig(**_SMALL))
    names = {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
    }
    names |= {"intermediate_size": "n_inner", "max_position_embeddings": "n_positions"}
    return GPT2LMHeadModel(GPT2Config(**{names.get(k, k): v for k, v in _SMALL.items()}))


@pytest.fixture(autouse=True, scope="module")
def _one_thread_for_tiny_models(request: pytest.FixtureRequest) -> Iterator[None]:
    """Use one thread in tests/hylorada: tiny models gain nothing from a second one.

    Next to busy processes all operations would wait for it.
    """
    threads = torch.get_num_threads()
    if request.path.is_relative_to(Path(__file__).parent / "hylorada"):
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def make_base() -> Callable[..., PreTrainedModel]:
    """Return a function that builds a base of a family, with equal bits each time."""
    originals: dict[Family, PreTrainedModel] = {}  # a copy takes a quarter of the time

    def make(family: Family = "llama", dtype: torch.dtype = torch.float32) -> PreTrainedModel:
        if family not in originals:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                originals[family] = _build(family)
                for name, parameter in originals[family].named_parameters():
                    if name.endswith(
                        "bias"
                    ):  # zero at first, so that nothing done to it would show
                        torch.nn.init.normal_(parameter, std=0.2)
        base = copy.deepcopy(originals[family])
        base.to(dtype=dtype)  # type: ignore[call-arg]
        base.eval()
        return base

    return make


@pytest.fixture(scope="session")
def make_config() -> Callable[..., HyLoRADAConfig]:
    """Return a function that builds a small configuration for blocks of 16 tokens."""

    def make(**changes: Any) -> HyLoRADAConfig:
        small: dict[str, Any] = {
            "r": 2,
            "num_landmarks": 3,
            "num_buckets": 4,
            "position_bias_buckets": 8,
        }
        return HyLoRADAConfig(**{**small, "max_positions": BLOCK_SIZE, **changes})

    return make


@pytest.fixture(scope="session")
def scramble() -> Callable[..., Adapter]:
    """Return a function that moves every parameter of an adapter away from its start.

    Boundaries become uniform in [0, 1], all else normal.
    """

    def apply(adapter: Adapter, seed: int = 0) -> Adapter:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in adapter.parameters():
                parameter.normal_(0.0, 0.3, generator=generator)
            if adapter.boundaries is not None:
                adapter.boundaries.uniform_(generator=generator)
        return adapter

    return apply


@pytest.fixture(scope="session")
def make_model(
    make_base: Callable[..., PreTrainedModel],
    make_config: Callable[..., HyLoRADAConfig],
    scramble: Callable[..., Adapter],
) -> Callable[..., HyLoRADAModel]:
    """Return a function that builds a model in eval mode with an adapter far from its start.

    The base is fp64 by default.
    """

    def make(
        family: Family = "llama", dtype: torch.dtype = torch.float64, **changes: Any
    ) -> HyLoRADAModel:
        model = HyLoRADAModel(make_base(family, dtype), make_config(**changes)).eval()
        scramble(model.adapter)
        return model

    return make


@pytest.fixture(scope="session")
def token_blocks() -> npt.NDArray[np.int32]:
    """Return 24 blocks [24, 16] of random tokens."""
    return np.random.default_rng(0).integers(0, VOCABULARY, size=(24, BLOCK_SIZE), dtype=np.int32)


@pytest.fixture(scope="session")
def blocks(token_blocks: npt.NDArray[np.int32]) -> Blocks:
    """Return the same blocks with made-up byte counts."""
    return Blocks(
        token_blocks, np.arange(40, 40 + len(token_blocks)), dropped_tokens=0, fingerprint="0" * 16
    )
