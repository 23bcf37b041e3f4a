"""Save and restore a seat: parameters, both Adam moments, step and random state.

The file is in the safetensors format, without pickle.
"""

import json
import math
import zlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from hylorada.adapters.adapter import group_of
from hylorada.errors import InputError, UnreadableCheckpoint
from hylorada.runtime.atomic_files import replace_file
from hylorada.training.seat import Seat

_FORMAT = "hylorada-seat-4"
_TEXTS = ("step", "extra", "layout")
_VECTORS = ("values", "exp_avg", "exp_avg_sq")
_UNTRAINED = "untrained/"  # begins the names of parameters outside the optimizer's groups

_Shape = tuple[tuple[int, ...], torch.dtype]


class SeatCopy(NamedTuple):
    """The state of a seat at one step, on the CPU; the seat may train on meanwhile.

    Attributes:
        step: number of optimizer steps done.
        tensors: tensors by their names in the file.
        layout: shape of every parameter in the groups' vectors, by name.
    """

    step: int
    tensors: dict[str, Tensor]
    layout: dict[str, list[int]]


def copy_seat(seat: Seat) -> SeatCopy:
    """Copy the state of a seat between two steps.

    The few vectors of a seat are copied as they are, because hundreds of small copies from a GPU
    take longer than the training between two reports. The layout of the parameters in them is
    stored beside them.
    """
    tensors = {
        f"{g.settings['name']}/{v}": _copied(getattr(g, v)) for g in seat.groups for v in _VECTORS
    }
    tensors |= {f"{g.settings['name']}/step": g.step.clone() for g in seat.groups}
    tensors |= {n: _copied(p) for n, p in _untrained(seat).items()}
    tensors["dropout_stream"] = seat.adapter.dropout_stream.get_state()
    return SeatCopy(seat.step, tensors, _layout(seat))


def write_seat(copy: SeatCopy, path: Path, extra: dict[str, Any]) -> None:
    """Write a seat so that a crash at any moment leaves either the previous file or the new one.

    Args:
        copy: state of the seat.
        path: path of the file; its folder must exist.
        extra: JSON values stored beside the tensors.
    """
    texts = {
        "step": str(copy.step),
        "extra": json.dumps(extra),
        "layout": json.dumps(copy.layout),
    }
    metadata = {"format": _FORMAT, "crc32": _checksum(copy.tensors, texts), **texts}
    replace_file(path, save(copy.tensors, metadata=metadata))


def save_seat(seat: Seat, path: Path, extra: dict[str, Any]) -> None:
    """Copy a seat and write it; see :func:`copy_seat` and :func:`write_seat`."""
    write_seat(copy_seat(seat), path, extra)


def load_seat(seat: Seat, path: Path) -> dict[str, Any]:
    """Bring a fresh seat of the same configuration to the saved state.

    Returns:
        The ``extra`` values.

    Raises:
        UnreadableCheckpoint: the file is damaged or of another version; the seat is left as it was.
        InputError: a parameter or tensor is missing, unexpected, or of another shape or dtype; the
            seat is left as it was.
    """
    metadata, tensors = _read(path)
    _compare(path, "parameters", json.loads(metadata["layout"]), _layout(seat))
    vectors = {
        f"{g.settings['name']}/{v}": getattr(g, v) for g in seat.groups for v in (*_VECTORS, "step")
    } | _untrained(seat)
    stream = tensors.get("dropout_stream", seat.adapter.dropout_stream.get_state())
    # the size of the stream's state depends on the kind of device, so any size is accepted
    vectors["dropout_stream"] = torch.empty(stream.shape, dtype=torch.uint8)
    _compare(
        path,
        "tensors",
        {n: _shape(t) for n, t in tensors.items()},
        {n: _shape(t) for n, t in vectors.items()},
    )
    seat.adapter.set_dropout_stream(tensors.pop("dropout_stream"))
    with torch.no_grad():
        for name, value in tensors.items():
            vectors[name].copy_(value)
    for group in seat.groups:
        if group.step:
            seat.open_state(group)
    seat.step = int(metadata["step"])
    extra: dict[str, Any] = json.loads(metadata["extra"])
    return extra


def read_parameters(path: Path) -> dict[str, Tensor]:
    """Return the parameters of a saved seat, keyed by their names in the adapter.

    No base is needed, as no adapter is built.

    Raises:
        UnreadableCheckpoint: the file is damaged or of another version.
    """
    metadata, tensors = _read(path)
    shapes: dict[str, list[int]] = json.loads(metadata["layout"])
    starts: dict[str, int] = defaultdict(int)
    parameters = {
        name.removeprefix(_UNTRAINED): tensor
        for name, tensor in tensors.items()
        if name.startswith(_UNTRAINED)
    }
    for name, shape in shapes.items():  # a group's vector holds its parameters in this order
        group = group_of(name, len(shape))
        span = slice(starts[group], starts[group] + math.prod(shape))
        parameters[name] = tensors[f"{group}/values"][span].view(shape)
        starts[group] = span.stop
    return parameters


def _compare(path: Path, what: str, stored: dict[str, Any], expected: dict[str, Any]) -> None:
    if stored != expected:
        names = stored.keys() | expected.keys()
        wrong = sorted(n for n in names if stored.get(n) != expected.get(n))
        raise InputError(
            f"{path} doesn't fit the adapter: {len(wrong)} {what} differ, first {wrong[:10]}"
        )


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise UnreadableCheckpoint(f"{path} is damaged: {error}") from error
    if metadata.get("format") != _FORMAT:
        raise UnreadableCheckpoint(
            f"{path} is not a seat of this version: format {metadata.get('format')!r}, "
            f"expected {_FORMAT!r}"
        )
    if (
        not {"crc32", *_TEXTS} <= metadata.keys()
        or _checksum(tensors, metadata) != metadata["crc32"]
    ):
        raise UnreadableCheckpoint(f"{path} is damaged: its checksum differs")
    return metadata, tensors


def _checksum(tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> str:
    """Return a checksum over all bits, because safetensors does not detect flipped bits."""
    crc = zlib.crc32("\n".join(texts[name] for name in _TEXTS).encode())
    for name in sorted(tensors):
        crc = zlib.crc32(f"{name} {_shape(tensors[name])}".encode(), crc)
        crc = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"


def _untrained(seat: Seat) -> dict[str, Tensor]:
    """Return the parameters outside the groups by their names in the file."""
    return {f"{_UNTRAINED}{name}": p for name, p in seat.adapter.untrained().items()}


def _copied(tensor: Tensor) -> Tensor:
    """Copy a tensor to the CPU, on one thread: waking others takes longer than the copy."""
    if tensor.device.type != "cpu":
        return tensor.detach().cpu()
    content = tensor.detach().reshape(-1).view(torch.uint8).numpy().copy()
    return torch.from_numpy(content).view(tensor.dtype).view(tensor.shape)


def _layout(seat: Seat) -> dict[str, list[int]]:
    """Return the shape of every parameter of the groups by name."""
    untrained = seat.adapter.untrained()
    return {n: list(p.shape) for n, p in seat.adapter.named_parameters() if n not in untrained}


def _shape(tensor: Tensor) -> _Shape:
    return tuple(tensor.shape), tensor.dtype
