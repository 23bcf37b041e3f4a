"""Bases with random weights in the shape of known ones, whose speed can be measured offline."""

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig
from transformers.utils import logging as transformers_logging

SHAPES = ("gpt2", "smollm2")
_SMOLLM2: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
}
_SMOLLM2 |= {"num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192}


def shape_config(shape: str) -> PreTrainedConfig:
    """Return the config of GPT-2 124M or SmolLM2-135M."""
    if shape == "gpt2":
        return transformers.GPT2Config()
    return transformers.LlamaConfig(**_SMOLLM2, tie_word_embeddings=True)


def write_shape(shape: str, dtype: str, folder: Path) -> None:
    """Write a base with random weights, which every process then loads like a real one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(shape_config(shape))
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    model.to(dtype=getattr(torch, dtype)).save_pretrained(folder)
    if bars:
        transformers_logging.enable_progress_bar()
