"""Adapters far from their start, in memory and saved."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from hylorada import Adapter, HyLoRADAConfig, HyLoRADAModel

MakeBase = Callable[..., PreTrainedModel]
MakeConfig = Callable[..., HyLoRADAConfig]
Scramble = Callable[..., Adapter]

LEARNABLE = {"landmark_bucketing": "learnable", "boundary_init": "random", "temperature": 0.1}


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
    trained(**LEARNABLE).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"
