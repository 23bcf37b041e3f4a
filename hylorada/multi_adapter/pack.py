"""The pack: one frozen base and the adapters of K seats in the same forward and backward.

The base sees the K x b rows of all seats as one batch. Each adapted linear module adds that seat's low-rank update to
each seat's rows; the stacked factors are built from the adapters' own parameters, so gradients land there. The base has
no gradient and every operation acts row by row, so a seat's numbers don't depend on who sits beside it, and a seat that
turns to NaN harms no other.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hylorada.adapters.adapter import Adapter, check_base
from hylorada.adapters.attention import attention_with_landmarks, check_attention, fill_attention
from hylorada.adapters.buckets import Positions
from hylorada.adapters.landmarks.at_norm import NormLandmark, mix_at_norm
from hylorada.adapters.landmarks.attention_integrated import (
    AttentionIntegratedLandmark,
    HeadMix,
    head_mixes,
)
from hylorada.adapters.landmarks.base import LandmarkT
from hylorada.adapters.landmarks.per_layer import PerLayerLandmark, layer_mixes
from hylorada.adapters.lora import position_factors, updated_norms, weight_of
from hylorada.adapters.running_pools import History, Tokens
from hylorada.base_models.architectures import (
    Target,
    architecture_of,
    decoder_layers,
    head_of,
    linear_modules,
)
from hylorada.multi_adapter.chunked_loss import Head, head_nll
from hylorada.multi_adapter.injection import LowRank, Slot, close_slot, fill_slot, open_slot
from hylorada.runtime.devices import column, to_device

_VARIANTS = 64  # of one compiled layer; beyond torch's limit of 8 it would fall back to eager code without a word


class _Pass:
    """One forward of K adapters: what the slots and hooks compute with."""

    def __init__(
        self,
        adapters: Sequence[Adapter],
        positions: Tensor,
        rows: int | None,
        tokens: Tokens,
        base: PreTrainedModel,
    ) -> None:
        ranks = {a.config.r for a in adapters}
        if len(ranks) > 1:
            raise ValueError(f"the seats of a pack must have equal `r`, got {sorted(ranks)}")
        self.adapters = adapters
        self.rows = rows
        self.tokens = tokens
        self.rank = ranks.pop()
        self.base = base
        self.dtype = base.dtype
        self.dropout = any(a.training and a.config.lora_dropout for a in adapters)
        self.positions = Positions(positions, len(adapters))

    def slots(self) -> dict[str, Slot]:
        """What is added to every module that some seat adapts; a seat that leaves it alone adds zeros there."""
        slots = {path: Slot(update) for path, update in self._updates().items()}
        modules = self._landmarks(PerLayerLandmark)
        if modules:
            architecture = architecture_of(self.base.config.model_type)
            for mix in layer_mixes(modules, self.dtype, self.rows, self.tokens):
                path = f"{architecture.layers}.{mix.layer}.{architecture.mlp_output}"
                slots.setdefault(path, Slot()).landmarks = mix
        return slots

    def heads(self) -> list[HeadMix]:
        """By layer what is added to its attention; empty where no seat has such landmarks."""
        modules = self._landmarks(AttentionIntegratedLandmark)
        return head_mixes(modules, self.dtype, self.rows) if modules else []

    def add_landmarks(self, hidden: Tensor) -> Tensor | None:
        """Each seat's landmarks on its own rows, after the final norm."""
        modules = self._landmarks(NormLandmark)
        return mix_at_norm(modules, hidden, self.positions, self.tokens) if modules else None

    def _landmarks(self, design: type[LandmarkT]) -> list[LandmarkT | None]:
        """Of each seat, where it is of this design; empty where none is."""
        found = [a.landmark if isinstance(a.landmark, design) else None for a in self.adapters]
        return found if any(m is not None for m in found) else []

    def _updates(self) -> dict[str, LowRank]:
        targets = self._targets()
        if not targets:
            return {}
        gains = self._gains()
        sizes = [n for t in targets.values() for n in self._sizes(t)]
        pieces = iter(torch.ops.aten.split_with_sizes_copy(self._stacked(targets), sizes, dim=1))
        updates = {}
        for path, target in targets.items():
            masks = _Masks(self.adapters) if self.dropout else None
            excess = self._excess(path)
            updates[path] = LowRank(
                next(pieces), next(pieces), gains[target.layer], self.rows, masks, excess
            )
        return updates

    def _excess(self, path: str) -> Tensor | None:
        """DoRA's factors of one module less 1, [K, d_out]."""
        found = [
            (k, a, m)
            for k, a in enumerate(self.adapters)
            if (m := a.magnitude_at(path)) is not None
        ]
        if not found:
            return None
        seats, adapters, magnitudes = zip(*found, strict=True)
        updates = [u for a in adapters if (u := a.lora_at(path)) is not None]
        magnitude = torch.stack(magnitudes)
        norms = updated_norms(
            weight_of(self.base.get_submodule(path)).to(magnitude.dtype),
            torch.stack([u.lora_A for u in updates]),
            torch.stack([u.lora_B for u in updates]),
            column(tuple((a.config.scaling,) for a in adapters), magnitude.dtype, magnitude.device)[
                0
            ],
        )
        factors = magnitude / norms
        if len(seats) < len(self.adapters):
            everyone = factors.new_ones(len(self.adapters), factors.shape[1])
            factors = everyone.index_copy(0, to_device(seats, factors.device), factors)
        return (factors - 1).to(self.dtype)

    def _targets(self) -> dict[str, Target]:
        first = self.adapters[0].targets
        if all(a.targets == first for a in self.adapters):
            return first
        return {path: target for a in self.adapters for path, target in a.targets.items()}

    def _sizes(self, target: Target) -> tuple[int, int]:
        return self.rank * target.in_features, self.rank * target.out_features

    def _stacked(self, targets: dict[str, Target]) -> Tensor:
        """[K, all LoRA factors of ``targets``] in the dtype of the base."""
        vectors = []
        for adapter in self.adapters:
            vector = adapter.lora_vector()
            if adapter.targets != targets:
                sizes = [sum(self._sizes(t)) for t in adapter.targets.values()]
                own = dict(zip(adapter.targets, vector.split(sizes), strict=True))
                absent = (vector.new_zeros(sum(self._sizes(t))) for t in targets.values())
                vector = torch.cat(
                    [own.get(path, zeros) for path, zeros in zip(targets, absent, strict=True)]
                )
            vectors.append(vector)
        return torch.stack(vectors).to(self.dtype)

    def _gains(self) -> Sequence[Tensor]:
        """By layer what multiplies the low-rank activations: scaling times position bias, [K, 1 or b, 1 or T, 1]."""
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


