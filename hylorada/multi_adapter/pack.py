"""The pack: one frozen base and the adapters of K seats in the same forward and backward.

The base sees the K x b rows of all seats as one batch. Each adapted linear module adds to each
seat's rows that seat's low-rank update. The stacked factors are built from the adapters' own
parameters, so the gradients reach them; lower ranks are padded with zeros. The base has no gradient
and every operation acts row by row: a seat's numbers don't depend on its neighbours, and a seat
that turns to NaN harms no other.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hylorada.adapters.adapter import Adapter, check_base
from hylorada.adapters.attention import (
    AttentionSlot,
    attention_slots,
    attention_with_slots,
    fill_attention,
)
from hylorada.adapters.buckets import Positions
from hylorada.adapters.landmarks.at_norm import NormLandmark, mix_at_norm
from hylorada.adapters.landmarks.attention_integrated import AttentionIntegratedLandmark, head_mixes
from hylorada.adapters.landmarks.base import LandmarkT
from hylorada.adapters.landmarks.custom import CustomLandmark, mix_custom
from hylorada.adapters.landmarks.per_layer import PerLayerLandmark, layer_mixes
from hylorada.adapters.lora import position_factors, updated_norms, weight_of
from hylorada.adapters.running_pools import History, Tokens
from hylorada.adapters.shifted_sparse_attention import group_heads
from hylorada.base_models.architectures import (
    architecture_of,
    decoder_layers,
    head_of,
    linear_modules,
)
from hylorada.multi_adapter.chunked_loss import Head, head_nll
from hylorada.multi_adapter.compiled_layers import compiled, mark_dynamic
from hylorada.multi_adapter.dropout import draws_in_layers, landmark_masks, lora_masks
from hylorada.multi_adapter.injection import LowRank, Slot, close_slot, fill_slot, open_slots
from hylorada.multi_adapter.recomputation import Recomputation, checkpointed
from hylorada.multi_adapter.spread_base import device_of, is_spread, moved
from hylorada.multi_adapter.stacking import (
    all_targets,
    factor_sizes,
    padded_updates,
    stacked_factors,
)
from hylorada.runtime.devices import column, to_device


class _Pass:
    """The stacked parameters of K adapters for one forward pass."""

    def __init__(
        self,
        adapters: Sequence[Adapter],
        positions: Tensor,
        rows: int | None,
        tokens: Tokens,
        base: PreTrainedModel,
    ) -> None:
        self.adapters = adapters
        self.rows = rows
        self.tokens = tokens
        self.rank = max(a.config.r for a in adapters)
        self.base = base
        self.dtype = base.dtype
        self.draws_in_layers = any(map(draws_in_layers, adapters))
        self.positions = Positions(positions, len(adapters))

    def slots(self) -> dict[str, Slot]:
        """Return the additions to every adapted module; a seat that doesn't adapt it adds zeros."""
        slots = {path: Slot(update) for path, update in self._updates().items()}
        modules = self._landmarks(PerLayerLandmark)
        if modules:
            architecture = architecture_of(self.base.config.model_type)
            masks = landmark_masks(self.adapters, modules)
            for mix in layer_mixes(modules, self.dtype, self.rows, self.tokens, masks):
                path = f"{architecture.layers}.{mix.layer}.{architecture.mlp_output}"
                slots.setdefault(path, Slot()).landmarks = mix
        return slots

    def attention(self) -> list[AttentionSlot]:
        """Return the changes to each layer's attention; empty if no seat has any."""
        config, modules = self.base.config, self._landmarks(AttentionIntegratedLandmark)
        masks = landmark_masks(self.adapters, modules) if modules else None
        mixes = head_mixes(modules, self.dtype, self.rows, masks) if modules else []
        sizes, heads = [a.attention_group for a in self.adapters], config.num_attention_heads
        groups = group_heads(sizes, self.positions, heads, self.dtype, self.rows)
        return attention_slots(groups, mixes, config.num_hidden_layers)

    def add_landmarks(self, hidden: Tensor) -> Tensor | None:
        """Return the final norm's output with each seat's landmarks added; None without any."""
        before = hidden
        if modules := self._landmarks(NormLandmark):
            masks = landmark_masks(self.adapters, modules)
            hidden = mix_at_norm(modules, hidden, self.positions, self.tokens, masks)
        if own := self._landmarks(CustomLandmark):  # type: ignore[type-abstract]
            masks = landmark_masks(self.adapters, own)
            hidden = mix_custom(own, hidden, self.positions, self.tokens, masks)
        return None if hidden is before else hidden

    def _landmarks(self, design: type[LandmarkT]) -> list[LandmarkT | None]:
        """Return each seat's landmark module if it is of this design; empty if none is."""
        modules = [a.landmark if isinstance(a.landmark, design) else None for a in self.adapters]
        return modules if any(m is not None for m in modules) else []

    def _updates(self) -> dict[str, LowRank]:
        targets = all_targets(self.adapters)
        if not targets:
            return {}
        gains = self._gains()
        stacked = stacked_factors(self.adapters, targets, self.rank).to(self.dtype)
        sizes = [n for t in targets.values() for n in factor_sizes(t, self.rank)]
        pieces = iter(torch.ops.aten.split_with_sizes_copy(stacked, sizes, dim=1))
        updates = {}
        for path, target in targets.items():
            masks = lora_masks(self.adapters, path)
            excess = self._excess(path)
            updates[path] = LowRank(
                next(pieces), next(pieces), gains[target.layer], self.rows, masks, excess
            )
        return updates

    def _excess(self, path: str) -> Tensor | None:
        """Return DoRA's factors of one module minus 1, [K, d_out]; None without DoRA there."""
        members = [
            (k, a, m)
            for k, a in enumerate(self.adapters)
            if (m := a.magnitude_at(path)) is not None
        ]
        if not members:
            return None
        seats, adapters, magnitudes = zip(*members, strict=True)
        updates = [u for a in adapters if (u := a.lora_at(path)) is not None]
        magnitude = torch.stack(magnitudes)
        norms = updated_norms(
            weight_of(self.base.get_submodule(path)).to(magnitude),
            *padded_updates(updates),
            column(tuple((a.config.scaling,) for a in adapters), magnitude.dtype, magnitude.device)[
                0
            ],
        )
        factors = magnitude / norms
        if len(seats) < len(self.adapters):
            everyone = factors.new_ones(len(self.adapters), factors.shape[1])
            factors = everyone.index_copy(0, to_device(seats, factors.device), factors)
        return (factors - 1).to(self.dtype)

    def _gains(self) -> Sequence[Tensor]:
        """Return the factors of each layer's low-rank activations: scaling times position factors.

        Each is [K, 1 or b, 1 or T, 1].
        """
        like = self.adapters[0].lora_vector()
        scaling = column(
            tuple((a.config.scaling,) for a in self.adapters), like.dtype, like.device
        )[0]
        gains = scaling[None, :, None, None]
        biased = [
            (k, a.position_bias) for k, a in enumerate(self.adapters) if a.position_bias is not None
        ]
        if biased:
            seats, modules = zip(*biased, strict=True)
            factors = position_factors(modules, self.positions, seats)
            if len(seats) < len(self.adapters):
                everyone = factors.new_ones(len(factors), len(self.adapters), *factors.shape[2:])
                factors = everyone.index_copy(1, to_device(seats, factors.device), factors)
            gains = gains * factors
        layers = 1 + max(t.layer for a in self.adapters for t in a.targets.values())
        gains = gains.to(self.dtype)[..., None].expand(max(layers, len(gains)), *[-1] * 4)
        by_layer: Sequence[Tensor] = torch.ops.aten.unbind_copy(gains)
        return by_layer


