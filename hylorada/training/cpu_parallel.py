"""Lanes: several packs of one base that compute in parallel, each on its share of the CPU's cores.

The operations of a small base are too short for many cores, which wait whenever a single core does
the work between two operations. Packs on cores of their own don't wait for each other.
"""

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import TypeVar

import torch
from transformers import PreTrainedModel

from hylorada.adapters.adapter import Adapter
from hylorada.data.blocks import Blocks
from hylorada.data.perplexity import Evaluation
from hylorada.multi_adapter.pack import Pack
from hylorada.runtime.cores import available_cores
from hylorada.runtime.devices import own_threads
from hylorada.training.seat import Seat
from hylorada.training.steps import StartedStep, TokenBlocks, evaluate, start_step

Item = TypeVar("Item")
Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")
# More lanes would wait for Python's global lock: about an eighth of a step is Python.
_MOST = 4


class Lanes:
    """Packs that share one base's weights and compute parts of the same work in parallel.

    When all thread teams of a process have more threads than there are cores, the OpenMP runtime
    puts its threads to sleep between two operations, and waking them takes longer than most
    operations. So the calling thread computes the first part, each other part gets a thread of
    its own, and together they have no more threads than there are cores. No other thread of the
    process should compute with more than one (:func:`hylorada.runtime.devices.own_threads`).

    Args:
        base: a supported causal language model.
        compile_backend: see :class:`Pack`.
        gradient_checkpointing: see :class:`Pack`.
        cores: number of cores to share; by default all that this process may use.

    Attributes:
        base: the given base; adapters are built for it.
        packs: one on a GPU; on a CPU one per core, four at most. The first pack is on ``base``
            itself, the others on copies that have their own modules and the same weights.

    Raises:
        InputError: see :class:`Pack`.

    Example:
        >>> lanes = Lanes(base)                                        # doctest: +SKIP
        >>> losses = read_step(lanes.start_step(seats, input_ids))     # doctest: +SKIP
    """

    def __init__(
        self,
        base: PreTrainedModel,
        *,
        compile_backend: str | None = None,
        gradient_checkpointing: bool = False,
        cores: int | None = None,
    ) -> None:
        self.base = base
        self._cores = cores or available_cores()
        count = 1 if base.device.type != "cpu" else min(self._cores, _MOST)
        weights = {id(tensor): tensor for tensor in (*base.parameters(), *base.buffers())}
        bases = [base, *(copy.deepcopy(base, dict(weights)) for _ in range(count - 1))]
        self.packs = [
            Pack(b, compile_backend=compile_backend, gradient_checkpointing=gradient_checkpointing)
            for b in bases
        ]
        self._share = 0
        self._threads = ThreadPoolExecutor()

    def start_step(
        self, seats: Mapping[Name, Seat], input_ids: TokenBlocks
    ) -> list[StartedStep[Name]]:
        """Start a step as :func:`start_step` does; each lane takes some of the seats."""

        def start(pack: Pack, names: Sequence[Name]) -> list[StartedStep[Name]]:
            return start_step(pack, {name: seats[name] for name in names}, input_ids)

        return [step for part in self._share_out(start, list(seats)) for step in part]

    def evaluate(self, adapters: Sequence[Adapter], blocks: Blocks) -> list[Evaluation]:
        """Evaluate as :func:`evaluate` does; each lane takes some of the adapters."""
        parts = self._share_out(lambda pack, some: evaluate(pack, some, blocks), adapters)
        return [evaluation for part in parts for evaluation in part]

    @property
    def max_seats(self) -> int | None:
        """The lowest limit of the packs; None if none has a limit."""
        return min((p.max_seats for p in self.packs if p.max_seats is not None), default=None)

    @max_seats.setter
    def max_seats(self, limit: int | None) -> None:
        for pack in self.packs:
            pack.max_seats = limit

    def _share_out(
        self, work: Callable[[Pack, Sequence[Item]], Result], items: Sequence[Item]
    ) -> list[Result]:
        """Split ``items`` over the lanes and return the results of ``work``, in the items' order.

        Raises:
            Exception: the error of the first part that failed, once all parts have ended.
        """
        if len(self.packs) == 1:
            return [work(self.packs[0], items)]
        parts = _parts(items, min(len(self.packs), max(1, len(items))))
        self._divide(self._cores // len(parts))
        others = [
            self._threads.submit(work, *pair)
            for pair in zip(self.packs[1:], parts[1:], strict=False)
        ]
        before = torch.get_num_threads()
        # the calling thread's lane gets the cores that are left over after an even division
        torch.set_num_threads(self._cores - self._share * (len(parts) - 1))
        try:
            first = work(self.packs[0], parts[0])
        finally:
            wait(others)
            torch.set_num_threads(before)
        return [first, *(other.result() for other in others)]

    def _divide(self, share: int) -> None:
        """Give each lane ``share`` cores.

        Threads that had another number of cores end: their OpenMP teams would still count.
        """
        if share != self._share:
            self._threads.shutdown()
            self._share = share
            self._threads = ThreadPoolExecutor(
                len(self.packs), initializer=own_threads, initargs=(share,)
            )

    def rest(self) -> None:
        """End the lanes' threads, freeing all cores for the caller until the lanes run again."""
        self._divide(0)

    def close(self) -> None:
        """Remove the packs from the base; see :meth:`Pack.close`."""
        self.rest()
        for pack in self.packs:
            pack.close()


def _parts(items: Sequence[Item], count: int) -> list[Sequence[Item]]:
    """Return ``count`` contiguous parts of ``items`` whose lengths differ by one at most."""
    bounds = [k * len(items) // count for k in range(count + 1)]
    return [items[start:end] for start, end in pairwise(bounds)]
