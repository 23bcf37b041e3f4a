"""Which adapters share a forward pass, given that low ranks are padded to the pass's highest."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from torch import nn

from hylorada.adapters.adapter import Adapter

Name = TypeVar("Name", bound=Hashable)
# Processors multiply matrices in tiles, so a lower rank takes as long as this one.
_TILE = 16
# Operations that padding may add, as a share of the base's. Splitting a pack of 8 into two passes
# costs about as much on a CPU, and more on a GPU.
_MOST_PADDING = 0.1


def shared_passes(adapters: Mapping[Name, Adapter], base: nn.Module) -> list[list[Name]]:
    """Return the names of the adapters that share each pass, in the given order.

    Adapters of all ranks share one pass as long as padding adds few operations. Otherwise the
    highest ranks get a pass of their own.

    Args:
        adapters: adapters by name.
        base: the base that they adapt.
    """
    by_rank: dict[int, list[Name]] = defaultdict(list)
    for name, adapter in adapters.items():
        by_rank[adapter.config.r].append(name)
    if len(by_rank) < 2:
        return list(by_rank.values())
    parameters = sum(p.numel() for p in base.parameters())
    passes: list[list[Name]] = []
    for rank in sorted(by_rank, reverse=True):
        joined = [*passes[-1], *by_rank[rank]] if passes else []
        if joined and _padding([adapters[n] for n in joined], parameters) <= _MOST_PADDING:
            passes[-1] = joined
        else:
            passes.append(by_rank[rank])
    order = {name: place for place, name in enumerate(adapters)}
    return [sorted(names, key=order.__getitem__) for names in passes]


def _padding(adapters: Sequence[Adapter], parameters: int) -> float:
    """Return the operations that padding adds to a pass, as a share of the base's.

    For each token, a factor of LoRA takes 6 operations per element (forward, gradient of the
    factor, gradient of its input), and a frozen weight 4.

    Args:
        adapters: adapters of the pass.
        parameters: number of parameters of the base.
    """
    highest = max(a.config.r for a in adapters)
    missing = [max(highest, _TILE) - max(a.config.r, _TILE) for a in adapters]
    widths = [sum(t.in_features + t.out_features for t in a.targets.values()) for a in adapters]
    added = sum(m * width for m, width in zip(missing, widths, strict=True))
    return 6 * added / (4 * parameters * len(adapters))
