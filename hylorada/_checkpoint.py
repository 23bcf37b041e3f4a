"""Save and restore a seat in one file: parameters, both Adam moments, step and random state; safetensors, no pickle."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ._errors import InputError
from ._seat import Seat

_FORMAT = "hylorada-seat-1"

_Shape = tuple[tuple[int, ...], torch.dtype]


def save_seat(seat: Seat, path: Path, extra: dict[str, Any]) -> None:
    """Write a seat so that a crash at any moment leaves either the previous file or the new one.

    Args:
        seat: at a report boundary, never within a step.
        path: of the file; its folder must exist.
        extra: JSON values kept beside the tensors.
    """
    tensors = {f"adapter/{n}": p.detach().cpu().contiguous() for n, p in seat.adapter.named_parameters()}
    for name, parameter in seat.adapter.named_parameters():
        for key, value in seat.optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer/{key}/{name}"] = value.detach().cpu().contiguous()
    tensors["dropout_stream"] = seat.adapter.dropout_stream.get_state()
    temporary = path.with_suffix(".tmp")
    save_file(tensors, temporary, metadata={"format": _FORMAT, "step": str(seat.step), "extra": json.dumps(extra)})
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def load_seat(seat: Seat, path: Path) -> dict[str, Any]:
    """Bring a fresh seat of the same configuration to the saved state.

    Returns:
        The ``extra`` values.

    Raises:
        InputError: the file is damaged, or a tensor is missing, unexpected, or of another shape or dtype; the seat is
            left as it was.
    """
    metadata, tensors = _read(path)
    step = int(metadata["step"])
    expected, found = _layout(seat, step), {n: _shape(t) for n, t in tensors.items()}
    if found != expected:
        wrong = sorted(n for n in found.keys() | expected.keys() if found.get(n) != expected.get(n))
        raise InputError(f"{path} doesn't fit the adapter: {len(wrong)} tensors differ, first {wrong[:10]}")
    seat.adapter.dropout_stream.set_state(tensors.pop("dropout_stream"))
    parameters = dict(seat.adapter.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors.pop(f"adapter/{name}"))
    for key, value in tensors.items():
        _, field, name = key.split("/", 2)
        on = "cpu" if field == "step" else parameters[name].device
        seat.optimizer.state[parameters[name]][field] = value.to(on)
    seat.step = step
    extra: dict[str, Any] = json.loads(metadata["extra"])
    return extra


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise InputError(f"{path} is damaged: {error}") from error
    if metadata.get("format") != _FORMAT:
        raise InputError(f"{path} is no seat of this version: format {metadata.get('format')!r}, expected {_FORMAT!r}")
    return metadata, tensors


def _layout(seat: Seat, step: int) -> dict[str, _Shape]:
    """Every tensor that a seat's file holds after ``step`` optimizer steps."""
    layout = {"dropout_stream": _shape(seat.adapter.dropout_stream.get_state())}
    for name, parameter in seat.adapter.named_parameters():
        layout[f"adapter/{name}"] = _shape(parameter)
        updated = step > 0 and not (parameter is seat.adapter.boundaries and seat.holds_boundaries(step - 1))
        if updated:
            layout[f"optimizer/step/{name}"] = ((), torch.float32)
            layout[f"optimizer/exp_avg/{name}"] = layout[f"optimizer/exp_avg_sq/{name}"] = _shape(parameter)
    return layout


def _shape(tensor: Tensor) -> _Shape:
    return tuple(tensor.shape), tensor.dtype
