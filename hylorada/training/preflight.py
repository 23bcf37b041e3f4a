"""Check, on a few blocks, what must hold for adapters on a base before a study trains any."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hylorada.adapters.adapter import Adapter
from hylorada.adapters.landmarks.base import landmark_seed
from hylorada.adapters.landmarks.custom import CustomLandmark, build_custom, custom_problems
from hylorada.base_models.architectures import architecture_of, decoder_layers
from hylorada.errors import DoesNotFit, InputError
from hylorada.multi_adapter.pack import Pack
from hylorada.training.seat import Seat
from hylorada.training.steps import train_step

_STEPS = 2
_NOISE = 0.02
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def probe(pack: Pack, seats: Sequence[Seat], input_ids: Tensor) -> None:
    """Train throw-away seats for two steps and check the guarantees that a study relies on.

    - A landmark design of the user's own adds zeros while it is untrained, starts from its seed,
      and keeps the rows of a batch apart.
    - The configuration in force, read back from the live objects, is the requested one.
    - Every trained parameter gets a gradient, and the base gets none.
    - No prediction depends on a later token: at several cuts, the gradient of the last prediction
      before the cut with respect to the embeddings after it is exactly 0. (Seats with
      ``replication_noncausal_pooling`` are exempt.)
    - The base's parameters are unchanged.

    Args:
        pack: the pack with the base.
        seats: one for each configuration; they are useless afterwards.
        input_ids: [N, T] training blocks on the base's device.

    Raises:
        InputError: a guarantee is broken, with the name of the module or parameter at fault; or a
            single trial does not fit into memory.
    """
    base = pack.base
    if problems := [p for seat in seats for p in _design_problems(pack, seat, input_ids.shape[1])]:
        raise InputError(list(dict.fromkeys(problems)))
    before = _checksums(base)
    problems = [p for seat in seats for p in _configuration_problems(seat)]
    for _ in range(_STEPS):
        outcomes = train_step(pack, dict(enumerate(seats)), input_ids)
        for outcome in outcomes.values():
            if isinstance(outcome, DoesNotFit):
                raise InputError(str(outcome))
    for seat in seats:
        problems += _probe_alone(pack, seat, input_ids[:1].long()[None])
    after = _checksums(base)
    problems += [
        f"training changed the frozen base's {n!r}"
        for n in before
        if not torch.equal(before[n], after[n])
    ]
    problems += [
        f"the frozen base's {n!r} got a gradient"
        for n, p in base.named_parameters()
        if p.grad is not None
    ]
    if problems:
        raise InputError(problems)


def _design_problems(pack: Pack, seat: Seat, length: int) -> list[str]:
    """Return what keeps a landmark design of the user's own from being trained."""
    adapter, base = seat.adapter, pack.base
    landmark = adapter.landmark
    if not isinstance(landmark, CustomLandmark):
        return []
    dtype = torch.float64 if base.dtype == torch.float64 else torch.float32
    seed = landmark_seed(adapter.seed)
    twin = build_custom(adapter.config, base.config, seed=seed, dtype=dtype)
    return custom_problems(
        landmark, twin.to(landmark.landmarks), length, int(base.config.hidden_size)
    )


def _probe_alone(pack: Pack, seat: Seat, ids: Tensor) -> list[str]:
    """List the problems that one block [1, 1, T] reveals."""
    adapter = _with_noise(seat.adapter)
    # shifted sparse attention exists in training mode only
    modes = (False, True) if adapter.config.shifted_sparse_attention else (False,)
    problems = [p for mode in modes for p in _probe_mode(pack, seat, adapter.train(mode), ids)]
    return list(dict.fromkeys(problems))


def _probe_mode(pack: Pack, seat: Seat, adapter: Adapter, ids: Tensor) -> list[str]:
    """List the problems that one block reveals with the adapter in its present mode."""
    seat.grads.zero_()
    with _recorded_outputs(pack) as outputs, pack.uncompiled():
        nll = pack.token_nll([adapter], ids)[0, 0]  # [T - 1]
        nll.sum().backward(retain_graph=True)
        problems = [
            f"{_label(seat)}: parameter {name!r} gets no gradient"
            for name, parameter in adapter.named_parameters()
            if parameter.grad is None or not parameter.grad.any()
        ]
        if not adapter.config.replication_noncausal_pooling and (leak := _leak(nll, outputs)):
            problems.append(f"{_label(seat)}: {leak}")
    return problems


def _label(seat: Seat) -> str:
    config = seat.adapter.config
    return (
        f"landmark_design {config.landmark_design!r}"
        if config.has_landmarks
        else "adapter without landmarks"
    )


def _configuration_problems(seat: Seat) -> list[str]:
    requested = {**seat.adapter.config.to_dict(), **seat.training.to_dict()}
    applied = seat.applied()
    return [
        f"{name} is {applied[name]!r} in the trainer, {value!r} was requested"
        for name, value in requested.items()
        if applied[name] != value
    ]


@torch.no_grad()
def _with_noise(adapter: Adapter) -> Adapter:
    """Add noise to all parameters but the boundaries: zeros would hide leaks and gradients."""
    generator = torch.Generator().manual_seed(adapter.seed)
    for parameter in adapter.parameters():
        if parameter is not adapter.boundaries:
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(_NOISE * noise.to(parameter.device))
    return adapter


@contextmanager
def _recorded_outputs(pack: Pack) -> Iterator[dict[str, Tensor]]:
    """Collect the outputs of embedding, layers and final norm, in order, within a ``with`` block.

    All of them require gradients.
    """
    base, architecture = pack.base, architecture_of(pack.base.config.model_type)
    modules = {"the embedding": base.get_input_embeddings(), **decoder_layers(base)}
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


def _leak(nll: Tensor, outputs: dict[str, Tensor]) -> str | None:
    """Name the module through which a prediction depends on later tokens; None if none does."""
    length = len(nll) + 1
    names, tensors = zip(*outputs.items(), strict=True)
    # A leak may lie within chunks of the text, so cuts are beside powers of two, too.
    cuts = {1, 3, length // 2 - 1, length // 2, length // 2 + 1, length - 2}
    for cut in sorted(c for c in cuts if 0 < c < length):
        # `nll[cut - 1]` belongs to the last prediction made from the tokens before the cut
        grads = torch.autograd.grad(nll[cut - 1], tensors, retain_graph=True, allow_unused=True)
        sizes = [0.0 if g is None else g[:, cut:].abs().max().item() for g in grads]
        if sizes[0]:
            blind = (name for name, size in zip(names, sizes, strict=True) if not size)
            return (
                f"the prediction from {cut} tokens depends on later ones "
                f"(gradient {sizes[0]:.1e}) through {next(blind, 'the head')!r}"
            )
    return None


@torch.no_grad()
def _checksums(base: nn.Module) -> dict[str, Tensor]:
    """Return for each parameter the sum of its elements' bits, read as whole numbers."""
    return {
        n: p.view(_WORDS[p.element_size()]).sum(dtype=torch.int64)
        for n, p in base.named_parameters()
    }
