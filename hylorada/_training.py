"""Train and evaluate the seats of a pack together."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from ._adapter import Adapter, boundary_penalties
from ._blocks import Blocks
from ._devices import to_device
from ._evaluation import Evaluation, summarize
from ._pack import Pack
from ._seat import Diverged, PendingStep, Seat, update

Name = TypeVar("Name", bound=Hashable)
_EVALUATION_TOKENS = {"cpu": 1 << 12, "cuda": 1 << 17}
StartedStep = list[tuple[list[Name], PendingStep]]
TokenBlocks = npt.NDArray[np.int32] | torch.Tensor


def train_step(pack: Pack, seats: Mapping[Name, Seat], input_ids: TokenBlocks) -> dict[Name, float | Diverged]:
    """One optimizer step of every seat, each at its own place in its own schedule; waits for the result.

    Losses are summed over seats, so each adapter's gradient is that of training alone. Seats of unequal rank or batch
    size can't share a forward; they take turns.

    Args:
        pack: the base.
        seats: by name; each takes its next batch.
        input_ids: [N, T] all training blocks; on the base's device they needn't be copied at each step.

    Returns:
        By name the mean NLL of the step's predicted tokens, or :class:`Diverged`.
    """
    return read_step(start_step(pack, seats, input_ids))


def start_step(pack: Pack, seats: Mapping[Name, Seat], input_ids: TokenBlocks) -> StartedStep[Name]:
    """As :func:`train_step`, without the wait: the device works while the caller goes on to the next step."""
    groups: dict[tuple[int, int], list[Name]] = defaultdict(list)
    for name, seat in seats.items():
        groups[seat.adapter.config.r, seat.order.batch_size].append(name)
    return [(names, _step_together(pack, [seats[n] for n in names], input_ids)) for names in groups.values()]


def read_step(started: StartedStep[Name]) -> dict[Name, float | Diverged]:
    """The results of a started step, by name."""
    return {n: r for names, pending in started for n, r in zip(names, pending.result(), strict=True)}


def _step_together(pack: Pack, seats: Sequence[Seat], input_ids: TokenBlocks) -> PendingStep:
    device = pack.base.device
    places = np.stack([s.order.indices(s.step) for s in seats])  # [K, b]
    if isinstance(input_ids, torch.Tensor):
        tokens = input_ids[to_device(places, input_ids.device)].to(device)  # [K, b, T]
    else:
        tokens = to_device(input_ids[places], device)
    adapters = [s.adapter.train() for s in seats]
    torch._foreach_zero_([s.grads for s in seats])
    losses = pack.token_nll(adapters, tokens.long()).mean(dim=(1, 2))  # [K]
    penalties = boundary_penalties(adapters)
    total = losses.sum() if penalties is None else losses.sum() + penalties
    total.backward()
    return update(seats, losses.detach())


@torch.no_grad()
def evaluate(pack: Pack, adapters: Sequence[Adapter], blocks: Blocks, *, rows: int | None = None) -> list[Evaluation]:
    """Losses of K adapters on the same blocks, dropout off.

    Args:
        pack: the base.
        adapters: K adapters; none evaluates the base alone and returns one result.
        blocks: N blocks.
        rows: blocks of all seats together in one forward; it bounds memory and doesn't change results. By default as
            many as make 4,096 tokens on the CPU and 131,072 on a GPU.
    """
    if rows is None:
        rows = _EVALUATION_TOKENS[pack.base.device.type] // blocks.input_ids.shape[1]
    by_rank: dict[int, list[int]] = defaultdict(list)
    for k, adapter in enumerate(adapters):
        adapter.eval()
        by_rank[adapter.config.r].append(k)
    found: dict[int, Evaluation] = {}
    for members in by_rank.values() if adapters else [[0]]:
        results = _evaluate_together(pack, [adapters[k] for k in members] if adapters else [], blocks, rows)
        found.update(zip(members, results, strict=True))
    return [found[k] for k in sorted(found)]


def _evaluate_together(pack: Pack, adapters: Sequence[Adapter], blocks: Blocks, rows: int) -> list[Evaluation]:
    seats = max(1, len(adapters))
    parts = []
    chunk = max(1, rows // seats)
    for start in range(0, blocks.num_blocks, chunk):
        ids = torch.from_numpy(blocks.input_ids[start : start + chunk].astype(np.int64))
        tokens = ids.to(pack.base.device).expand(seats, -1, -1)
        parts.append(pack.token_nll(adapters, tokens))
    token_nll = torch.cat(parts, dim=1).cpu().double().numpy()  # [K, N, T-1]
    num_bytes = int(blocks.num_bytes.sum())
    return [summarize(nll, num_bytes) for nll in token_nll]
