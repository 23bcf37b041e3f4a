"""One adapter on one base, for use outside studies: a pack of one."""

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel, TrainingArguments

from ._adapter import Adapter
from ._architectures import decoder_layers
from ._config import HyLoRADAConfig, TrainingConfig
from ._errors import InputError
from ._landmarks import LandmarkLoRA, PerLayerLandmark
from ._merge import merge_into, restore
from ._optimizer import adamw, penalized
from ._pack import Pack, Prepared
from ._peft_format import load_adapter, save_adapter
from ._pooling import History


class HyLoRADAModel(nn.Module):
    """A frozen causal language model with one HyLoRADA adapter.

    Args:
        base: GPT-2, Llama-like or GPT-NeoX; it is frozen in place.
        config: the adapter; ``max_positions`` must be the length of the blocks it is trained on, not the base's limit:
            buckets that no position of the training text falls into learn nothing.
        seed: of the adapter's initial values and dropout.

    Raises:
        InputError: an unsupported base, one with other adapters in it or wrapped in another model, another kind of
            configuration, a target module that doesn't exist, or no ``max_positions``.

    Example:
        >>> from hylorada import HyLoRADAConfig, load_base
        >>> config = HyLoRADAConfig(landmark_bucketing="learnable", num_buckets=4, max_positions=256)
        >>> model = HyLoRADAModel(load_base("tiny"), config)
        >>> ids = torch.arange(32)[None]
        >>> model(input_ids=ids, labels=ids).loss.backward()
        >>> model.get_learned_boundaries()
        tensor([ 0.5000,  1.5000, 22.5000])
    """

    def __init__(self, base: PreTrainedModel, config: HyLoRADAConfig, *, seed: int = 0) -> None:
        super().__init__()
        self._hang(base, Adapter(base, config, seed=seed))

    def _hang(self, base: PreTrainedModel, adapter: Adapter) -> None:
        self.adapter = adapter
        self.base = base
        self._pack = Pack(base)
        self._enabled = True
        self._closed = False
        self._originals: dict[str, Tensor] | None = None  # the base's own weights while the LoRA part is merged
        self._checkpoints = False
        self._running: Prepared | None = None
        self.register_state_dict_post_hook(_leave_out_base)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_put_in_base)  # type: ignore[no-untyped-call]

    @classmethod
    def from_pretrained(cls, base: PreTrainedModel, folder: str | Path) -> Self:
        """The model that :meth:`save_pretrained` wrote.

        Args:
            base: of the shape it was saved with.
            folder: of the saved adapter.

        Raises:
            InputError: a file or tensor is missing, unexpected, damaged, of another shape or non-finite, or the base
                doesn't fit; the base is left as it was.
        """
        adapter = load_adapter(base, folder)
        model = cls.__new__(cls)
        nn.Module.__init__(model)
        model._hang(base, adapter)
        return model

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the adapter: the LoRA part in PEFT's format, everything else beside it (see :func:`save_adapter`).

        Raises:
            InputError: ``folder`` is a file or empty text, or a tensor has non-finite numbers; nothing is written.
            RuntimeError: the model is closed.
        """
        self._refuse_if_closed()
        save_adapter(self.adapter, self.base, folder)

    @property
    def config(self) -> PreTrainedConfig:
        """The base's, as of PEFT's models: what works with models of transformers looks here."""
        return self.base.config

    @property
    def loss_type(self) -> str:
        """The base's loss, by which Trainer knows which labels it counts: nothing predicts the first of a row."""
        return self.base.loss_type or "ForCausalLM"  # what a base of no type falls back to, such as GPT-2

    def _get_name(self) -> str:
        """The base's class, by which Trainer knows that its label smoother must shift labels."""
        return type(self.base).__name__

    def __repr__(self) -> str:
        return super().__repr__().replace(self._get_name(), type(self).__name__, 1)

    def get_input_embeddings(self) -> nn.Module:
        """The base's, which Trainer's ``neftune_noise_alpha`` asks for."""
        return self.base.get_input_embeddings()

    @property
    def active_peft_config(self) -> HyLoRADAConfig:
        """The adapter's."""
        return self.adapter.config

    def get_extra_state(self) -> Tensor:
        """Where the dropout stream is: part of ``state_dict()``, which holds the adapter and leaves out the base."""
        return self.adapter.dropout_stream.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        """Go on from there; see :meth:`Adapter.set_dropout_stream`."""
        self.adapter.set_dropout_stream(state)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """The base's own forward with the adapter in it.

        Args:
            input_ids: [b, T]; or ``inputs_embeds`` [b, T, d] instead.
            attention_mask: [b, cached + T], 0 at pads; positions then count from each row's first real token.
            position_ids: [1 or b, T], instead of counting.
            past_key_values: the key/value cache of the tokens before these (``cache``, as newer transformers name it,
                is understood too); positions go on from its length.
            use_cache: whether to return the cache; None leaves it to the base's configuration.
            labels: [b, T], of the base's built-in loss, -100 where there is none; Trainer looks for this name.
            **kwargs: passed on to the base.

        Returns:
            The base's output: ``logits`` [b, T, V], and ``loss`` where labels were given; in training mode with the
            regularizers of the boundaries added to it (``boundary_diversity``, ``boundary_repulsion``).

        Raises:
            InputError: no tokens were given, or landmarks that pool over many can't go on from this cache or mask.
            RuntimeError: the model is closed.
        """
        cache = kwargs.pop("cache", None) if past_key_values is None else past_key_values
        call = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids, **kwargs}
        if labels is not None:
            call["labels"] = labels
        if cache is not None:
            call[self._cache_name()] = cache
        checkpointing = self._checkpoints and self.training and torch.is_grad_enabled()
        use_cache = False if checkpointing else self._pool_with_cache(call, use_cache)
        if attention_mask is not None:
            call["position_ids"] = self._positions(call)  # the base itself would count the pads
        with self._adapting(call), self._checkpointing() if checkpointing else nullcontext():
            output = self.base(use_cache=use_cache, **call)
        return penalized(output, self._adapters(), call) if self.training else output

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """The base's own ``generate`` with the adapter in it.

        Every row's positions count from its first real token, so rows of a left-padded batch (with its
        ``attention_mask``) give the tokens that each gives alone, with the key/value cache or without it.
        """
        if self._pools(noncausal=True):
            if kwargs.get("past_key_values") is not None or kwargs.get("cache") is not None:
                raise InputError("replication_noncausal_pooling can't go on from a cache; pass the whole text")
            if kwargs.get("assistant_model") is not None or kwargs.get("prompt_lookup_num_tokens"):
                raise InputError("replication_noncausal_pooling can't go on from a cache, as assisted generation must")
            kwargs["use_cache"] = False  # what is pooled over the whole text changes with every token
        with self._adapting_every_call():
            return self.base.generate(*args, **kwargs)  # type: ignore[operator]

    def train(self, mode: bool = True) -> Self:
        """Switch the adapter's dropout; the frozen base stays in eval mode."""
        super().train(mode)
        self.base.eval()
        return self

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """Within it the model is the base alone, also while the LoRA part is merged."""
        enabled, merged = self._enabled, self._originals is not None
        self.unmerge()
        self._enabled = False
        try:
            yield
        finally:
            self._enabled = enabled
            if merged:
                self.merge()

    def merge(self) -> None:
        """Fold the LoRA part into the base's weights; landmarks stay where they are. Merged already, it does nothing.

        The base's own weights are kept aside for :meth:`unmerge`; until then every user of the base sees the merged
        ones.

        Raises:
            InputError: the adapter has a position bias (its update differs from position to position, so no one weight
                gives it) or non-finite numbers, or another model is merged into this base; the base is left as it was.
            RuntimeError: the model is closed.
        """
        if self._originals is None:
            self._refuse_if_closed()
            self._originals = merge_into(self.base, self.adapter)

    def unmerge(self) -> None:
        """Give the base its own weights back, bit for bit; not merged, it does nothing."""
        if self._originals is not None:
            restore(self.base, self._originals)
            self._originals = None

    def merge_and_unload(self) -> PreTrainedModel:
        """Merge for good and take everything else off; this model can't be used afterwards.

        Returns:
            The base, its weights changed in place.

        Raises:
            InputError: the adapter has a position bias or landmarks, which no weights of the base can hold, or what
                :meth:`merge` raises it for.
            RuntimeError: the model is closed.
        """
        if self.adapter.landmark is not None:
            raise InputError("an adapter with landmarks can't be unloaded into its base; merge() folds its LoRA part")
        self.merge()
        self._originals = {}  # the base keeps what it has
        self.close()
        return self.base

    def close(self) -> None:
        """Take the adapter off; the base is then as it came, but frozen. Closed already, it does nothing."""
        if not self._closed:
            self.unmerge()
            self.activation_checkpointing_disable()
            self._pack.close()
            self.adapter.hold_boundaries(None)
            self._closed = True

    def activation_checkpointing_enable(
        self, activation_checkpointing_kwargs: Mapping[str, Any] | None = None, **where: Any
    ) -> None:
        """Keep only each decoder layer's input for the backward pass, in training mode, and compute the rest again.

        The base's own non-reentrant checkpointing: with the base frozen a layer's input may need no gradient, and
        reentrant checkpoints would then cut the graph.

        Args:
            activation_checkpointing_kwargs: further ones of ``torch.utils.checkpoint.checkpoint``.
            **where: ``every_n_layers`` and ``offload`` of the base's own method, where its transformers has them.

        Raises:
            InputError: ``use_reentrant`` or ``context_fn`` was given.
            RuntimeError: the model is closed.
        """
        self._refuse_if_closed()
        given = dict(activation_checkpointing_kwargs or {})
        if given.pop("use_reentrant", False) or "context_fn" in given:
            raise InputError("checkpoints of a frozen base must have use_reentrant=False and a context_fn of their own")
        options = {**given, "use_reentrant": False, "context_fn": self._checkpoint_contexts}
        if hasattr(self.base, "activation_checkpointing_enable"):  # newer transformers' name
            self.base.activation_checkpointing_enable(options, **where)
        else:
            self.base.gradient_checkpointing_enable(options, **where)
        self.base.disable_input_require_grads()  # it makes them require gradients, which only reentrant ones need
        self._checkpoints = True

    def activation_checkpointing_disable(self) -> None:
        """Keep everything that the backward pass needs."""
        if not self._checkpoints:
            return
        if hasattr(self.base, "activation_checkpointing_disable"):
            self.base.activation_checkpointing_disable()
        else:
            self.base.gradient_checkpointing_disable()
        self._checkpoints = False

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: Mapping[str, Any] | None = None, **where: Any
    ) -> None:
        """:meth:`activation_checkpointing_enable` by its older name."""
        self.activation_checkpointing_enable(gradient_checkpointing_kwargs, **where)

    def gradient_checkpointing_disable(self) -> None:
        """:meth:`activation_checkpointing_disable` by its older name."""
        self.activation_checkpointing_disable()

    def get_nb_trainable_parameters(self) -> tuple[int, int]:
        """Trainable numbers, and all numbers of base and adapter, tied ones once."""
        counts = [(p.numel(), p.requires_grad) for p in self.parameters()]
        return sum(n for n, trainable in counts if trainable), sum(n for n, _ in counts)

    def print_trainable_parameters(self) -> None:
        """Print them in PEFT's words."""
        trainable, total = self.get_nb_trainable_parameters()
        share = 100 * trainable / total
        print(f"trainable params: {trainable:,d} || all params: {total:,d} || trainable%: {share:.4f}")

    def get_learned_boundaries(self) -> Tensor | None:
        """The sorted bucket boundaries [B-1] in token positions; None where they are not learnable."""
        return self.adapter.learned_boundaries()

    def create_optimizer(self, training: TrainingConfig | TrainingArguments) -> torch.optim.AdamW:
        """AdamW that steps this adapter as a seat's does, for a loop of your own or ``Trainer(optimizers=...)``.

        Its groups have weight decay on matrices alone, and ``boundary_lr_scale`` times the learning rate on boundaries.
        Its ``step`` leaves boundaries where they are for the first ``boundary_warmup`` share of ``max_steps``, and
        keeps them within the block. Until then their gradient is dropped, also for other optimizers, while this one
        lives. Schedule and clipping are the caller's.

        Args:
            training: its ``learning_rate``, ``weight_decay``, ``adam_beta1``, ``adam_beta2``, ``adam_epsilon`` and
                ``max_steps`` are read, not ``optim`` or ``optim_args``.

        Raises:
            InputError: another kind of ``training``, or ``boundary_warmup`` is set and ``max_steps`` is not, as with
                ``num_train_epochs``.
            RuntimeError: the model is closed, or its adapter is in a seat.

        Example:
            >>> from transformers import Trainer, TrainingArguments
            >>> from hylorada import HyLoRADAConfig, load_base
            >>> config = HyLoRADAConfig(landmark_bucketing="learnable", boundary_lr_scale=5, max_positions=64)
            >>> model = HyLoRADAModel(load_base("tiny"), config)
            >>> args = TrainingArguments("runs", learning_rate=2e-3, max_steps=100, use_cpu=True)
            >>> trainer = Trainer(model, args, optimizers=(model.create_optimizer(args), None))
        """
        self._refuse_if_closed()
        return adamw(self.adapter, training)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RuntimeError("this model is closed: its adapter has been taken off the base")

    def _adapters(self) -> list[Adapter]:
        """What the pack has to apply now."""
        if not self._enabled:
            return []
        if self._originals is None:
            return [self.adapter]
        return [] if self.adapter.landmark is None else [_without_lora(self.adapter)]

    def _pools(self, *, noncausal: bool) -> bool:
        """Whether landmarks that pool over many tokens are at work, of the causal kind or the other."""
        landmark = self.adapter.landmark if self._enabled else None
        return isinstance(landmark, LandmarkLoRA | PerLayerLandmark) and landmark.noncausal == noncausal

    def _pool_with_cache(self, call: dict[str, Any], use_cache: bool | None) -> bool | None:
        """Whether to return a cache; it must be there before the base makes it where landmarks keep theirs in it."""
        name = self._cache_name()
        if self._pools(noncausal=True):
            if use_cache or call.get(name) is not None:
                raise InputError("replication_noncausal_pooling can't go on from a cache; pass use_cache=False")
            return False
        wanted = self.base.config.use_cache if use_cache is None else use_cache
        if wanted and call.get(name) is None and self._pools(noncausal=False):
            call[name] = DynamicCache(config=self.base.config)
        return use_cache

    def _prepared(self, call: dict[str, Any]) -> Prepared:
        """What a call of the base is to compute with."""
        positions, mask = self._positions(call), call.get("attention_mask")
        pools = self._pools(noncausal=False) or self._pools(noncausal=True)
        plain = isinstance(mask, Tensor) and mask.ndim == 2
        if pools and mask is not None and not plain:
            raise InputError("landmarks that pool over the tokens so far need an attention_mask [b, T], 0 at pads")
        pads = mask[:, -positions.shape[1] :] if isinstance(mask, Tensor) and plain else None
        cache, layers = call.get(self._cache_name()), self.base.config.num_hidden_layers
        history = None
        if cache is not None and self._pools(noncausal=False):
            history = History(cache, layers, layers if isinstance(self.adapter.landmark, PerLayerLandmark) else 1)
        return self._pack.prepare(self._adapters(), positions, mask=pads, history=history)

    @contextmanager
    def _adapting(self, call: dict[str, Any]) -> Iterator[None]:
        """Within it the base computes with the adapter."""
        self._refuse_if_closed()
        before, self._running = self._running, self._prepared(call)
        try:
            with self._pack.filled(self._running):
                yield
        finally:
            self._running = before

    @contextmanager
    def _adapting_every_call(self) -> Iterator[None]:
        """Within it every call of the base computes with the adapter, each at the positions of its own tokens."""
        self._refuse_if_closed()
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
        tokens: Tensor | None = call["input_ids"] if call.get("input_ids") is not None else call.get("inputs_embeds")
        if tokens is None:
            raise InputError("there are no tokens: pass input_ids [b, T] or inputs_embeds [b, T, d]")
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
        return "cache" if "cache" in inspect.signature(self.base.forward).parameters else "past_key_values"

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

    def _checkpoint_contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """What a checkpoint enters for its layer: nothing the first time, this very call's adapter the second."""
        assert self._running is not None
        return nullcontext(), _Again(self._pack, self._running)


