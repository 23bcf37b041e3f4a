"""Checkpoints of transformers' Trainer: the state of a :class:`HyLoRADAModel`, which describes itself.

Trainer writes the state of a model that isn't one of transformers' to ``model.safetensors`` and asks for nothing else,
so what it takes to make the adapter again is one more tensor of the state.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_NAME

from hylorada.adapters.adapter import Adapter
from hylorada.base_models.lfs_pointers import pointer_problem
from hylorada.errors import InputError
from hylorada.saving.tensor_checks import (
    FORMAT,
    base_problems,
    configuration,
    read_fields,
    read_tensors,
    shape_of,
    tensor_problems,
)

DESCRIPTION = "hylorada_config"  # a key of the state: JSON text in UTF-8, a byte an entry
_DROPOUT = "_extra_state"  # where the dropout stream was, for a run that goes on
_PREFIX = "adapter."
_FIELDS = {"format": str, "config": dict, "seed": int, "base": dict}


def describe(adapter: Adapter, base: PreTrainedModel) -> Tensor:
    """Return what it takes to make the adapter again, less its parameters."""
    values = {
        "format": FORMAT,
        "config": adapter.config.to_dict(),
        "seed": adapter.seed,
        "base": shape_of(base),
    }
    return torch.frombuffer(bytearray(json.dumps(values).encode()), dtype=torch.uint8)


def is_checkpoint(folder: Path) -> bool:
    """Whether the folder holds a checkpoint of Trainer and no saved adapter."""
    return (folder / SAFE_WEIGHTS_NAME).is_file()


def load_checkpoint(base: PreTrainedModel, folder: Path) -> Adapter:
    """Make the adapter of a checkpoint.

    Raises:
        InputError: the file is damaged, a pointer of Git LFS, of another model or base, or from before it described
            itself.
    """
    path = folder / SAFE_WEIGHTS_NAME
    if problem := pointer_problem(path):
        raise InputError(f"checkpoint {str(folder)!r}: {problem}")
    state = read_tensors(path)
    values = _description(path, state)
    config = configuration(path, values)
    if problems := base_problems(folder, values["base"], base):
        raise InputError(problems)
    adapter = Adapter(base, config, seed=values["seed"])
    expected = {
        _PREFIX + name: parameter.detach() for name, parameter in adapter.named_parameters()
    }
    found = {name: tensor for name, tensor in state.items() if name not in (DESCRIPTION, _DROPOUT)}
    if problems := tensor_problems(path, expected, found):
        raise InputError(problems)
    for name, parameter in expected.items():
        parameter.copy_(found[name])
    return adapter


def _description(path: Path, state: Mapping[str, Tensor]) -> dict[str, Any]:
    if DESCRIPTION not in state and not any(name.startswith(_PREFIX) for name in state):
        raise InputError(f"{path} holds no adapter: it has no tensor {DESCRIPTION!r}")
    if DESCRIPTION not in state:
        raise InputError(
            f"{path} is older than checkpoints that hold the adapter's configuration; make the HyLoRADAModel as for "
            f"its training, call model.load_state_dict(safetensors.torch.load_file({str(path)!r})) and save_pretrained"
        )
    try:
        values = json.loads(bytes(state[DESCRIPTION].tolist()))
    except ValueError as error:  # no bytes, no UTF-8 or no JSON
        raise InputError(f"{path}: tensor {DESCRIPTION!r} is damaged: {error}") from error
    return read_fields(path, values if isinstance(values, dict) else {}, _FIELDS)
