"""Lanes: on a CPU several packs of one base work beside each other, each on its share of the cores.

The operations of a small base are too short for many cores: what one core does before and after each of them the others
wait for. Two packs on a core each, by contrast, wait for nothing.
"""

import copy
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import TypeVar

import torch
from transformers import PreTrainedModel

from ._adapter import Adapter
from ._blocks import Blocks
from ._evaluation import Evaluation
from ._pack import Pack
from ._seat import Seat
from ._training import StartedStep, TokenBlocks, evaluate, start_step

Item = TypeVar("Item")
Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")
_MOST = 4  # beyond it they would wait for Python's lock: about an eighth of a step is Python


class Lanes:
    """Packs that share one base's weights, and take parts of the same work at the same time.

    Libgomp lets the threads of an operation sleep in between, which costs more than the operation, once a second thread
    of the process has given work to several cores. So the first part is done by the calling thread, which should be the
    only one of its process that computes, and to every part belong as many threads as it has cores.

    Args:
        base: a supported causal language model.
        compile_backend: see :class:`Pack`.
        cores: to share out; by default those this process may use.

    Attributes:
        base: as given; adapters are made for it.
        packs: one on a GPU; on a CPU as many as there are cores, four at most. The first is on ``base`` itself, the
            others on copies that have their own modules and the same weights.
    """

    def __init__(self, base: PreTrainedModel, *, compile_backend: str | None = None, cores: int | None = None) -> None:
        self.base = base
        self._cores = cores or len(os.sched_getaffinity(0))
        count = 1 if base.device.type != "cpu" else min(self._cores, _MOST)
        weights = {id(tensor): tensor for tensor in (*base.parameters(), *base.buffers())}
        bases = [base, *(copy.deepcopy(base, dict(weights)) for _ in range(count - 1))]
        self.packs = [Pack(b, compile_backend=compile_backend) for b in bases]
        self._threads = ThreadPoolExecutor(count)

    def start_step(self, seats: Mapping[Name, Seat], input_ids: TokenBlocks) -> list[StartedStep[Name]]:
        """As :func:`start_step` on one pack; each lane takes some of the seats."""

        def start(pack: Pack, names: Sequence[Name]) -> list[StartedStep[Name]]:
            return start_step(pack, {name: seats[name] for name in names}, input_ids)

        return [step for part in self._share_out(start, list(seats)) for step in part]

    def evaluate(self, adapters: Sequence[Adapter], blocks: Blocks) -> list[Evaluation]:
        """As :func:`evaluate` on one pack; each lane takes some of the adapters."""
        parts = self._share_out(lambda pack, some: evaluate(pack, some, blocks), adapters)
        return [evaluation for part in parts for evaluation in part]

    @property
    def max_seats(self) -> int | None:
        """The lowest of the packs' own."""
        return min((p.max_seats for p in self.packs if p.max_seats is not None), default=None)

    @max_seats.setter
    def max_seats(self, limit: int | None) -> None:
        for pack in self.packs:
            pack.max_seats = limit

    def _share_out(self, work: Callable[[Pack, Sequence[Item]], Result], items: Sequence[Item]) -> list[Result]:
        """The results of ``work`` on as many parts of ``items`` as there are lanes and items, in their order.

        Raises:
            Exception: of the first part that raised; when all have ended.
        """
        parts = _parts(items, min(len(self.packs), max(1, len(items))))
        share = self._cores // len(parts)
        others = [
            self._threads.submit(_on_cores, share, work, pack, part)
            for pack, part in zip(self.packs[1:], parts[1:], strict=False)
        ]
        try:
            first = _on_cores(share, work, self.packs[0], parts[0])
        finally:
            wait(others)
        return [first, *(other.result() for other in others)]


def _parts(items: Sequence[Item], count: int) -> list[Sequence[Item]]:
    """``count`` runs of ``items``, whose lengths differ by one at most."""
    bounds = [k * len(items) // count for k in range(count + 1)]
    return [items[start:end] for start, end in pairwise(bounds)]


def _on_cores(cores: int, work: Callable[[Pack, Item], Result], pack: Pack, part: Item) -> Result:
    """Do a part of the work with that many threads; the number is each calling thread's own."""
    if pack.base.device.type != "cpu":
        return work(pack, part)
    before = torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        return work(pack, part)
    finally:
        torch.set_num_threads(before)
