"""Checkpoints of transformers' Trainer: the state of a :class:`HyLoRADAModel`.

For a model that isn't one of transformers', Trainer writes the state dict to ``model.safetensors``
and nothing else. So the description from which the adapter is rebuilt is one more tensor of that
state.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

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

DESCRIPTION = "hylorada_config"  # key of the state: JSON text in UTF-8, one byte an entry
_DROPOUT = "_extra_state"  # key of the dropout stream's state, for a resumed run
_PREFIX = "adapter."
_FIELDS = {"format": str, "config": dict, "seed": int, "base": dict}


class _AdaptedModel(Protocol):
    adapter: Adapter
    base: PreTrainedModel


def leave_out_base(
    model: _AdaptedModel, state: dict[str, Any], prefix: str, _local_metadata: object
) -> None:
    """Remove the base from a state dict and add the adapter's description.

    Checkpoints are then small, and can be loaded on their own.
    """
    for name in list(state):
        if name.startswith(f"{prefix}base."):
            del state[name]
    state[prefix + DESCRIPTION] = describe(model.adapter, model.base)


def put_in_base(model: _AdaptedModel, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Add the base's own values to the state dict of an adapter, so that no key is missing."""
    state.pop(prefix + DESCRIPTION, None)
    base = model.base
    held = {name for name, _ in base.named_parameters(remove_duplicate=False)}
    held |= {name for name, _ in base.named_buffers(remove_duplicate=False)}
    for name, tensor in base.state_dict().items():
        if name in held:  # weights of 4 bits add entries that no module takes back
            state.setdefault(f"{prefix}base.{name}", tensor)


def describe(adapter: Adapter, base: PreTrainedModel) -> Tensor:
    """Return the description from which the adapter is rebuilt, without its parameters."""
    values = {
        "format": FORMAT,
        "config": adapter.config.to_dict(),
        "seed": adapter.seed,
        "base": shape_of(base),
    }
    return torch.frombuffer(bytearray(json.dumps(values).encode()), dtype=torch.uint8)


def is_checkpoint(folder: Path) -> bool:
    """Return whether the folder holds a checkpoint of Trainer rather than a saved adapter."""
    return (folder / SAFE_WEIGHTS_NAME).is_file()


def load_checkpoint(base: PreTrainedModel, folder: Path) -> Adapter:
    """Rebuild the adapter of a checkpoint.

    Raises:
        InputError: the file is damaged, a Git LFS pointer, of another model or base, or from a
            version that wrote no description.
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
    stored = {name: tensor for name, tensor in state.items() if name not in (DESCRIPTION, _DROPOUT)}
    if problems := tensor_problems(path, expected, stored):
        raise InputError(problems)
    for name, parameter in expected.items():
        parameter.copy_(stored[name])
    return adapter


def _description(path: Path, state: Mapping[str, Tensor]) -> dict[str, Any]:
    if DESCRIPTION not in state and not any(name.startswith(_PREFIX) for name in state):
        raise InputError(f"{path} holds no adapter: it has no tensor {DESCRIPTION!r}")
    if DESCRIPTION not in state:
        raise InputError(
            f"{path} is from a version whose checkpoints don't hold the adapter's configuration; "
            "make the HyLoRADAModel as for its training, call "
            f"model.load_state_dict(safetensors.torch.load_file({str(path)!r})) and save_pretrained"
        )
    try:
        values = json.loads(bytes(state[DESCRIPTION].tolist()))
    except ValueError as error:  # the entries are no bytes, no UTF-8 or no JSON
        raise InputError(f"{path}: tensor {DESCRIPTION!r} is damaged: {error}") from error
    return read_fields(path, values if isinstance(values, dict) else {}, _FIELDS)
