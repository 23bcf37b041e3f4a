"""A model with one adapter, for use outside studies; a pack of one computes it."""

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import torch
from huggingface_hub import HfApi
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainingArguments

from hylorada.adapters.adapter import Adapter
from hylorada.base_models.architectures import architecture_of
from hylorada.base_models.attributes import BaseAttributes
from hylorada.base_models.loading import load_base
from hylorada.config import HyLoRADAConfig, TrainingConfig
from hylorada.errors import InputError
from hylorada.multi_adapter.single_adapter import AdaptedBody, Calls
from hylorada.saving.merge import merge_into, restore
from hylorada.saving.peft_format import load_adapter, save_adapter
from hylorada.saving.trainer_checkpoint import leave_out_base, put_in_base
from hylorada.training.boundary_adamw import adamw, penalized, refuse_penalties

# transformers' pipelines log an error for classes that are not listed here
with contextlib.suppress(ImportError, KeyError):
    from transformers.pipelines.base import SUPPORTED_PEFT_TASKS

    SUPPORTED_PEFT_TASKS["text-generation"].append("HyLoRADAModel")


class HyLoRADAModel(BaseAttributes):
    """A frozen causal language model with one HyLoRADA adapter.

    Args:
        base: GPT-2, Llama-like or GPT-NeoX; it is frozen in place.
        config: the adapter; ``max_positions`` must be the length of the blocks it is trained on,
            not the base's limit, because buckets without positions of the training text learn
            nothing.
        seed: seed of the adapter's initial values and dropout.

    Raises:
        InputError: the base is not supported, has other adapters in it or is wrapped in another
            model; the configuration is of another kind, has no ``max_positions``, names a target
            module that doesn't exist, or has ``landmark_bucketing="auto"`` and no verdict.

    Example:
        >>> from hylorada import HyLoRADAConfig, load_base
        >>> config = HyLoRADAConfig(
        ...     landmark_bucketing="learnable", num_buckets=4, max_positions=256
        ... )
        >>> model = HyLoRADAModel(load_base("tiny"), config)
        >>> ids = torch.arange(32)[None]
        >>> model(input_ids=ids, labels=ids).loss.backward()
        >>> model.get_learned_boundaries()
        tensor([ 0.5000,  1.5000, 22.5000])
    """

    def __init__(self, base: PreTrainedModel, config: HyLoRADAConfig, *, seed: int = 0) -> None:
        super().__init__()
        self._attach(base, Adapter(base, config, seed=seed))

    def _attach(self, base: PreTrainedModel, adapter: Adapter) -> None:
        self.adapter = adapter
        self.base = base
        self._calls = Calls(base, adapter)
        self._closed = False
        # the base's own weights, while the LoRA part is merged
        self._originals: dict[str, Tensor] | None = None
        self.register_state_dict_post_hook(leave_out_base)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(put_in_base)  # type: ignore[no-untyped-call]

    @classmethod
    def from_pretrained(
        cls, base: PreTrainedModel | str, folder: str | Path, *, is_trainable: bool = False
    ) -> Self:
        """Load the model that :meth:`save_pretrained` wrote, or a checkpoint of Trainer.

        As with PEFT's models, the adapter is frozen and in eval mode unless it is trainable.

        Args:
            base: a model of the shape the adapter was saved with, or a name for :func:`load_base`.
            folder: folder of the saved adapter, a ``checkpoint-...`` of Trainer, or a hub id.
            is_trainable: whether the adapter's parameters get gradients and the model starts in
                training mode.

        Raises:
            InputError: a file or tensor is missing, unexpected, damaged, of another shape or
                non-finite, or the base doesn't fit; the base is left as it was.
        """
        base = load_base(base) if isinstance(base, str) else base
        adapter = load_adapter(base, folder).requires_grad_(is_trainable)
        model = cls.__new__(cls)
        nn.Module.__init__(model)
        model._attach(base, adapter)
        return model.train(is_trainable)

    def save_pretrained(self, folder: str | Path, **kwargs: Any) -> None:
        """Write the adapter, its LoRA part in PEFT's format; see :func:`save_adapter`.

        Args:
            folder: created if it doesn't exist.
            **kwargs: ignored; transformers passes some to every model, such as ``max_shard_size``.

        Raises:
            InputError: ``folder`` is a file or empty text, or a tensor has non-finite numbers;
                nothing is written.
            RuntimeError: the model is closed.
        """
        self._refuse_if_closed()
        save_adapter(self.adapter, self.base, folder)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: bool | str | None = None,
        **commit: Any,
    ) -> str:
        """Upload the files of :meth:`save_pretrained` to a model repository of the hub.

        Args:
            repo_id: created if it doesn't exist.
            private: whether a new repository is private.
            token: token of the Hugging Face hub; None uses that of the logged-in user.
            **commit: arguments of ``huggingface_hub.upload_folder``, such as ``commit_message``,
                ``revision`` and ``create_pr``.

        Returns:
            The address of the commit.
        """
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            hub = HfApi(token=token)
            hub.create_repo(repo_id, private=private, exist_ok=True)
            return str(hub.upload_folder(repo_id=repo_id, folder_path=folder, **commit))

    @property
    def active_peft_config(self) -> HyLoRADAConfig:
        """The adapter's configuration."""
        return self.adapter.config

    def get_extra_state(self) -> Tensor:
        """Return the state of the dropout stream, for a ``state_dict()`` of the adapter alone."""
        return self.adapter.dropout_stream.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the state of the dropout stream; see :meth:`Adapter.set_dropout_stream`."""
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
        """Run the base's forward pass with the adapter.

        Args:
            input_ids: [b, T]; ``inputs_embeds`` [b, T, d] may be given instead.
            attention_mask: [b, cached + T], 0 at pads; positions then count from each row's first
                real token.
            position_ids: [1 or b, T], used instead of counting.
            past_key_values: the key/value cache of the preceding tokens (also accepted as
                ``cache``, its name in newer transformers); positions continue from its length.
            use_cache: whether to return the cache; None leaves it to the base's configuration.
            labels: [b, T] for the base's built-in loss, -100 where there is none; Trainer looks for
                this name.
            **kwargs: passed on to the base.

        Returns:
            The base's output: ``logits`` [b, T, V], and ``loss`` where labels were given; in
            training mode the loss includes the regularizers of the boundaries
            (``boundary_diversity``, ``boundary_repulsion``).

        Raises:
            InputError: no tokens, or a cache or mask that pooling landmarks can't continue from.
            RuntimeError: the model is closed.
        """
        call = {"input_ids": input_ids, "attention_mask": attention_mask, **kwargs}
        call["position_ids"] = position_ids
        if labels is not None:
            call["labels"] = labels
        output = self._run(self.base, call, use_cache, past_key_values)
        return penalized(output, self._calls.adapters(), call) if self.training else output

    def _run(
        self, module: nn.Module, call: dict[str, Any], use_cache: bool | None, past_key_values: Any
    ) -> Any:
        self._refuse_if_closed()
        cache = call.pop("cache", None)
        return self._calls.run(
            module, call, use_cache, cache if past_key_values is None else past_key_values
        )

    @property
    def base_model(self) -> AdaptedBody:
        """The base without its head; calling it computes with the adapter."""
        body = self.base.get_submodule(architecture_of(self.base.config.model_type).body)
        return AdaptedBody(body, self._run_body)

    base_model_prefix = "base_model"  # the name by which transformers looks for it

    def get_decoder(self) -> AdaptedBody:
        """Return ``base_model``, under the method's name in transformers."""
        return self.base_model

    def _run_body(self, module: nn.Module, call: dict[str, Any], *cache: Any) -> Any:
        if self.training and torch.is_grad_enabled():
            refuse_penalties(self._calls.adapters())
        return self._run(module, call, *cache)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Run the base's ``generate`` with the adapter.

        Positions of a row count from its first real token. So each row of a left-padded batch (with
        its ``attention_mask``) yields the same tokens as alone, with or without key/value cache.

        Args:
            *args: arguments of ``generate``.
            **kwargs: keyword arguments of ``generate``.

        Raises:
            InputError: a cache or assisted generation with ``replication_noncausal_pooling``.
            RuntimeError: the model is closed.
        """
        self._refuse_if_closed()
        # where it isn't set, transformers asks on the terminal
        kwargs.setdefault("trust_remote_code", False)
        if self._calls.pools(noncausal=True):
            if kwargs.get("past_key_values") is not None or kwargs.get("cache") is not None:
                raise InputError(
                    "replication_noncausal_pooling can't continue from a cache; pass the whole text"
                )
            if kwargs.get("assistant_model") is not None or kwargs.get("prompt_lookup_num_tokens"):
                raise InputError(
                    "replication_noncausal_pooling can't continue from a cache, "
                    "which assisted generation needs"
                )
            # the pooled values of a whole text change with every new token
            kwargs["use_cache"] = False
        with self._calls.adapting_every_call():
            return self.base.generate(*args, **kwargs)  # type: ignore[operator]

    def train(self, mode: bool = True) -> Self:
        """Set the adapter to training or eval mode; the frozen base stays in eval mode."""
        super().train(mode)
        self.base.eval()
        return self

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """Disable the adapter within a ``with`` block, even if its LoRA part is merged."""
        enabled, merged = self._calls.enabled, self._calls.merged
        self.unmerge()
        self._calls.enabled = False
        try:
            yield
        finally:
            self._calls.enabled = enabled
            if merged:
                self.merge()

    def merge(self) -> None:
        """Fold the LoRA part into the base's weights; landmarks stay separate.

        A second call has no effect. The base's own weights are kept for :meth:`unmerge`; until
        then every user of the base sees the merged ones.

        Raises:
            InputError: the adapter has a position bias (its update differs from position to
                position, so no single weight can hold it) or non-finite numbers, or another model
                is merged into this base; the base is left as it was.
            RuntimeError: the model is closed.
        """
        if self._originals is None:
            self._refuse_if_closed()
            self._originals = merge_into(self.base, self.adapter)
            self._calls.merged = True

    def unmerge(self) -> None:
        """Restore the base's own weights bit for bit; without a merge it has no effect."""
        if self._originals is not None:
            restore(self.base, self._originals)
            self._originals = None
            self._calls.merged = False

    def merge_and_unload(self) -> PreTrainedModel:
        """Merge permanently and remove everything else; this model can't be used afterwards.

        Returns:
            The base, its weights changed in place.

        Raises:
            InputError: the adapter has landmarks, which no weights of the base can hold, or
                :meth:`merge` raises it.
            RuntimeError: the model is closed.
        """
        if self.adapter.landmark is not None:
            raise InputError(
                "an adapter with landmarks can't be unloaded into its base; "
                "merge() folds its LoRA part"
            )
        self.merge()
        self._originals = {}  # nothing to restore: the base keeps the merged weights
        self.close()
        return self.base

    def close(self) -> None:
        """Remove the adapter from the base, which is then as before, but frozen.

        A second call has no effect.
        """
        if not self._closed:
            self.unmerge()
            self.activation_checkpointing_disable()
            self._calls.pack.close()
            self.adapter.hold_boundaries(None)
            self._closed = True

    def activation_checkpointing_enable(
        self, activation_checkpointing_kwargs: Mapping[str, Any] | None = None, **where: Any
    ) -> None:
        """Keep only the decoder layers' inputs for the backward pass, and recompute the rest.

        This is the base's own non-reentrant checkpointing, and applies in training mode. Under a
        frozen base a layer's input may need no gradient, and reentrant checkpoints would then cut
        the graph.

        Args:
            activation_checkpointing_kwargs: those of ``torch.utils.checkpoint.checkpoint``.
            **where: ``every_n_layers`` and ``offload``, if the installed transformers has them.

        Raises:
            InputError: ``use_reentrant`` or ``context_fn`` was given.
            RuntimeError: the model is closed.
        """
        self._refuse_if_closed()
        self._calls.enable_checkpoints(activation_checkpointing_kwargs, where)

    def activation_checkpointing_disable(self) -> None:
        """Turn checkpointing off: keep everything that the backward pass needs."""
        self._calls.disable_checkpoints()

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: Mapping[str, Any] | None = None, **where: Any
    ) -> None:
        """Call :meth:`activation_checkpointing_enable`; this is its older name."""
        self.activation_checkpointing_enable(gradient_checkpointing_kwargs, **where)

    def gradient_checkpointing_disable(self) -> None:
        """Call :meth:`activation_checkpointing_disable`; this is its older name."""
        self.activation_checkpointing_disable()

    def get_learned_boundaries(self) -> Tensor | None:
        """Return the sorted bucket boundaries [B-1] in token positions; None unless learnable."""
        return self.adapter.learned_boundaries()

    def create_optimizer(self, training: TrainingConfig | TrainingArguments) -> torch.optim.AdamW:
        """Return an AdamW that treats this adapter as the optimizer of a seat does.

        It is meant for your own training loop, or for ``Trainer(optimizers=...)``. Weight decay
        applies to matrices only, and the boundaries' learning rate is ``boundary_lr_scale`` times
        the learning rate. Its ``step`` leaves boundaries unchanged for the first
        ``boundary_warmup`` share of ``max_steps``, and keeps them within the block. During that
        share their gradient is dropped, for other optimizers too, as long as this one exists.
        Schedule and clipping are up to the caller.

        Args:
            training: its ``learning_rate``, ``weight_decay``, ``adam_beta1``, ``adam_beta2``,
                ``adam_epsilon`` and ``max_steps`` are read, but not ``optim`` or ``optim_args``.

        Raises:
            InputError: ``training`` is of another kind, the adapter is frozen, or
                ``boundary_warmup`` is set and ``max_steps`` is not, as with ``num_train_epochs``.
            RuntimeError: the model is closed, or its adapter is in a seat.

        Example:
            >>> from transformers import Trainer, TrainingArguments
            >>> from hylorada import HyLoRADAConfig, load_base
            >>> config = HyLoRADAConfig(
            ...     landmark_bucketing="learnable", boundary_lr_scale=5, max_positions=64
            ... )
            >>> model = HyLoRADAModel(load_base("tiny"), config)
            >>> args = TrainingArguments("runs", learning_rate=2e-3, max_steps=100, use_cpu=True)
            >>> trainer = Trainer(model, args, optimizers=(model.create_optimizer(args), None))
        """
        self._refuse_if_closed()
        return adamw(self.adapter, training)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RuntimeError("this model is closed: its adapter has been taken off the base")