def _leave_out_base(_model: nn.Module, state: dict[str, Any], prefix: str, _local: Any) -> None:
    """Make a state that of the adapter: checkpoints of a trainer are then small, and no two names share a tensor."""
    for name in [n for n in state if n.startswith(f"{prefix}base.")]:
        del state[name]


def _put_in_base(model: "HyLoRADAModel", state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let such a state leave the base as it is, and miss nothing."""
    for name, tensor in model.base.state_dict(prefix=f"{prefix}base.").items():
        state.setdefault(name, tensor)


class _Again:
    """Brings back, as often as entered, what a call computes with and where its dropout streams then were."""

    def __init__(self, pack: Pack, prepared: Prepared) -> None:
        self._pack, self._prepared = pack, prepared
        self._streams = [(a.dropout_stream, a.dropout_stream.get_state()) for a in prepared.adapters]

    def __enter__(self) -> None:
        self._stack = ExitStack()
        for stream, then in self._streams:
            self._stack.callback(stream.set_state, stream.get_state())
            stream.set_state(then)
        self._stack.enter_context(self._pack.filled(self._prepared))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)


def _without_lora(adapter: Adapter) -> Adapter:
    """The same parameters with no module to adapt: landmarks alone."""
    alone = copy.copy(adapter)
    alone.targets = {}
    return alone
