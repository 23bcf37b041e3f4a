"""One adapter on one base, for use outside studies: a pack of one."""

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
from hylorada.saving.trainer_checkpoint import DESCRIPTION, describe
from hylorada.training.boundary_adamw import adamw, penalized, refuse_penalties

with contextlib.suppress(
    ImportError, KeyError
):  # transformers' pipelines log an error for classes not listed here
    from transformers.pipelines.base import SUPPORTED_PEFT_TASKS

    SUPPORTED_PEFT_TASKS["text-generation"].append("HyLoRADAModel")


class HyLoRADAModel(BaseAttributes):
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
        self._calls = Calls(base, adapter)
        self._closed = False
        self._originals: dict[str, Tensor] | None = (
            None  # the base's own weights while the LoRA part is merged
        )
        self.register_state_dict_post_hook(_leave_out_base)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_put_in_base)  # type: ignore[no-untyped-call]

    @classmethod
    def from_pretrained(
        cls, base: PreTrainedModel | str, folder: str | Path, *, is_trainable: bool = False
    ) -> Self:
        """Load the model that :meth:`save_pretrained` wrote, or that a checkpoint of Trainer holds.

        As with PEFT's models, the adapter is frozen and in eval mode unless it is to be trained further.

        Args:
            base: of the shape the adapter was saved with, or what :func:`load_base` takes.
            folder: of the saved adapter, or a ``checkpoint-...`` of Trainer.
            is_trainable: whether the adapter's parameters get gradients and the model starts in training mode.

        Raises:
            InputError: a file or tensor is missing, unexpected, damaged, of another shape or non-finite, or the base
                doesn't fit; the base is left as it was.
        """
        base = load_base(base) if isinstance(base, str) else base
        adapter = load_adapter(base, folder).requires_grad_(is_trainable)
        model = cls.__new__(cls)
        nn.Module.__init__(model)
        model._hang(base, adapter)
        return model.train(is_trainable)

    def save_pretrained(self, folder: str | Path, **kwargs: Any) -> None:
        """Write the adapter: the LoRA part in PEFT's format, everything else beside it (see :func:`save_adapter`).

        Args:
            folder: made if need be.
            **kwargs: what transformers gives every model it saves, such as ``max_shard_size``; an adapter needs none
                of it.

        Raises:
            InputError: ``folder`` is a file or empty text, or a tensor has non-finite numbers; nothing is written.
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
        """Upload what :meth:`save_pretrained` writes to a model repository of the Hugging Face hub.

        Args:
            repo_id: made if need be.
            private: whether a new repository is to be private.
            token: of the hub; None takes the one that is logged in.
            **commit: of ``huggingface_hub.upload_folder``, such as ``commit_message``, ``revision`` and ``create_pr``.

        Returns:
            Where the commit is.
        """
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            hub = HfApi(token=token)
            hub.create_repo(repo_id, private=private, exist_ok=True)
            return str(hub.upload_folder(repo_id=repo_id, folder_path=folder, **commit))

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
        call = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "position_ids": position_ids,
            **kwargs,
        }
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
        """The base without its head; calls of it compute with the adapter."""
        body = self.base.get_submodule(architecture_of(self.base.config.model_type).body)
        return AdaptedBody(body, self._run_body)

    base_model_prefix = "base_model"  # the name by which transformers looks for it

    def get_decoder(self) -> AdaptedBody:
        """Return ``base_model``, which transformers' models answer by this name too."""
        return self.base_model

    def _run_body(self, module: nn.Module, call: dict[str, Any], *cache: Any) -> Any:
        if self.training and torch.is_grad_enabled():
            refuse_penalties(self._calls.adapters())
        return self._run(module, call, *cache)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """The base's own ``generate`` with the adapter in it.

        Every row's positions count from its first real token, so rows of a left-padded batch (with its
        ``attention_mask``) give the tokens that each gives alone, with the key/value cache or without it.
        """
        self._refuse_if_closed()
        kwargs.setdefault(
            "trust_remote_code", False
        )  # where it isn't set, transformers asks on the terminal
        if self._calls.pools(noncausal=True):
            if kwargs.get("past_key_values") is not None or kwargs.get("cache") is not None:
                raise InputError(
                    "replication_noncausal_pooling can't go on from a cache; pass the whole text"
                )
            if kwargs.get("assistant_model") is not None or kwargs.get("prompt_lookup_num_tokens"):
                raise InputError(
                    "replication_noncausal_pooling can't go on from a cache, as assisted generation must"
                )
            kwargs["use_cache"] = (
                False  # what is pooled over the whole text changes with every token
            )
        with self._calls.adapting_every_call():
            return self.base.generate(*args, **kwargs)  # type: ignore[operator]

    def train(self, mode: bool = True) -> Self:
        """Switch the adapter's dropout; the frozen base stays in eval mode."""
        super().train(mode)
        self.base.eval()
        return self

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """Within it the model is the base alone, also while the LoRA part is merged."""
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
            self._calls.merged = True

    def unmerge(self) -> None:
        """Give the base its own weights back, bit for bit; not merged, it does nothing."""
        if self._originals is not None:
            restore(self.base, self._originals)
            self._originals = None
            self._calls.merged = False

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
            raise InputError(
                "an adapter with landmarks can't be unloaded into its base; merge() folds its LoRA part"
            )
        self.merge()
        self._originals = {}  # the base keeps what it has
        self.close()
        return self.base

    def close(self) -> None:
        """Take the adapter off; the base is then as it came, but frozen. Closed already, it does nothing."""
        if not self._closed:
            self.unmerge()
            self.activation_checkpointing_disable()
            self._calls.pack.close()
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
        self._calls.enable_checkpoints(activation_checkpointing_kwargs, where)

    def activation_checkpointing_disable(self) -> None:
        """Keep everything that the backward pass needs."""
        self._calls.disable_checkpoints()

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: Mapping[str, Any] | None = None, **where: Any
    ) -> None:
        """:meth:`activation_checkpointing_enable` by its older name."""
        self.activation_checkpointing_enable(gradient_checkpointing_kwargs, **where)

    def gradient_checkpointing_disable(self) -> None:
        """:meth:`activation_checkpointing_disable` by its older name."""
        self.activation_checkpointing_disable()

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


def _leave_out_base(model: HyLoRADAModel, state: dict[str, Any], prefix: str, _local: Any) -> None:
    """Make a state that of the adapter alone, with its description: checkpoints are small, and open on their own."""
    for name in [n for n in state if n.startswith(f"{prefix}base.")]:
        del state[name]
    state[prefix + DESCRIPTION] = describe(model.adapter, model.base)


def _put_in_base(model: HyLoRADAModel, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let such a state leave the base as it is, and miss nothing."""
    state.pop(prefix + DESCRIPTION, None)
    for name, tensor in model.base.state_dict(prefix=f"{prefix}base.").items():
        state.setdefault(name, tensor)
