"""The attributes that a model with an adapter shares with models of transformers and PEFT."""

from collections.abc import Iterable
from typing import Any, Self

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from hylorada.errors import InputError

_ONE_ADAPTER = "it holds one adapter; use from_pretrained, disable_adapter and merge_and_unload"
_LOADING = "transformers calls it while it loads a base; load the base first"
_PARALLEL = "parallel plans and sharded saves are not supported"
_SERVING = "it would run the base without the adapter; use generate"
_FROZEN_BASE = (
    "the base is frozen, and new rows would be neither trained nor saved; "
    "change the base before you adapt it"
)
_DECODER = "the supported bases are decoders with no encoder and no position table to resize"

# Attributes of the base that are equally valid for the adapted model.
DELEGATED = frozenset(
    (
        "add_model_tags",
        "can_generate",
        "can_record_outputs",
        "compute_transition_scores",
        "config_class",
        "device",
        "disable_input_require_grads",
        "dtype",
        "dummy_inputs",
        "enable_input_require_grads",
        "generation_config",
        "generation_config_class",
        "get_correct_attn_implementation",
        "get_correct_experts_implementation",
        "get_experts_implementation",
        "get_input_embeddings",
        "get_output_embeddings",
        "input_modalities",
        "is_activation_checkpointing",
        "is_backend_compatible",
        "is_custom_code",
        "is_gradient_checkpointing",
        "is_loaded_in_4bit",  # of a 4-bit base alone; `num_parameters` asks for it
        "is_remote_code",
        "loss_function",
        "main_input_name",
        "model_tags",
        "name_or_path",
        "output_modalities",
        "prepare_inputs_for_generation",
        "set_attn_implementation",
        "supports_gradient_checkpointing",
        "tie_weights",
        "use_kernels",
        "vocab_size",
        "warn_if_padding_and_no_attention_mask",
        "warnings_issued",
    )
)


def _each(reason: str, names: str) -> Iterable[tuple[str, str]]:
    return ((name, reason) for name in names.split())


# Attributes of transformers' or PEFT's models that this one lacks, with the reason.
REFUSED = dict(
    [
        *_each(
            _ONE_ADAPTER,
            "active_adapters add_adapter delete_adapter disable_adapters enable_adapters "
            "enable_peft_hotswap get_adapter_state_dict load_adapter set_adapter",
        ),
        *_each(
            _LOADING,
            "adjust_generation_fn all_tied_weights_keys get_expanded_tied_weights_keys "
            "get_init_context init_parallel_plans init_weights initialize_weights kernel_config "
            "mark_tied_weights_as_initialized post_init register_for_auto_class "
            "retrieve_modules_from_names",
        ),
        *_each(
            _PARALLEL,
            "barrier_after_gathered_checkpoint_save ep_plan fsdp_plan fsdp_size "
            "gather_sharded_state_dict_for_save is_distributed_loading_by_transformers "
            "maybe_distribute_model pp_plan prepare_distribute_model save_distributed_checkpoint "
            "should_save_on_this_rank supports_context_parallel supports_pp_plan supports_tp_plan "
            "tp_plan tp_size",
        ),
        *_each(
            _SERVING,
            "continuous_batching_context_manager destroy_cached_continuous_batching_manager "
            "generate_batch get_compiled_call heal_tokens init_continuous_batching",
        ),
        *_each(
            _FROZEN_BASE,
            "dequantize resize_token_embeddings set_decoder set_experts_implementation "
            "set_input_embeddings set_output_embeddings set_use_kernels",
        ),
        *_each(
            _DECODER, "get_encoder get_position_embeddings resize_position_embeddings set_encoder"
        ),
        ("get_parameter_or_buffer", "use get_parameter or get_buffer"),
        ("named_non_persistent_buffers", "use named_buffers"),
        ("load_custom_generate", "hylorada never runs code that comes with a model"),
    ]
)


class BaseAttributes(nn.Module):
    """A module with the attributes that tools for transformers' or PEFT's models read.

    A name in ``DELEGATED`` is read from the base and set on it. A name in ``REFUSED`` raises an
    ``AttributeError`` that gives the reason, so ``hasattr`` is False for it. Other names of the
    base are not forwarded, because its submodules would compute without the adapter.
    """

    base: PreTrainedModel

    def __getattr__(self, name: str) -> Any:
        if name in DELEGATED:
            return getattr(self.base, name)
        if name in REFUSED:
            raise AttributeError(f"{type(self).__name__} has no {name}: {REFUSED[name]}")
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in DELEGATED:
            setattr(self.base, name, value)
        else:
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*nn.Module.__dir__(self), *DELEGATED})

    @property
    def config(self) -> PreTrainedConfig:
        """The base's configuration, as in PEFT; the adapter's is ``active_peft_config``."""
        return self.base.config

    @property
    def loss_type(self) -> str:
        """Name of the base's loss; it tells Trainer that nothing predicts a row's first label."""
        # a base without a type, such as GPT-2, falls back to this one
        return self.base.loss_type or "ForCausalLM"

    def get_base_model(self) -> PreTrainedModel:
        """Return the base, which computes without the adapter when it is called directly."""
        return self.base

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """Return the number of parameters of base and adapter, tied ones counted once."""
        return PreTrainedModel.num_parameters(self, only_trainable, exclude_embeddings)  # type: ignore[arg-type]

    def get_memory_footprint(self, return_buffers: bool = True) -> int:
        """Return the size in bytes of the parameters of base and adapter and of their buffers."""
        size: int = PreTrainedModel.get_memory_footprint(self, return_buffers)  # type: ignore[arg-type]
        return size

    def get_nb_trainable_parameters(self) -> tuple[int, int]:
        """Return the numbers of trainable and of all parameters, tied ones counted once."""
        return self.num_parameters(only_trainable=True), self.num_parameters()

    def print_trainable_parameters(self) -> None:
        """Print the numbers of trainable and of all parameters in PEFT's format."""
        trainable, total = self.get_nb_trainable_parameters()
        share = 100 * trainable / total
        print(
            f"trainable params: {trainable:,d} || all params: {total:,d} || trainable%: {share:.4f}"
        )

    def _replicate_for_data_parallel(self) -> Self:
        """Refuse ``nn.DataParallel``, which Trainer uses where it sees several GPUs.

        Raises:
            InputError: always, because replicas lose the base's slots, and with them the adapter.
        """
        raise InputError(
            "nn.DataParallel is not supported; start with torchrun or accelerate launch, or set "
            "CUDA_VISIBLE_DEVICES"
        )

    def _get_name(self) -> str:
        """Return the class name of the base, by which Trainer decides to shift smoothed labels."""
        return type(self.base).__name__

    def __repr__(self) -> str:
        return super().__repr__().replace(self._get_name(), type(self).__name__, 1)
