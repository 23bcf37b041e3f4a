"""Bases whose layers lie on several devices, as transformers loads them with a ``device_map``.

Adapters, their additions and the losses stay on the device of the base's first parameter. What a
pass adds to a layer is copied to the device of that layer; accelerate's hooks in the base move the
hidden states from layer to layer.
"""

import dataclasses
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hylorada.errors import InputError

Part = TypeVar("Part")
_HOOKED = "_old_forward"  # accelerate's name for the forward that its hook calls


def is_spread(base: nn.Module) -> bool:
    """Return whether a base's parameters lie on more than one device.

    Raises:
        InputError: some parameters lie on disk or in another device's memory between two calls.
    """
    devices = {p.device for p in base.parameters()}
    if len(devices) > 1 and any(d.type == "meta" for d in devices):
        raise InputError(
            "base must be in the memory of the devices that compute it; its device_map has left "
            "parts of it on the CPU or on disk: use more GPUs or a lower precision"
        )
    return len(devices) > 1


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's first parameter."""
    return next(module.parameters()).device


def moved(part: Part, device: torch.device) -> Part:
    """Return a part of a pass, a dataclass, with its tensors on another device."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(part):  # type: ignore[arg-type]
        value = getattr(part, field.name)
        if isinstance(value, Tensor):
            changes[field.name] = value.to(device)
        elif dataclasses.is_dataclass(value):
            changes[field.name] = moved(value, device)
    return dataclasses.replace(part, **changes)  # type: ignore[type-var]


def change_class(module: nn.Module, kind: type[nn.Module]) -> None:
    """Change a module's class, also for the hook of accelerate that may call its forward.

    A hook keeps the forward that it found. It would pass by the forward of the new class.
    """
    module.__class__ = kind
    if _HOOKED in vars(module):
        vars(module)[_HOOKED] = kind.forward.__get__(module)


def has_own_forward(module: nn.Module) -> bool:
    """Return whether calls of a module pass by its class, and by no hook of accelerate's either."""
    return "forward" in vars(module) and _HOOKED not in vars(module)
