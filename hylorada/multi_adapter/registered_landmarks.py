"""Landmarks in a model of transformers, under the names of the published code.

The published code hung its landmark module on a forward hook only: the module was no part of the
model, its parameters never reached the optimizer, and nothing was learned. Here the module becomes
a submodule of the model, so ``model.parameters()`` holds its parameters.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn
from transformers import PreTrainedModel

from hylorada.adapters.adapter import Adapter
from hylorada.adapters.landmarks.base import Landmark
from hylorada.base_models.architectures import architecture_of
from hylorada.config import HyLoRADAConfig, LandmarkDesign
from hylorada.config_values import CUSTOM_DESIGN
from hylorada.errors import InputError
from hylorada.multi_adapter.injection import has_slot
from hylorada.multi_adapter.single_adapter import Calls

_NAME = "hylorada_landmarks"  # of the submodule


class RegisteredLandmarks(nn.Module):
    """The landmarks that :func:`register_landmark_hook` has added to a model.

    It is a submodule of the model, so the model's ``parameters()``, ``train()``, ``to()`` and
    ``state_dict()`` include it. ``state_dict()`` of this module alone holds the landmarks alone.

    Args:
        model: a supported causal language model; it is frozen in place.
        config: the landmarks.
        seed: seed of their initial values and dropout.

    Attributes:
        adapter: the parameters, an adapter without LoRA.
    """

    def __init__(self, model: PreTrainedModel, config: HyLoRADAConfig, *, seed: int) -> None:
        super().__init__()
        # the landmarks take their part of the configuration, nothing else is added to the model
        alone = replace(
            config,
            position_bias=False,
            use_dora=False,
            lora_dropout=0.0,
            shifted_sparse_attention=False,
            attention_group=None,
        )
        self.adapter = Adapter(model, alone, seed=seed, lora=False)
        self._calls = Calls(model, self.adapter)
        body = model.get_submodule(architecture_of(model.config.model_type).body)
        self._handles = self._calls.hook(body)
        model.add_module(_NAME, self)

    @property
    def landmark(self) -> Landmark:
        """The landmark module."""
        assert self.adapter.landmark is not None  # a configuration without landmarks is refused
        return self.adapter.landmark

    def get_learned_boundaries(self) -> Tensor | None:
        """Return the sorted boundaries [B-1] in token positions; None unless they are trained."""
        return self.adapter.learned_boundaries()

    def remove(self) -> None:
        """Remove the landmarks; the model is otherwise unchanged but stays frozen.

        A second call has no effect.
        """
        if self._handles:
            for handle in self._handles:
                handle.remove()
            self._handles = []
            self._calls.pack.close()
            delattr(self._calls.base, _NAME)


def register_landmark_hook(
    model: PreTrainedModel, config: HyLoRADAConfig, *, seed: int = 0
) -> RegisteredLandmarks:
    """Add landmarks after the final norm of a model, as a forward hook.

    In eval mode the model computes what a :class:`HyLoRADAModel` with these landmarks and without
    LoRA does, in every call, ``generate`` included. A :class:`HyLoRADAModel` does more: it adds
    LoRA and a position bias, saves the adapter in files of its own, and its optimizer and loss give
    boundaries their own learning rate, warm-up, limits and regularizers.

    The model is frozen in place and put in eval mode. ``model.train()`` ends that and turns on the
    model's own dropout (GPT-2 has some), which a :class:`HyLoRADAModel` never uses; after it, call
    ``model.eval()`` and then ``landmarks.train()``. An optimizer gets the landmarks' parameters
    from the returned module, or from the model, of which it is a submodule::

        landmarks = register_landmark_hook(model, config)
        optimizer = torch.optim.AdamW(landmarks.parameters(), lr=2e-3)

    Make the optimizer after this call: one made before has none of these parameters and trains
    nothing. transformers' ``Trainer`` makes its own later, from ``model.parameters()``.

    Args:
        model: GPT-2, Llama-like or GPT-NeoX, without other adapters.
        config: its fields on landmarks are used, those on LoRA and position bias are not.
            ``landmark_design`` must be ``position_adaptive``, which needs ``max_positions``, the
            length of the blocks to train on, or ``global``, or a design of your own.
        seed: seed of the landmarks' initial values and dropout.

    Returns:
        The landmarks, an ``nn.Module``; its ``remove()`` takes them off the model.

    Raises:
        InputError: the model is not supported or has other adapters or landmarks in it; the
            configuration has no landmarks, those of another design, or fields that need the
            optimizer or the loss of a :class:`HyLoRADAModel`.

    Example:
        >>> import torch
        >>> from hylorada import HyLoRADAConfig, load_base
        >>> model = load_base("tiny")
        >>> config = HyLoRADAConfig(
        ...     landmark_bucketing="learnable", num_buckets=4, max_positions=256
        ... )
        >>> landmarks = register_landmark_hook(model, config)
        >>> optimizer = torch.optim.AdamW(landmarks.parameters(), lr=0.01)
        >>> ids = torch.arange(256)[None]
        >>> for _ in range(2):
        ...     model(input_ids=ids, labels=ids).loss.backward()
        ...     optimizer.step()
        >>> [p.grad is not None for p in landmarks.parameters()]
        [True, True, True, True, True]
        >>> landmarks.get_learned_boundaries().shape
        torch.Size([3])
    """
    return _registered(model, config, seed, ("position_adaptive", "global"))


def apply_per_layer_landmarks(
    model: PreTrainedModel, config: HyLoRADAConfig, *, seed: int = 0
) -> RegisteredLandmarks:
    """Add landmarks to the MLP output of every layer of a model.

    Otherwise it works as :func:`register_landmark_hook` does, including how an optimizer gets the
    parameters. The model can't be trained with gradient checkpointing, which would recompute
    the layers without their landmarks; a :class:`HyLoRADAModel` can.

    Args:
        model: GPT-2, Llama-like or GPT-NeoX, without other adapters.
        config: its fields on landmarks are used; ``landmark_design`` must be ``per_layer``.
        seed: seed of the landmarks' initial values and dropout.

    Returns:
        The landmarks, an ``nn.Module``; its ``remove()`` takes them off the model.

    Raises:
        InputError: as for :func:`register_landmark_hook`.

    Example:
        >>> from hylorada import HyLoRADAConfig, count_landmark_params, load_base
        >>> model = load_base("tiny")
        >>> config = HyLoRADAConfig(landmark_design="per_layer", share_landmarks=True)
        >>> landmarks = apply_per_layer_landmarks(model, config)
        >>> count_landmark_params(landmarks) == sum(p.numel() for p in landmarks.parameters())
        True
    """
    return _registered(model, config, seed, ("per_layer",))


def _registered(
    model: PreTrainedModel, config: HyLoRADAConfig, seed: int, designs: Sequence[LandmarkDesign]
) -> RegisteredLandmarks:
    if not isinstance(config, HyLoRADAConfig):
        raise InputError(f"config must be a HyLoRADAConfig, got {config!r}")
    if problems := _problems(config, designs):
        raise InputError(problems)
    if isinstance(model, nn.Module) and any(map(has_slot, model.modules())):
        raise InputError(
            "model has an adapter of HyLoRADA already; give that one landmarks, or close it first"
        )
    return RegisteredLandmarks(model, config, seed=seed)


def _problems(config: HyLoRADAConfig, designs: Sequence[LandmarkDesign]) -> list[str]:
    """Return what keeps a configuration from being used without a :class:`HyLoRADAModel`."""
    if not config.has_landmarks:
        return ["config must have landmarks, got landmarks=False or num_landmarks=0"]
    problems = []
    custom = "global" in designs and CUSTOM_DESIGN.fullmatch(config.landmark_design)
    if config.landmark_design not in designs and not custom:
        allowed = " or ".join(map(repr, designs))
        problems.append(
            f"landmark_design must be {allowed} here, got {config.landmark_design!r}; "
            "HyLoRADAModel takes every design"
        )
    if config.replication_untrained != "nothing":
        problems.append(
            f"replication_untrained {config.replication_untrained!r} needs a HyLoRADAModel: here "
            "you choose the optimizer's parameters yourself"
        )
    if unused := config.boundary_training():
        problems.append(
            f"{' and '.join(unused)} would do nothing: only the optimizer and the loss of "
            "a HyLoRADAModel treat boundaries differently from other parameters"
        )
    return problems
