"""The contract of every landmark design, and how the modules of K seats are stacked.

Landmarks are L trained vectors that are mixed into the hidden states: h' = h + scale * context.
In every design the landmarks (the values, in ``attention``) start at zero, so that an untrained
adapter changes nothing; the gates start as small random numbers that tell the landmarks apart.

A pack computes the landmarks of all its seats at once. Seats with fewer landmarks than others are
padded: a padded landmark has weight 0. A seat without landmarks of the design gets zeros.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hylorada.runtime.devices import to_device
from hylorada.runtime.random_streams import derive_seed, stream

_GATE_STD = 0.02


def landmark_seed(seed: int) -> int:
    """Return the seed of the landmark module in an adapter with this seed."""
    return derive_seed(seed, "landmark")


def initial_gates(*shape: int, seed: int, name: str, dtype: torch.dtype) -> nn.Parameter:
    """Return small random gates from the stream of this seed and name."""
    return nn.Parameter(torch.randn(*shape, generator=stream(seed, name), dtype=dtype) * _GATE_STD)


class Landmark(nn.Module, ABC):
    """A landmark module of any design.

    Attributes:
        design: its name in a configuration.
        at_norm: whether it adds to the output of the final norm, and nowhere else.
        noncausal: whether it pools over the whole block, future tokens included; only to repeat
            published figures.
    """

    design: ClassVar[str]
    at_norm: ClassVar[bool] = False
    noncausal: bool = False

    @property
    @abstractmethod
    def num_landmarks(self) -> int:
        """Number of landmarks L."""

    @property
    def num_pools(self) -> int:
        """Number of running pools over tokens that the module needs in a key/value cache."""
        return 0

    def applied(self) -> dict[str, Any]:
        """Return the configuration fields that the live tensors show."""
        return {"num_landmarks": self.num_landmarks, "landmark_design": self.design}


LandmarkT = TypeVar("LandmarkT", bound=Landmark)
DrawMasks = Callable[[Tensor], Tensor]  # returns the dropout masks for an input [K, b, T, ...]


def dropped(added: Tensor, seats: int, masks: DrawMasks | None) -> Tensor:
    """Return what the landmarks of K seats add, [K * b, T, ...], with dropout applied to it.

    Args:
        added: what they add.
        seats: number of seats K.
        masks: draws the seats' masks; None without dropout.
    """
    if masks is None:
        return added
    return added * masks(added.unflatten(0, (seats, -1))).flatten(0, 1)


def by_layer(x: Tensor) -> Sequence[Tensor]:
    """Return [K, layers, ...] as one tensor [K, ...] for each layer, none of them a view."""
    layers: Sequence[Tensor] = torch.ops.aten.unbind_copy(x, 1)
    return layers


def most_landmarks(modules: Sequence[LandmarkT | None]) -> int:
    """Return the largest L of the seats."""
    return max(m.num_landmarks for m in modules if m is not None)


def stacked(modules: Sequence[LandmarkT | None], get: Callable[[LandmarkT], Tensor]) -> Tensor:
    """Stack [..., L, d] of each seat to [K, ..., max L, d], with zeros for a seat of None."""
    landmarks = most_landmarks(modules)
    padded = [
        None if m is None else F.pad(get(m), (0, 0, 0, landmarks - m.num_landmarks))
        for m in modules
    ]
    shape = next(x for x in padded if x is not None)
    return torch.stack([torch.zeros_like(shape) if x is None else x for x in padded])


def padding(modules: Sequence[Landmark | None], like: Tensor) -> Tensor:
    """Return [K, max L]: 0 for a seat's own landmarks, -inf for padded ones."""
    landmarks = most_landmarks(modules)
    return _mask(
        tuple(landmarks if m is None else m.num_landmarks for m in modules), like.dtype, like.device
    )


@lru_cache(64)
def _mask(counts: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # the cached tensor must serve training too
        own = torch.arange(max(counts), device=device) < to_device(counts, device)[:, None]
        return torch.zeros(own.shape, dtype=dtype, device=device).masked_fill_(~own, -torch.inf)
