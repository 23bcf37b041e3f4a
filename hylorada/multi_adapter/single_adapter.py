"""Calls of one base with one adapter, including the recomputation of checkpointed layers."""

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import DynamicCache, PreTrainedModel

from hylorada.adapters.adapter import Adapter
from hylorada.adapters.running_pools import History
from hylorada.base_models.architectures import decoder_layers
from hylorada.errors import InputError
from hylorada.multi_adapter.pack import Pack, Prepared


class Calls:
    """Runs a base, or its body, with one adapter.

    Attributes:
        enabled: whether the adapter is applied.
        merged: whether the base's weights already hold the LoRA part.
        checkpoints: whether decoder layers are recomputed in the backward pass (in training mode).
    """

    def __init__(self, base: PreTrainedModel, adapter: Adapter) -> None:
        self.base = base
        self.adapter = adapter
        self.pack = Pack(base)
        self.enabled = True
        self.merged = False
        self.checkpoints = False
        self._every_call = ExitStack()

    def run(
        self, module: nn.Module, call: dict[str, Any], use_cache: bool | None, cache: Any
    ) -> Any:
        """Call the base or its body with the adapter applied.

        Args:
            module: the base or its body.
            call: its keyword arguments; positions are added if there is an attention mask.
            use_cache: whether to return the key/value cache; None follows the base's configuration.
            cache: key/value cache of earlier tokens; None without any.
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
        """Return the adapters that the pack applies now."""
        if not self.enabled:
            return []
        if not self.merged:
            return [self.adapter]
        return [] if self.adapter.landmark is None else [_without_lora(self.adapter)]

    def pools(self, *, noncausal: bool) -> bool:
        """Return whether the active landmarks pool over tokens.

        They do so causally, or over the whole block, as ``noncausal`` says.
        """
        landmark = self.adapter.landmark if self.enabled else None
        return landmark is not None and landmark.num_pools > 0 and landmark.noncausal == noncausal

    def _pool_with_cache(self, call: dict[str, Any], use_cache: bool | None) -> bool | None:
        """Return ``use_cache`` for the base, and add a cache to the call if landmarks need one.

        Landmarks that pool store their pools in the cache, so it must exist before the base runs.
        """
        name = self._cache_name()
        if self.pools(noncausal=True):
            if use_cache or call.get(name) is not None:
                raise InputError(
                    "replication_noncausal_pooling can't continue from a cache; "
                    "pass use_cache=False"
                )
            return False
        wanted = self.base.config.use_cache if use_cache is None else use_cache
        if wanted and call.get(name) is None and self.pools(noncausal=False):
            call[name] = DynamicCache(config=self.base.config)
        return use_cache

    def _prepared(self, call: dict[str, Any]) -> Prepared:
        """Return what the pack adds to the base in this call."""
        positions, mask = self._positions(call), call.get("attention_mask")
        pools = self.pools(noncausal=False) or self.pools(noncausal=True)
        plain = isinstance(mask, Tensor) and mask.ndim == 2
        if pools and mask is not None and not plain:
            raise InputError(
                "landmarks that pool over the tokens so far need an attention_mask [b, T], "
                "0 at pads"
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
        """Apply the adapter within this context."""
        with self.pack.filled(self._prepared(call)):
            yield

    @contextmanager
    def adapting_every_call(self) -> Iterator[None]:
        """Apply the adapter in every call of the base within this context; see :meth:`hook`."""
        handles = self.hook(self.base)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._every_call.close()

    def hook(self, module: nn.Module) -> list[RemovableHandle]:
        """Apply the adapter in every call of the base or its body until the hooks are removed.

        Each call is adapted at the positions of its own tokens. The hooks are bound methods, so
        that a copied base calls what was copied with it.
        """
        return [
            module.register_forward_pre_hook(self._begin, with_kwargs=True),
            module.register_forward_hook(self._end, always_call=True),
        ]

    def _begin(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        names = inspect.signature(module.forward).parameters
        call = {**dict(zip(names, args, strict=False)), **kwargs}
        self._refuse_recomputation()
        call["use_cache"] = self._pool_with_cache(call, call.get("use_cache"))
        if call.get("attention_mask") is not None:
            call["position_ids"] = self._positions(call)
        self._every_call.enter_context(self._adapting(call))
        return (), call

    def _end(self, *_: Any) -> None:
        self._every_call.close()

    def _refuse_recomputation(self) -> None:
        """Refuse layers that the base would recompute without the adapter's additions.

        Raises:
            InputError: the base has gradient checkpointing turned on and is training.
        """
        landmark = self.adapter.landmark
        adds = self.adapter.targets or (landmark is not None and not landmark.at_norm)
        layers = decoder_layers(self.base).values()
        recomputed = (x.training and getattr(x, "gradient_checkpointing", False) for x in layers)
        if adds and torch.is_grad_enabled() and any(recomputed):
            raise InputError(
                "gradient checkpointing would recompute layers without their landmarks; "
                "use a HyLoRADAModel, which recomputes them with their landmarks"
            )

    def _positions(self, call: dict[str, Any]) -> Tensor:
        """Return the positions [1 or b, T] of a call's tokens, from each row's first real token."""
        given: Tensor | None = call.get("position_ids")
        if given is not None:
            return given
        tokens: Tensor | None = (
            call["input_ids"] if call.get("input_ids") is not None else call.get("inputs_embeds")
        )
        if tokens is None:
            raise InputError("no tokens given: pass input_ids [b, T] or inputs_embeds [b, T, d]")
        length = tokens.shape[1]
        mask = call.get("attention_mask")  # for some caches a dictionary of masks
        if isinstance(mask, Tensor) and mask.ndim == 2:
            counted = (mask.long().cumsum(-1) - 1).masked_fill(mask == 0, 0)
            return counted[:, -length:]
        cache = call.get(self._cache_name())
        start = 0 if cache is None else cache.get_seq_length()
        return torch.arange(start, start + length, device=tokens.device)[None]

    def _cache_name(self) -> str:
        """Return the base's argument for its key/value cache: ``cache`` in newer transformers."""
        return (
            "cache"
            if "cache" in inspect.signature(self.base.forward).parameters
            else "past_key_values"
        )

    def enable_checkpoints(self, given: Mapping[str, Any] | None, where: Mapping[str, Any]) -> None:
        """Turn on the base's own non-reentrant gradient checkpointing.

        Args:
            given: arguments of ``torch.utils.checkpoint.checkpoint``.
            where: arguments of the base's own method.

        Raises:
            InputError: ``given`` holds ``use_reentrant=True`` or ``context_fn``.
        """
        options = dict(given or {})
        if options.pop("use_reentrant", False) or "context_fn" in options:
            raise InputError(
                "gradient checkpointing of a frozen base needs use_reentrant=False and sets "
                "context_fn itself"
            )
        options |= {"use_reentrant": False, "context_fn": self.pack.checkpoint_contexts}
        if hasattr(self.base, "activation_checkpointing_enable"):  # newer transformers' name
            self.base.activation_checkpointing_enable(options, **where)
        else:
            self.base.gradient_checkpointing_enable(options, **where)
        # the base made its inputs require gradients, which only reentrant checkpoints need
        self.base.disable_input_require_grads()
        self.checkpoints = True

    def disable_checkpoints(self) -> None:
        """Turn gradient checkpointing off, if it is on."""
        if not self.checkpoints:
            return
        if hasattr(self.base, "activation_checkpointing_disable"):
            self.base.activation_checkpointing_disable()
        else:
            self.base.gradient_checkpointing_disable()
        self.checkpoints = False

    @contextmanager
    def _checkpointing(self) -> Iterator[None]:
        """Put the decoder layers in training mode, the only mode in which they checkpoint.

        Their submodules, such as dropout, stay in eval mode, and other users of the base see no
        change.
        """
        layers = list(decoder_layers(self.base).values())
        for layer in layers:
            layer.training = True
        try:
            yield
        finally:
            for layer in layers:
                layer.training = False


def _without_lora(adapter: Adapter) -> Adapter:
    """Return an adapter of the same parameters without adapted modules: its landmarks alone."""
    alone = copy.copy(adapter)
    alone.targets = {}
    return alone


class AdaptedBody:
    """A base's body (all but its head) that applies the adapter when called.

    Tools that fuse the head with their loss, such as TRL's ``SFTTrainer``, call the body instead of
    the model. All other attributes are the body's own.
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
