"""One adapter in the calls of one base: what each call computes with, and what is computed again in its backward."""

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from hylorada.adapters.adapter import Adapter
from hylorada.adapters.running_pools import History
from hylorada.base_models.architectures import decoder_layers
from hylorada.errors import InputError
from hylorada.multi_adapter.pack import Pack, Prepared


class Calls:
    """Runs a base, or its body, with one adapter.

    Attributes:
        enabled: whether the adapter is applied at all.
        merged: whether the base's weights hold the LoRA part already.
        checkpoints: whether decoder layers keep only their input for the backward pass in training mode.
    """

    def __init__(self, base: PreTrainedModel, adapter: Adapter) -> None:
        self.base = base
        self.adapter = adapter
        self.pack = Pack(base)
        self.enabled = True
        self.merged = False
        self.checkpoints = False
        self._running: Prepared | None = None

    def run(
        self, module: nn.Module, call: dict[str, Any], use_cache: bool | None, cache: Any
    ) -> Any:
        """Call the base or its body with the adapter in it.

        Args:
            module: the base or its body.
            call: its keyword arguments; positions are added where there is an attention mask.
            use_cache: whether to return the key/value cache; None leaves it to the base's configuration.
            cache: of the tokens before these; None where there are none.
        """
        if cache is not None:
            call[self._cache_name()] = cache
        checkpointing = self.checkpoints and self.adapter.training and torch.is_grad_enabled()
        use_cache = False if checkpointing else self._pool_with_cache(call, use_cache)
        if call.get("attention_mask") is not None:
            call["position_ids"] = self._positions(call)  # the base itself would count the pads
        with self._adapting(call), self._checkpointing() if checkpointing else nullcontext():
            return module(use_cache=use_cache, **call)

    def adapters(self) -> list[Adapter]:
        """Return what the pack has to apply now."""
        if not self.enabled:
            return []
        if not self.merged:
            return [self.adapter]
        return [] if self.adapter.landmark is None else [_without_lora(self.adapter)]

    def pools(self, *, noncausal: bool) -> bool:
        """Whether landmarks that pool over many tokens are at work, of the causal kind or the other."""
        landmark = self.adapter.landmark if self.enabled else None
        return landmark is not None and landmark.num_pools > 0 and landmark.noncausal == noncausal

    def _pool_with_cache(self, call: dict[str, Any], use_cache: bool | None) -> bool | None:
        """Whether to return a cache; it must be there before the base makes it where landmarks keep theirs in it."""
        name = self._cache_name()
        if self.pools(noncausal=True):
            if use_cache or call.get(name) is not None:
                raise InputError(
                    "replication_noncausal_pooling can't go on from a cache; pass use_cache=False"
                )
            return False
        wanted = self.base.config.use_cache if use_cache is None else use_cache
        if wanted and call.get(name) is None and self.pools(noncausal=False):
            call[name] = DynamicCache(config=self.base.config)
        return use_cache

    def _prepared(self, call: dict[str, Any]) -> Prepared:
        """What a call of the base is to compute with."""
        positions, mask = self._positions(call), call.get("attention_mask")
        pools = self.pools(noncausal=False) or self.pools(noncausal=True)
        plain = isinstance(mask, Tensor) and mask.ndim == 2
        if pools and mask is not None and not plain:
            raise InputError(
                "landmarks that pool over the tokens so far need an attention_mask [b, T], 0 at pads"
            )
        pads = mask[:, -positions.shape[1] :] if isinstance(mask, Tensor) and plain else None
        cache, layers = call.get(self._cache_name()), self.base.config.num_hidden_layers
        history = None
        if cache is not None and self.pools(noncausal=False):
            assert self.adapter.landmark is not None  # it pools
            history = History(cache, layers, self.adapter.landmark.num_pools)
        return self.pack.prepare(self.adapters(), positions, mask=pads, history=history)

    @contextmanager
    def _adapting(self, call: dict[str, Any]) -> Iterator[None]:
        """Within it the base computes with the adapter."""
        before, self._running = self._running, self._prepared(call)
        try:
            with self.pack.filled(self._running):
                yield
        finally:
            self._running = before

    @contextmanager
    def adapting_every_call(self) -> Iterator[None]:
        """Within it every call of the base computes with the adapter, each at the positions of its own tokens."""
        running = ExitStack()

        def begin(_base: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
            running.enter_context(self._adapting(kwargs))

        def end(*_: Any) -> None:
            running.close()

        handles = [
            self.base.register_forward_pre_hook(begin, with_kwargs=True),
            self.base.register_forward_hook(end, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            running.close()

    def _positions(self, call: dict[str, Any]) -> Tensor:
        """[1 or b, T] positions of a call's tokens: as given, else counted from each row's first real token."""
        given: Tensor | None = call.get("position_ids")
        if given is not None:
            return given
        tokens: Tensor | None = (
            call["input_ids"] if call.get("input_ids") is not None else call.get("inputs_embeds")
        )
        if tokens is None:
            raise InputError(
                "there are no tokens: pass input_ids [b, T] or inputs_embeds [b, T, d]"
            )
        length = tokens.shape[1]
        mask = call.get("attention_mask")  # for some caches a dictionary of masks
        if isinstance(mask, Tensor) and mask.ndim == 2:
            counted = (mask.long().cumsum(-1) - 1).masked_fill(mask == 0, 0)
            return counted[:, -length:]
        cache = call.get(self._cache_name())
        start = 0 if cache is None else cache.get_seq_length()
        return torch.arange(start, start + length, device=tokens.device)[None]

    def _cache_name(self) -> str:
        """What the base calls its key/value cache: ``cache`` in newer transformers."""
        return (
            "cache"
            if "cache" in inspect.signature(self.base.forward).parameters
            else "past_key_values"
        )

    def enable_checkpoints(self, given: Mapping[str, Any] | None, where: Mapping[str, Any]) -> None:
        """Turn on the base's own non-reentrant checkpoints.

        Args:
            given: arguments of ``torch.utils.checkpoint.checkpoint``.
            where: arguments of the base's own method.

        Raises:
            InputError: ``use_reentrant`` or ``context_fn`` was given.
        """
        options = dict(given or {})
        if options.pop("use_reentrant", False) or "context_fn" in options:
            raise InputError(
                "checkpoints of a frozen base must have use_reentrant=False and a context_fn of their own"
            )
        options |= {"use_reentrant": False, "context_fn": self._checkpoint_contexts}
        if hasattr(self.base, "activation_checkpointing_enable"):  # newer transformers' name
            self.base.activation_checkpointing_enable(options, **where)
        else:
            self.base.gradient_checkpointing_enable(options, **where)
        self.base.disable_input_require_grads()  # it makes them require gradients, which only reentrant ones need
        self.checkpoints = True

    def disable_checkpoints(self) -> None:
        """Turn them off; where they are off already, leave the base alone."""
        if not self.checkpoints:
            return
        if hasattr(self.base, "activation_checkpointing_disable"):
            self.base.activation_checkpointing_disable()
        else:
            self.base.gradient_checkpointing_disable()
        self.checkpoints = False

    @contextmanager
    def _checkpointing(self) -> Iterator[None]:
        """Within it the decoder layers take themselves to be training, which is when they checkpoint.

        What lies in them, dropout above all, stays in eval mode; and other users of the base see none of it.
        """
        layers = list(decoder_layers(self.base).values())
        for layer in layers:
            layer.training = True
        try:
            yield
        finally:
            for layer in layers:
                layer.training = False

    def _checkpoint_contexts(
        self,
    ) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """What a checkpoint enters for its layer: nothing the first time, this very call's adapter the second."""
        assert self._running is not None
        return nullcontext(), _Again(self.pack, self._running)


class _Again:
    """Brings back, as often as entered, what a call computes with and where its dropout streams then were."""

    def __init__(self, pack: Pack, prepared: Prepared) -> None:
        self._pack, self._prepared = pack, prepared
        self._streams = [
            (a.dropout_stream, a.dropout_stream.get_state()) for a in prepared.adapters
        ]

    def __enter__(self) -> None:
        self._stack = ExitStack()
        for stream, then in self._streams:
            self._stack.callback(stream.set_state, stream.get_state())
            stream.set_state(then)
        self._stack.enter_context(self._pack.filled(self._prepared))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)


def _without_lora(adapter: Adapter) -> Adapter:
    """The same parameters with no module to adapt: landmarks alone."""
    alone = copy.copy(adapter)
    alone.targets = {}
    return alone


class AdaptedBody:
    """A base's body (all but its head) whose calls compute with the adapter; everything else is read from the body.

    Tools that fuse the head with their loss call it in place of the model, such as TRL's ``SFTTrainer``.
    """

    def __init__(self, body: nn.Module, run: Any) -> None:
        self._body = body
        self._run = run

    def __call__(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        call = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "position_ids": position_ids,
            **kwargs,
        }
        return self._run(self._body, call, use_cache, past_key_values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_body":
            raise AttributeError(name)
        return getattr(self._body, name)
