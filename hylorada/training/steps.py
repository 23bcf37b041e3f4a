"""Train and evaluate the seats of a pack together."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from hylorada.adapters.adapter import Adapter, boundary_penalties
from hylorada.data.blocks import Blocks
from hylorada.data.perplexity import Evaluation, summarize
from hylorada.errors import Diverged, DoesNotFit
from hylorada.multi_adapter.pack import Pack
from hylorada.runtime.devices import is_out_of_memory, to_device
from hylorada.training.passes import shared_passes
from hylorada.training.seat import PendingStep, Seat, update

Item = TypeVar("Item")
Name = TypeVar("Name", bound=Hashable)
_EVALUATION_TOKENS, _EVALUATION_TOKENS_ON_GPU = 1 << 12, 1 << 17
TokenBlocks = npt.NDArray[np.int32] | torch.Tensor


Outcome = float | Diverged | DoesNotFit
StartedStep = tuple[list[Name], PendingStep | DoesNotFit]


def train_step(
    pack: Pack, seats: Mapping[Name, Seat], input_ids: TokenBlocks
) -> dict[Name, Outcome]:
    """Train every seat for one optimizer step, each by its own schedule, and wait for the results.

    Losses are summed over seats, so each adapter's gradient equals that of training alone. Seats of
    unequal batch size can't share a forward pass; they take turns. So do seats whose ranks are far
    apart (:func:`hylorada.training.passes.shared_passes`).

    Args:
        pack: the pack with the base.
        seats: the seats by name; each takes its next batch.
        input_ids: [N, T], all training blocks; if they lie on the base's device, no step has to
            copy them.

    Returns:
        For each name the mean NLL of the step's predicted tokens, :class:`Diverged` or
        :class:`DoesNotFit`.
    """
    return read_step(start_step(pack, seats, input_ids))


def start_step(
    pack: Pack, seats: Mapping[Name, Seat], input_ids: TokenBlocks
) -> list[StartedStep[Name]]:
    """Start a :func:`train_step` without waiting, so that the caller can prepare the next step.

    Seats that don't fit into memory together take turns. The result of a seat that doesn't fit
    alone is :class:`DoesNotFit`.

    Returns:
        Parts of the step for :func:`read_step`.
    """
    by_batch: dict[int, dict[Name, Adapter]] = defaultdict(dict)
    for name, seat in seats.items():
        by_batch[seat.order.batch_size][name] = seat.adapter
    passes = [p for group in by_batch.values() for p in shared_passes(group, pack.base)]
    waiting = [part for names in passes for part in _parts(names, pack.max_seats)]
    started: list[StartedStep[Name]] = []
    while waiting:
        names = waiting.pop(0)
        pending = _try_step(pack, [seats[n] for n in names], input_ids)
        if pending is not None:
            started.append((names, pending))
        elif len(names) == 1:
            started.append((names, _does_not_fit(pack.base.device)))
        else:
            pack.max_seats = len(names) // 2
            waiting[:0] = _parts(names, pack.max_seats)
    return started


def _does_not_fit(device: torch.device) -> DoesNotFit:
    problem = f"a single trial does not fit into the memory of {device}"
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device) / 2**30
        problem += f": it needs more than {peak:.1f} GiB"
    return DoesNotFit(problem)


def _parts(items: list[Item], size: int | None) -> list[list[Item]]:
    size = size or len(items)
    return [items[i : i + size] for i in range(0, len(items), size)]


def read_step(started: Sequence[StartedStep[Name]]) -> dict[Name, Outcome]:
    """Wait for a started step and return the results by name, as :func:`train_step` does."""
    results: dict[Name, Outcome] = {}
    for names, pending in started:
        outcomes = [pending] if isinstance(pending, DoesNotFit) else pending.result()
        results.update(zip(names, outcomes, strict=True))
    return results


def _try_step(pack: Pack, seats: Sequence[Seat], input_ids: TokenBlocks) -> PendingStep | None:
    """Start a step; if memory runs out, return None and leave the seats as they were."""
    configs = [(s, s.adapter.config) for s in seats]
    drawing = [s.adapter.dropout_stream for s, c in configs if c.lora_dropout or c.landmark_dropout]
    before = [stream.get_state() for stream in drawing]
    try:
        return _step_together(pack, seats, input_ids)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    # only here, outside the handler, are the exception and the tensors it referred to freed
    for stream, state in zip(drawing, before, strict=True):
        stream.set_state(state)
    _free(pack.base.device)
    return None


def _free(device: torch.device) -> None:
    """Give the memory of freed tensors back to a GPU."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


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
def evaluate(
    pack: Pack, adapters: Sequence[Adapter], blocks: Blocks, *, rows: int | None = None
) -> list[Evaluation]:
    """Return the losses of K adapters on the same blocks, without dropout.

    Args:
        pack: the pack with the base.
        adapters: K adapters; without any, the base alone is evaluated and returns one result.
        blocks: N blocks.
        rows: number of blocks of all adapters together in one forward pass; it bounds memory and
            doesn't change results. The default is 131,072 tokens' worth with CUDA and 4,096
            elsewhere. Where that doesn't fit into memory, passes get smaller.

    Raises:
        DoesNotFit: a single block of a single adapter doesn't fit into memory.
    """
    if rows is None:
        on_gpu = pack.base.device.type == "cuda"
        tokens = _EVALUATION_TOKENS_ON_GPU if on_gpu else _EVALUATION_TOKENS
        rows = tokens // blocks.input_ids.shape[1]
    for adapter in adapters:
        adapter.eval()
    evaluations: dict[int, Evaluation] = {}
    for members in shared_passes(dict(enumerate(adapters)), pack.base) or [[0]]:
        results = _evaluate_together(
            pack, [adapters[k] for k in members] if adapters else [], blocks, rows
        )
        evaluations.update(zip(members, results, strict=True))
    return [evaluations[k] for k in sorted(evaluations)]


def _evaluate_together(
    pack: Pack, adapters: Sequence[Adapter], blocks: Blocks, rows: int
) -> list[Evaluation]:
    parts: list[torch.Tensor] = []
    start, chunk = 0, max(1, rows // max(1, len(adapters)))
    while start < blocks.num_blocks:
        part = _try_evaluation(pack, adapters, blocks.input_ids[start : start + chunk])
        if part is not None:
            parts.append(part)
            start += chunk
        elif chunk > 1:
            chunk //= 2
        elif len(adapters) > 1:
            halves = _parts(list(adapters), (len(adapters) + 1) // 2)
            return [e for half in halves for e in _evaluate_together(pack, half, blocks, 1)]
        else:
            raise _does_not_fit(pack.base.device)
    token_nll = torch.cat(parts, dim=1).cpu().double().numpy()  # [K, N, T-1]
    num_bytes = int(blocks.num_bytes.sum())
    return [summarize(nll, num_bytes) for nll in token_nll]


def _try_evaluation(
    pack: Pack, adapters: Sequence[Adapter], input_ids: npt.NDArray[np.int32]
) -> torch.Tensor | None:
    """Return the NLL [K, b, T - 1] of K adapters on the same blocks; None if memory runs out."""
    ids = torch.from_numpy(input_ids.astype(np.int64)).to(pack.base.device)
    try:
        return pack.token_nll(adapters, ids.expand(max(1, len(adapters)), -1, -1))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    _free(pack.base.device)  # outside the handler, which keeps tensors of the pass alive
    return None