class Prepared(NamedTuple):
    """A pass and its additions to the base."""

    now: _Pass | None
    slots: dict[str, Slot]
    attention: list[AttentionSlot]

    @property
    def adapters(self) -> Sequence[Adapter]:
        return () if self.now is None else self.now.adapters


class Pack:
    """Runs adapters on one base.

    Args:
        base: a supported causal language model. The pack freezes it and puts it in eval mode.
        compile_backend: backend of ``torch.compile``, such as ``inductor``; None runs eagerly. One
            decoder layer is compiled, on first use, and serves all layers, adapters and pack sizes.
            That takes half a minute and pays off on a GPU.
        gradient_checkpointing: keep only the decoder layers' inputs for the backward pass, which
            computes the rest again: less memory, more time, the same gradients.

    Attributes:
        max_seats: number of seats that training puts into one pass. None until memory has run out
            once, then lowered.

    Raises:
        InputError: ``base`` is not a transformers model, is of an unsupported type or quantized, or
            has other adapters in it; it is left as it was.

    Example:
        >>> pack = Pack(base)                                          # doctest: +SKIP
        >>> nll = pack.token_nll([first, second], blocks)              # doctest: +SKIP
        >>> nll.mean((1, 2)).sum().backward()                          # doctest: +SKIP
    """

    def __init__(
        self,
        base: PreTrainedModel,
        *,
        compile_backend: str | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        check_base(base)
        architecture = architecture_of(base.config.model_type)
        self.base = base
        self._body = base.get_submodule(architecture.body)
        self._head = Head.of(*head_of(base))
        self._layers = list(decoder_layers(base).values())
        self._running = Prepared(None, {}, [])
        self.max_seats: int | None = None
        self._spread = is_spread(base)
        self._linear = {path: base.get_submodule(path) for path in linear_modules(base)}
        open_slots(list(self._linear.values()))
        base.eval().requires_grad_(False)  # only now, because a refused base stays as it was
        self._attentions = [layer.get_submodule(architecture.attention) for layer in self._layers]
        self._handle = base.get_submodule(architecture.final_norm).register_forward_hook(
            self._add_landmarks
        )
        self._compiles = compile_backend is not None
        self._changes_layers = gradient_checkpointing or self._compiles
        self._uncompiled = False
        self._forwards = [vars(layer).get("forward") for layer in self._layers]
        for layer in self._layers:
            if compile_backend is not None:
                layer.forward = compiled(layer.forward, compile_backend, self._runs_eagerly)
            if gradient_checkpointing:  # outside, because it can't be compiled
                layer.forward = checkpointed(layer.forward, self.checkpoint_contexts)

    def _runs_eagerly(self) -> bool:
        """Return whether layers must run uncompiled: no compiled code draws from seats' streams."""
        now = self._running.now
        return self._uncompiled or (now is not None and now.draws_in_layers)

    @contextmanager
    def uncompiled(self) -> Iterator[None]:
        """Run layers eagerly within this context, for passes too rare to be worth compiling."""
        self._uncompiled = True
        try:
            yield
        finally:
            self._uncompiled = False

    def close(self) -> None:
        """Restore the base, except that it stays frozen and in eval mode."""
        self._handle.remove()
        for module in self._linear.values():
            close_slot(module)
        self._linear = {}
        if self._changes_layers:
            for layer, forward in zip(self._layers, self._forwards, strict=True):
                del layer.forward
                if forward is not None:  # of a hook of accelerate
                    layer.forward = forward

    def token_nll(self, adapters: Sequence[Adapter], input_ids: Tensor) -> Tensor:
        """Return the NLL in nats of each predicted token.

        Args:
            adapters: K adapters; in train mode they use dropout.
            input_ids: [K, b, T]; seat k's rows are ``input_ids[k]``.

        Returns:
            [K, b, T - 1]: entry t predicts token t + 1 from tokens 0..t.
        """
        seats, rows, length = input_ids.shape
        flat = input_ids.reshape(seats * rows, length)
        with self.filled(
            self.prepare(adapters, torch.arange(length, device=flat.device)[None], rows)
        ):
            hidden = self._body(input_ids=flat, use_cache=False).last_hidden_state
        place = self._head.weight.device
        nll = head_nll(hidden[:, :-1].to(place), self._head, flat[:, 1:].to(place))
        return nll.view(seats, rows, length - 1).to(flat.device)

    def prepare(
        self,
        adapters: Sequence[Adapter],
        positions: Tensor,
        rows: int | None = None,
        *,
        mask: Tensor | None = None,
        history: History | None = None,
    ) -> Prepared:
        """Return what :meth:`filled` adds to the base; nothing if there are no adapters.

        Args:
            adapters: adapters of the K seats.
            positions: token positions, [1, T] for all rows or [K * b, T].
            rows: rows b of each seat, by default the batch's rows over K. The batch holds the rows
                of the first seat, then those of the second, and so on.
            mask: [K * b, T], 0 at pads; None without pads.
            history: pools over earlier tokens, for landmarks that pool over all tokens so far.
        """
        if not adapters:
            return Prepared(None, {}, [])
        now = _Pass(tuple(adapters), positions, rows, Tokens(mask, history), self.base)
        prepared = Prepared(now, now.slots(), now.attention())
        if self._spread:
            prepared = self._moved(prepared)
        if prepared.attention:
            for adapter in adapters:
                adapter.check_attention(self.base)
        if self._compiles:
            mark_dynamic(*prepared.slots.values(), *prepared.attention)
        return prepared

    def _moved(self, prepared: Prepared) -> Prepared:
        """Return what was prepared on the devices of the layers that it is for."""
        slots = {
            path: moved(s, device_of(self._linear[path])) for path, s in prepared.slots.items()
        }
        layers = zip(prepared.attention, self._layers[: len(prepared.attention)], strict=True)
        return Prepared(prepared.now, slots, [moved(s, device_of(layer)) for s, layer in layers])

    @contextmanager
    def filled(self, prepared: Prepared) -> Iterator[None]:
        """Add what was prepared to the base within this context, which may be entered again."""
        before, self._running = self._running, prepared
        filled = {
            path: fill_slot(module, prepared.slots.get(path))
            for path, module in self._linear.items()
        }
        own: Sequence[AttentionSlot | None] = prepared.attention or [None] * len(self._attentions)
        changed = [fill_attention(m, s) for m, s in zip(self._attentions, own, strict=True)]
        try:
            with attention_with_slots(self.base) if prepared.attention else nullcontext():
                yield
        finally:
            self._running = before
            for path, module in self._linear.items():
                fill_slot(module, filled[path])
            for module, change in zip(self._attentions, changed, strict=True):
                fill_attention(module, change)

    def _add_landmarks(
        self, _norm: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor
    ) -> Tensor | None:
        """Add landmarks after the final norm, as its forward hook.

        The hook is a bound method, so that a copied base calls the pack that was copied with it.
        """
        now = self._running.now
        return None if now is None else now.add_landmarks(output.to(self.base.device))

    def checkpoint_contexts(self) -> tuple[AbstractContextManager[None], Recomputation]:
        """Return the contexts of a layer's forward (none) and of its recomputation."""
        return nullcontext(), Recomputation(self, self._running)

    def __getstate__(self) -> dict[str, Any]:
        if self._changes_layers:
            raise RuntimeError(
                "a base with compiled or checkpointed layers can't be copied: "
                "the copy would run the original's layers"
            )
        return vars(self)
