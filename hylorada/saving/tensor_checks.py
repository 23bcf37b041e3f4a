"""Checks that every stored adapter must pass, whichever program wrote it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel

from hylorada.config import HyLoRADAConfig
from hylorada.errors import InputError

FORMAT = "hylorada-adapter-1"

_BASE_FIELDS = ("model_type", "hidden_size", "num_hidden_layers")
_DTYPES = (torch.float32, torch.float64)  # bf16 would round away a part of the training
_SHOWN = 10


def shape_of(base: PreTrainedModel) -> dict[str, Any]:
    """Return the fields of a base's config that an adapter requires to be unchanged."""
    return {field: getattr(base.config, field) for field in _BASE_FIELDS}


def base_problems(folder: Path, saved: Mapping[str, Any], base: PreTrainedModel) -> list[str]:
    """List the differences between this base and the one that the adapter was saved with."""
    given = shape_of(base)
    return [
        f"adapter {str(folder)!r} was saved for a base with {field} {saved.get(field)!r}, "
        f"this one has {given[field]!r}"
        for field in _BASE_FIELDS
        if saved.get(field) != given[field]
    ]


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises:
        InputError: the file is damaged or holds something else.
    """
    try:
        values = json.loads(path.read_bytes())
    except ValueError as error:  # the content is no JSON or no UTF-8
        raise InputError(f"{path} is damaged: {error}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path} must hold a JSON object, got {type(values).__name__}")
    return values


def read_fields(path: Path, values: dict[str, Any], fields: Mapping[str, type]) -> dict[str, Any]:
    """Return the JSON object read from ``path`` after checking its format and fields.

    Args:
        path: named in error messages.
        values: the JSON object.
        fields: the exact fields it must have, with their types.

    Raises:
        InputError: the format is another one, or a field is missing, unexpected or of another type.
    """
    if values.get("format") != FORMAT:
        raise InputError(f"{path}: format {values.get('format')!r}, expected {FORMAT!r}")
    problems = [f"{path}: unexpected field {name!r}" for name in values.keys() - fields.keys()]
    for name, kind in fields.items():
        if type(values.get(name)) is not kind:
            problems.append(
                f"{path}: {name} must be of type {kind.__name__}, got {values.get(name)!r}"
            )
    if problems:
        raise InputError(sorted(problems))
    return values


def configuration(path: Path, values: Mapping[str, Any]) -> HyLoRADAConfig:
    """Build the configuration read from ``path``.

    Raises:
        InputError: a field is unknown or a value is not allowed.
    """
    try:
        return HyLoRADAConfig.from_dict(values["config"])
    except InputError as error:
        raise InputError([f"{path}: {p}" for p in error.problems]) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        InputError: the file is damaged.
    """
    try:
        return safetensors.torch.load(path.read_bytes())
    except SafetensorError as error:
        raise InputError(f"{path} is damaged: {error}") from error


def tensor_problems(
    path: Path, expected: Mapping[str, Tensor], stored: Mapping[str, Tensor]
) -> list[str]:
    """List the tensors that are missing, unexpected, of another shape or dtype, or non-finite."""
    problems = [f"{path}: tensor {name!r} is missing" for name in expected.keys() - stored.keys()]
    problems += [
        f"{path}: tensor {name!r} is unexpected" for name in stored.keys() - expected.keys()
    ]
    for name in expected.keys() & stored.keys():
        tensor, parameter = stored[name], expected[name]
        if tensor.shape != parameter.shape:
            shapes = f"{list(tensor.shape)}, must be {list(parameter.shape)}"
            problems.append(f"{path}: tensor {name!r} has shape {shapes}")
        elif tensor.dtype not in _DTYPES:
            problems.append(
                f"{path}: tensor {name!r} is {tensor.dtype}, must be float32 or float64"
            )
        elif not tensor.to(parameter.dtype).isfinite().all():
            problems.append(
                f"{path}: tensor {name!r} has numbers that are not finite in {parameter.dtype}"
            )
    problems.sort()
    if len(problems) > _SHOWN:
        problems = [
            *problems[:_SHOWN],
            f"{path}: {len(problems)} tensors don't fit, the first {_SHOWN} are named",
        ]
    return problems
