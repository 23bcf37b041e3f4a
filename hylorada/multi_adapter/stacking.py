"""The LoRA factors of a pack's seats as one tensor.

Seats may differ in rank and in the modules that they adapt. Whatever a seat lacks is filled with
zeros, which add nothing to an output and pass no gradient on.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from hylorada.adapters.adapter import Adapter
from hylorada.adapters.lora import LoRA
from hylorada.base_models.architectures import Target

_Layout = tuple[tuple[str, Target], ...]


def all_targets(adapters: Sequence[Adapter]) -> dict[str, Target]:
    """Return the modules that at least one of the adapters changes, keyed by their path."""
    first = adapters[0].targets
    if all(list(a.targets) == list(first) for a in adapters):
        return first
    return {path: target for a in adapters for path, target in a.targets.items()}


def factor_sizes(target: Target, rank: int) -> tuple[int, int]:
    """Return the number of elements of A and of B."""
    return rank * target.in_features, rank * target.out_features


def stacked_factors(adapters: Sequence[Adapter], targets: dict[str, Target], rank: int) -> Tensor:
    """Return all LoRA factors of K adapters, [K, n]: for each module A [rank, d_in], then B.

    With further zero rows in A and zero columns in B [d_out, rank], the product B A of a seat of
    lower rank stays the same. The gradients of these zeros are dropped.

    Args:
        adapters: K adapters.
        targets: modules that the tensor covers, in its order.
        rank: the largest rank of the adapters.
    """
    complete = (rank, tuple(targets))
    # Equal dicts may differ in order, but a vector has one order.
    owned = [(a.config.r, tuple(a.targets)) for a in adapters]
    vectors = [a.lora_vector() for a in adapters]
    layout, device = tuple(targets.items()), vectors[0].device
    places = {own: _places(*own, layout, rank, device) for own in set(owned) - {complete}}
    size = sum(sum(factor_sizes(t, rank)) for t in targets.values())
    return torch.stack(
        [
            vector.new_zeros(size).index_copy(0, places[own], vector) if own in places else vector
            for own, vector in zip(owned, vectors, strict=True)
        ]
    )


@lru_cache(64)
def _places(
    own_rank: int, paths: tuple[str, ...], layout: _Layout, rank: int, device: torch.device
) -> Tensor:
    """Return the place of each factor of an adapter in a row of :func:`stacked_factors`.

    Args:
        own_rank: rank of the adapter.
        paths: modules that it adapts, in the order of its vector.
        layout: the row's modules, in order.
        rank: the row's rank.
        device: device of the result.
    """
    targets, start = dict(layout), 0
    starts: dict[str, int] = {}
    for path, target in layout:
        starts[path] = start
        start += sum(factor_sizes(target, rank))
    places = []
    with torch.inference_mode(False):  # a cached inference tensor could not be used in training
        for path in paths:
            target, begin = targets[path], starts[path]
            rows_end, _ = factor_sizes(target, own_rank)
            columns = torch.arange(target.out_features)[:, None] * rank + torch.arange(own_rank)
            end, _ = factor_sizes(target, rank)
            places += [begin + torch.arange(rows_end), begin + end + columns.flatten()]
        return torch.cat(places).to(device)


def padded_updates(updates: Sequence[LoRA]) -> tuple[Tensor, Tensor]:
    """Return A [S, r, d_in] and B [S, d_out, r] of S updates of one module, r the largest rank."""
    rank = max(len(u.lora_A) for u in updates)
    rows = [rank - len(u.lora_A) for u in updates]  # the missing ones
    return (
        torch.stack([_padded(u.lora_A, (0, 0, 0, n)) for u, n in zip(updates, rows, strict=True)]),
        torch.stack([_padded(u.lora_B, (0, n)) for u, n in zip(updates, rows, strict=True)]),
    )


def _padded(factor: Tensor, missing: tuple[int, ...]) -> Tensor:
    return F.pad(factor, missing) if any(missing) else factor  # a padding of 0 would copy
