"""Bases with random weights in the shape of known ones, whose speed can be measured offline."""

from pathlib import Path

import torch
import transformers
from transformers import PreTrainedConfig
from transformers.utils import logging as transformers_logging

from hylorada.base_models.loading import smollm2_config

SHAPES = ("gpt2", "smollm2")


def shape_config(shape: str) -> PreTrainedConfig:
    """Return the config of GPT-2 124M or SmolLM2-135M."""
    if shape == "gpt2":
        return transformers.GPT2Config()
    return smollm2_config()


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