class _Masks:
    """Inverted dropout masks of one module; every seat draws from its own stream."""

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        self.adapters = adapters

    def __call__(self, x: Tensor) -> Tensor:
        """Masks for x [K, b, T, d_in]."""
        masks = torch.ones_like(x)
        for mask, adapter in zip(masks, self.adapters, strict=True):
            if adapter.training and (p := adapter.config.lora_dropout):
                mask.bernoulli_(1 - p, generator=adapter.dropout_stream).div_(1 - p)
        return masks


class Prepared(NamedTuple):
    """A pass and what it adds to the base."""

    now: _Pass | None
    slots: dict[str, Slot]
    heads: list[HeadMix]

    @property
    def adapters(self) -> Sequence[Adapter]:
        return () if self.now is None else self.now.adapters


class Pack:
    """Runs adapters on one base.

    Args:
        base: a supported causal language model; it is frozen and put in eval mode.
        compile_backend: of ``torch.compile`` (``inductor``); None runs eagerly. One decoder layer is compiled, on first
            use, and serves all layers, all adapters and all pack sizes. Worth its half minute on a GPU.

    Attributes:
        max_seats: seats that training puts into one pass; lowered where memory has run out, None until then.

    Raises:
        InputError: no model of transformers, one of a type that is not supported, or with other adapters in it.

    Example:
        >>> pack = Pack(base)                                          # doctest: +SKIP
        >>> nll = pack.token_nll([first, second], blocks)              # doctest: +SKIP
        >>> nll.mean((1, 2)).sum().backward()  # each adapter has its solo gradient  # doctest: +SKIP
    """

    def __init__(self, base: PreTrainedModel, *, compile_backend: str | None = None) -> None:
        check_base(base)
        architecture = architecture_of(base.config.model_type)
        self.base = base.eval().requires_grad_(False)
        self._body = base.get_submodule(architecture.body)
        self._head = Head.of(*head_of(base))
        self._layers = list(decoder_layers(base).values())
        self._pass: _Pass | None = None
        self.max_seats: int | None = None
        self._linear = {path: base.get_submodule(path) for path in linear_modules(base)}
        for module in self._linear.values():
            open_slot(module)
        self._attentions = [layer.get_submodule(architecture.attention) for layer in self._layers]
        self._handle = base.get_submodule(architecture.final_norm).register_forward_hook(
            self._add_landmarks
        )
        self.compile_backend = compile_backend
        self._uncompiled = False
        self._mark: Callable[[Slot | HeadMix], None] | None = None
        if compile_backend is not None:
            self._compile(compile_backend)

    def _compile(self, backend: str) -> None:
        # torch._dynamo takes seconds to import, so only where it is used
        from torch._dynamo import config, maybe_mark_dynamic

        # training and evaluation, the first layer and the others, one seat and many: each is a variant
        config.recompile_limit = max(config.recompile_limit, _VARIANTS)

        def serve_any_seats(forward: Callable[..., Any]) -> Callable[..., Any]:
            compiled = torch.compile(forward, backend=backend)

            def call(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
                dropout = self._pass is not None and self._pass.dropout
                if dropout or self._uncompiled:  # compiled code can't draw from a seat's own stream
                    return forward(hidden_states, *args, **kwargs)
                maybe_mark_dynamic(hidden_states, 0)
                return compiled(hidden_states, *args, **kwargs)

            return call

        def mark(part: Slot | HeadMix) -> None:
            for tensor, dimension in part.dynamic():
                maybe_mark_dynamic(tensor, dimension)

        self._mark = mark
        for layer in self._layers:
            layer.forward = serve_any_seats(layer.forward)

    @contextmanager
    def uncompiled(self) -> Iterator[None]:
        """Within it layers run as they are: a pass of a kind that comes once isn't worth compiling."""
        self._uncompiled = True
        try:
            yield
        finally:
            self._uncompiled = False

    def close(self) -> None:
        """Take everything off the base; it is then as it came, but frozen and in eval mode."""
        self._handle.remove()
        for module in self._linear.values():
            close_slot(module)
        self._linear = {}
        if self.compile_backend is not None:
            for layer in self._layers:
                del layer.forward

    def token_nll(self, adapters: Sequence[Adapter], input_ids: Tensor) -> Tensor:
        """NLL in nats of each predicted token.

        Args:
            adapters: K adapters of equal rank; train or eval mode decides on dropout.
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
        nll = head_nll(hidden[:, :-1], self._head, flat[:, 1:])
        return nll.view(seats, rows, length - 1)

    def prepare(
        self,
        adapters: Sequence[Adapter],
        positions: Tensor,
        rows: int | None = None,
        *,
        mask: Tensor | None = None,
        history: History | None = None,
    ) -> Prepared:
        """What :meth:`filled` lets the base compute with; with no adapters, nothing.

        Args:
            adapters: of the K seats.
            positions: [1, T] for all rows, or [K * b, T].
            rows: b of each seat, by default the batch's rows over K; the batch holds the rows of the first seat, then
                those of the second, and so on.
            mask: [K * b, T], 0 at pads; None where there are none.
            history: of the tokens before these, for landmarks that pool over all tokens so far.
        """
        if not adapters:
            return Prepared(None, {}, [])
        now = _Pass(tuple(adapters), positions, rows, Tokens(mask, history), self.base)
        prepared = Prepared(now, now.slots(), now.heads())
        if prepared.heads:
            check_attention(self.base)
        if self._mark is not None:
            for slot in prepared.slots.values():
                self._mark(slot)
            for mix in prepared.heads:
                self._mark(mix)
        return prepared

    @contextmanager
    def filled(self, prepared: Prepared) -> Iterator[None]:
        """Within it the base computes with what was prepared; may be entered again for a second forward."""
        before, self._pass = self._pass, prepared.now
        filled = {
            path: fill_slot(module, prepared.slots.get(path))
            for path, module in self._linear.items()
        }
        mixes: Sequence[HeadMix | None] = prepared.heads or [None] * len(self._attentions)
        mixed = [
            fill_attention(module, mix) for module, mix in zip(self._attentions, mixes, strict=True)
        ]
        try:
            with attention_with_landmarks(self.base) if prepared.heads else nullcontext():
                yield
        finally:
            self._pass = before
            for path, module in self._linear.items():
                fill_slot(module, filled[path])
            for module, mix in zip(self._attentions, mixed, strict=True):
                fill_attention(module, mix)

    def _add_landmarks(
        self, _norm: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor
    ) -> Tensor | None:
        """The final norm's hook; a bound method, for a copied base must call the pack that was copied with it."""
        return None if self._pass is None else self._pass.add_landmarks(output)

    def __getstate__(self) -> dict[str, Any]:
        if self.compile_backend is not None:
            raise RuntimeError(
                "a base with compiled layers can't be copied: the copy would run the original's layers"
            )
        return vars(self)
