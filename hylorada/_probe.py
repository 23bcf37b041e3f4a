"""What must be true of adapters on a base before anything is trained with them, tried out on one batch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ._adapter import Adapter
from ._architectures import architecture_of
from ._errors import InputError
from ._pack import Pack
from ._seat import Seat
from ._training import DoesNotFit, train_step

_STEPS = 2
_NOISE = 0.02


def probe(pack: Pack, seats: Sequence[Seat], input_ids: Tensor) -> None:
    """Train throw-away seats for two steps and look at what was promised.

    - The configuration in force, read back from the live objects, is the one asked for.
    - Every trained parameter gets a gradient, and the base none.
    - No prediction depends on a later token: the gradient of the first half's losses with respect to the second half's
      embeddings is exactly 0. (Seats with ``replication_noncausal_pooling`` are let off.)
    - The base's bits are what they were.

    Args:
        pack: with the base.
        seats: of equal rank and batch size, one for each configuration; they are of no use afterwards.
        input_ids: [N, T] training blocks on the base's device.

    Raises:
        InputError: naming the module or parameter at fault.
    """
    base = pack.base
    before = _checksums(base)
    problems = [p for seat in seats for p in _misapplied(seat)]
    for _ in range(_STEPS):
        for loss in train_step(pack, dict(enumerate(seats)), input_ids).values():
            if isinstance(loss, DoesNotFit):
                raise loss
    adapters = [_moved(seat.adapter).eval() for seat in seats]
    rows = seats[0].order.batch_size
    ids = input_ids[:rows].long().expand(len(seats), -1, -1)
    with _watched(pack) as outputs:
        nll = pack.token_nll(adapters, ids).flatten(0, 1)  # [K * b, T - 1]
        torch._foreach_zero_([seat.grads for seat in seats])
        nll.sum().backward(retain_graph=True)
        problems += [p for seat in seats for p in _without_gradient(seat)]
        for k, seat in enumerate(seats):
            if seat.adapter.config.replication_noncausal_pooling:
                continue
            leak = _leak(nll, outputs, slice(k * rows, (k + 1) * rows))
            if leak is not None:
                problems.append(f"{_named(seat)}: predictions depend on later tokens through {leak!r}")
    after = _checksums(base)
    problems += [f"training changed the frozen base's {n!r}" for n in before if not torch.equal(before[n], after[n])]
    problems += [f"the frozen base's {n!r} got a gradient" for n, p in base.named_parameters() if p.grad is not None]
    if problems:
        raise InputError(problems)


def _named(seat: Seat) -> str:
    config = seat.adapter.config
    return f"landmark_design {config.landmark_design!r}" if config.has_landmarks else "adapter without landmarks"


def _misapplied(seat: Seat) -> list[str]:
    asked = {**seat.adapter.config.to_dict(), **seat.training.to_dict()}
    found = seat.applied()
    return [f"{k} is {found[k]!r} in the trainer, {v!r} was asked for" for k, v in asked.items() if found[k] != v]


@torch.no_grad()
def _moved(adapter: Adapter) -> Adapter:
    """Away from zeros, behind which a leak or a missing gradient would hide."""
    generator = torch.Generator().manual_seed(adapter.seed)
    for parameter in adapter.parameters():
        if parameter is not adapter.boundaries:
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(_NOISE * noise.to(parameter.device))
    return adapter


def _without_gradient(seat: Seat) -> list[str]:
    return [
        f"{_named(seat)}: parameter {name!r} gets no gradient"
        for name, parameter in seat.adapter.named_parameters()
        if parameter.grad is None or not parameter.grad.any()
    ]


@contextmanager
def _watched(pack: Pack) -> Iterator[dict[str, Tensor]]:
    """Within it the outputs of embedding, layers and final norm are kept, in order; all need gradients."""
    base, architecture = pack.base, architecture_of(pack.base.config.model_type)
    layers = list(base.get_submodule(architecture.layers).children())
    modules = {"the embedding": base.get_input_embeddings()}
    modules |= {f"{architecture.layers}.{i}": layer for i, layer in enumerate(layers)}
    modules |= {architecture.final_norm: base.get_submodule(architecture.final_norm)}
    outputs: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> Any:
            hidden = output[0] if isinstance(output, tuple) else output
            outputs[name] = hidden if hidden.requires_grad else hidden.requires_grad_()
            return output

        return hook

    handles = [module.register_forward_hook(keep(name)) for name, module in modules.items()]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def _leak(nll: Tensor, outputs: dict[str, Tensor], own: slice) -> str | None:
    """The module through which the losses of the first half of a seat's ``own`` rows see the second half."""
    cut = (nll.shape[-1] + 1) // 2
    names, tensors = zip(*outputs.items(), strict=True)
    gradients = torch.autograd.grad(nll[own, : cut - 1].sum(), tensors, retain_graph=True, allow_unused=True)
    sees = [g is not None and bool(g[own, cut:].any()) for g in gradients]
    if not sees[0]:
        return None
    following = sees.index(False) if False in sees else len(sees)
    return names[following] if following < len(sees) else "the head"


_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def _checksums(base: nn.Module) -> dict[str, Tensor]:
    """Of each parameter the sum of its bits, read as whole numbers."""
    return {n: p.view(_WORDS[p.element_size()]).sum(dtype=torch.int64) for n, p in base.named_parameters()}
