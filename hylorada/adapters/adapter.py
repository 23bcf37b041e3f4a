"""The adapter: all trainable parameters of one configuration, an ordinary ``nn.Module``."""

import operator
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Self, SupportsIndex

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from hylorada.adapters.attention import check_attention
from hylorada.adapters.buckets import boundary_penalty
from hylorada.adapters.landmarks.attention_integrated import AttentionIntegratedLandmark
from hylorada.adapters.landmarks.base import Landmark, landmark_seed
from hylorada.adapters.landmarks.position_adaptive import LearnableBucketLandmark, PositionLandmark
from hylorada.adapters.landmarks.registry import build_landmark
from hylorada.adapters.lora import LoRA, PositionBias, initial_magnitude
from hylorada.base_models.architectures import select_targets
from hylorada.config import HyLoRADAConfig
from hylorada.errors import InputError
from hylorada.runtime.devices import column
from hylorada.runtime.random_streams import derive_seed, stream


def check_base(base: object) -> None:
    """Check that adapters can be added to a base of a supported model type.

    Raises:
        InputError: ``base`` is not a transformers model, or has PEFT layers or registered landmarks
            in it.
    """
    if not isinstance(base, PreTrainedModel):
        raise InputError(
            f"base must be an unwrapped PreTrainedModel of transformers, got {_class_of(base)}"
        )
    foreign = sorted(
        {_class_of(m) for m in base.modules() if type(m).__module__.startswith("peft.")}
    )
    if foreign:
        raise InputError(
            "base must be free of other adapters, "
            f"got one with layers of PEFT: {', '.join(foreign)}"
        )
    if any(isinstance(m, Landmark) for m in base.modules()):
        raise InputError(
            "base must be free of other adapters, got one with registered landmarks; "
            "call their remove() first"
        )


def _class_of(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def group_of(name: str, dimensions: int) -> str:
    """Return the optimizer group of a parameter; see :meth:`Adapter.optimizer_groups`."""
    if name == "landmark.boundaries":
        return "boundaries"
    return "matrices" if dimensions >= 2 else "scalars"


def _whole(seed: SupportsIndex) -> int:
    """Return a seed as a plain ``int``; numpy's numbers would have other streams and no JSON."""
    try:
        return int(operator.index(seed))
    except TypeError as error:
        raise InputError(f"seed must be a whole number, got {seed!r}") from error


class Adapter(nn.Module):
    """The trainable parameters of one configuration for one base; a :class:`Pack` applies them.

    All parameters are fp32 whatever the base's dtype (fp64 for an fp64 base), because in bf16 an
    optimizer step of 1e-3 at 1.0 rounds to nothing. Every tensor has its own random stream, so
    adapters of different arms with the same seed start from the same LoRA factors (common random
    numbers).

    Args:
        base: the frozen model, which is only read.
        config: configuration; ``max_positions`` must be set for a position bias, buckets, or
            shifted sparse attention without ``attention_group``.
        seed: seed of the initial values and of dropout.
        lora: whether the adapter has LoRA updates; an adapter of landmarks alone has none.

    Raises:
        InputError: ``base`` is not supported, ``config`` is not a :class:`HyLoRADAConfig` or lacks
            ``max_positions``, a target module doesn't exist, or ``seed`` is not a whole number.
    """

    def __init__(
        self, base: PreTrainedModel, config: HyLoRADAConfig, *, seed: int, lora: bool = True
    ) -> None:
        super().__init__()
        check_base(base)
        if not isinstance(config, HyLoRADAConfig):
            raise InputError(f"config must be a HyLoRADAConfig, got {config!r}")
        config = config.resolved()
        grouped = config.shifted_sparse_attention and config.attention_group is None
        if config.max_positions is None and (config.position_bias or config.has_buckets or grouped):
            raise InputError("max_positions must be set to the trained block length")
        self.config = config
        self.seed = seed = _whole(seed)
        self.targets = select_targets(base, config.target_modules) if lora else {}
        dtype = torch.float64 if base.dtype == torch.float64 else torch.float32
        # keys of a ModuleDict must not contain dots
        self.lora = nn.ModuleDict(
            {
                path.replace(".", "/"): LoRA(
                    t.in_features,
                    t.out_features,
                    r=config.r,
                    seed=derive_seed(seed, path),
                    dtype=dtype,
                )
                for path, t in self.targets.items()
            }
        )
        self.magnitudes = nn.ParameterDict(
            {
                path.replace(".", "/"): initial_magnitude(base.get_submodule(path), dtype)
                for path in (self.targets if config.use_dora else ())
            }
        )
        self.position_bias = (
            PositionBias(
                base.config.num_hidden_layers,
                max_positions=config.max_positions,
                num_buckets=config.position_bias_buckets,
                dtype=dtype,
            )
            if config.position_bias
            and config.max_positions is not None  # always true here, see above
            else None
        )
        self.landmark = build_landmark(config, base.config, seed=landmark_seed(seed), dtype=dtype)
        if isinstance(self.landmark, AttentionIntegratedLandmark):
            check_attention(base, "landmark_design 'attention'")
        self._vector: Tensor | None = None
        self._hold: RemovableHandle | None = None
        self.dropout_stream = stream(seed, "dropout", device=base.device)
        self.to(base.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow the base (``to``, ``half``, ``cuda``, ...), but never below fp32.

        Moving to another device starts a new dropout stream.

        Raises:
            RuntimeError: a seat trains the adapter and holds its parameters as one vector.
        """

        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if moved.is_floating_point() and moved.dtype.itemsize < torch.float32.itemsize:
                moved = tensor.to(moved.device, torch.float32)
            if self._vector is not None and (moved.device, moved.dtype) != (
                tensor.device,
                tensor.dtype,
            ):
                raise RuntimeError(
                    "an adapter in training can't be moved or cast; do it before its seat is made"
                )
            return moved

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        device = next(self.parameters()).device
        if device.type != "meta" and device != self.dropout_stream.device:
            self.dropout_stream = stream(self.seed, "dropout", device=device)
        return self

    def set_dropout_stream(self, state: Tensor) -> None:
        """Restore the dropout stream, unless the state comes from another kind of device.

        Args:
            state: return value of the stream's ``get_state()``: 16 bytes on a GPU, 5,056 on a CPU.
        """
        if state.shape == self.dropout_stream.get_state().shape:
            self.dropout_stream.set_state(state.cpu())

    def lora_at(self, path: str) -> LoRA | None:
        """Return the update of the base's module at ``path``; None if it is not adapted."""
        if path not in self.targets:
            return None
        module = self.lora[path.replace(".", "/")]
        assert isinstance(module, LoRA)
        return module

    def magnitude_at(self, path: str) -> Tensor | None:
        """Return DoRA's magnitude [d_out] of the base's module at ``path``; None without one."""
        return (
            self.magnitudes[path.replace(".", "/")]
            if self.config.use_dora and path in self.targets
            else None
        )

    @property
    def attention_group(self) -> int | None:
        """Tokens in a group of the attention now; None attends fully, as all evaluation does."""
        training = self.training and torch.is_grad_enabled()
        return self.config.tokens_in_group if training else None

    def check_attention(self, base: PreTrainedModel) -> None:
        """Check that the adapter can change the base's attention, if it has to.

        Raises:
            InputError: the base's attention implementation is not supported.
        """
        if self.attention_group is not None:
            check_attention(base, "shifted_sparse_attention")
        if isinstance(self.landmark, AttentionIntegratedLandmark):
            check_attention(base, "landmark_design 'attention'")

    def update_is_zero(self) -> bool:
        """Return whether all of LoRA's B matrices are zero, as they are before training."""
        return not any(bool(m.lora_B.any()) for m in self.modules() if isinstance(m, LoRA))

    def flatten(self) -> tuple[Tensor, Tensor]:
        """Move all parameters into one vector and their gradients into another.

        The parameters become views, in the order of the optimizer's groups. A pack then reads the
        LoRA factors of a seat as one tensor, and the optimizer updates a seat in a few operations
        instead of hundreds. Call it once, when training begins.

        Returns:
            The parameters and the gradients (zeros) of the groups, as a vector each.
        """
        self.hold_boundaries(None)  # a seat holds boundaries itself
        ordered = [p for group in self._grouped().values() for p in group]
        values = torch.cat([p.detach().reshape(-1) for p in ordered])
        grads = torch.zeros_like(values)
        start = 0
        for parameter in ordered:
            own = slice(start, start := start + parameter.numel())
            parameter.data = values[own].view(parameter.shape)
            parameter.grad = grads[own].view(parameter.shape)
        size = sum(p.numel() for p in self.lora.parameters())
        self._vector = values[:size].requires_grad_()
        self._vector.grad = grads[:size]
        return values, grads

    def __getstate__(self) -> dict[str, Any]:
        # the parameters of a copy are not views of the vector and have no hooks
        return {**vars(self), "_vector": None, "_hold": None}

    def refuse_if_seated(self) -> None:
        """Raise if a seat trains this adapter.

        Raises:
            RuntimeError: a seat trains it, so its LoRA gradients lie in a vector that no other
                optimizer reads.
        """
        if self._vector is not None:
            raise RuntimeError(
                "a seat trains this adapter with its own optimizer; copy the adapter to use another"
            )

    def hold_boundaries(self, hook: Callable[[Tensor], None] | None) -> None:
        """Register ``hook`` on the boundaries' complete gradient, in place of any earlier hook."""
        if self._hold is not None:
            self._hold.remove()
        self._hold, boundaries = None, self.boundaries
        if hook is not None and boundaries is not None and boundaries.requires_grad:
            self._hold = boundaries.register_post_accumulate_grad_hook(hook)

    def lora_vector(self) -> Tensor:
        """Return all LoRA factors as one vector, A before B, in the order of ``targets``."""
        return (
            torch.cat([p.reshape(-1) for p in self.lora.parameters()])
            if self._vector is None
            else self._vector
        )

    @property
    def boundaries(self) -> nn.Parameter | None:
        """Trained boundaries [B-1] in [0, 1], or None."""
        return (
            self.landmark.boundaries if isinstance(self.landmark, LearnableBucketLandmark) else None
        )

    def learned_boundaries(self) -> Tensor | None:
        """Return the sorted boundaries [B-1] in token positions; None without learned buckets."""
        return (
            self.landmark.get_learned_boundaries()
            if isinstance(self.landmark, PositionLandmark)
            else None
        )

    def start_boundaries(self) -> Tensor | None:
        """Return the initial boundaries [B-1] in token positions; None without learned buckets."""
        if not isinstance(self.landmark, LearnableBucketLandmark):
            return None
        return self.landmark.start.sort().values * self.landmark.max_positions

    def applied(self) -> dict[str, Any]:
        """Return the configuration in force, read from the live tensors where they show it."""
        shown: dict[str, Any] = {
            "r": next(m.lora_A.shape[0] for m in self.modules() if isinstance(m, LoRA))
        }
        shown["use_dora"] = len(self.magnitudes) > 0
        if self.landmark is not None:
            shown |= self.landmark.applied()
        return {**self.config.to_dict(), "position_bias": self.position_bias is not None, **shown}

    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def optimizer_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """Return AdamW's parameter groups: matrices, scalars and boundaries.

        Only matrices have weight decay, and boundaries have their own learning rate: each group
        carries ``lr_scale``, its factor of the scheduled rate. Parameters that are kept from the
        optimizer (:meth:`untrained`) are in no group.
        """
        decay = {"matrices": weight_decay}
        scale = {"boundaries": self.config.boundary_lr_scale}
        return [
            {
                "name": name,
                "params": params,
                "weight_decay": decay.get(name, 0.0),
                "lr_scale": scale.get(name, 1.0),
            }
            for name, params in self._grouped().items()
        ]

    def untrained(self) -> dict[str, nn.Parameter]:
        """Return the parameters that no optimizer gets, by name (``replication_untrained``)."""
        kept_out: dict[str, tuple[str, ...]] = {
            "boundaries": ("landmark.boundaries",),
            "landmarks": ("landmark.",),
        }
        prefixes = kept_out.get(self.config.replication_untrained, ())
        return {name: p for name, p in self.named_parameters() if name.startswith(prefixes)}

    def _grouped(self) -> dict[str, list[nn.Parameter]]:
        groups: dict[str, list[nn.Parameter]] = {"matrices": [], "scalars": [], "boundaries": []}
        untrained = self.untrained()
        for name, parameter in self.named_parameters():  # LoRA comes first
            if name not in untrained:
                groups[group_of(name, parameter.ndim)].append(parameter)
        return {name: params for name, params in groups.items() if params}


def boundary_penalties(adapters: Sequence[Adapter]) -> Tensor | None:
    """Return the sum of the boundary regularizers of K adapters; None if no adapter has any."""
    weights: dict[int, list[tuple[Tensor, float, float]]] = defaultdict(list)
    for adapter in adapters:
        diversity, repulsion = adapter.config.boundary_diversity, adapter.config.boundary_repulsion
        if adapter.boundaries is not None and (diversity or repulsion):
            weights[len(adapter.boundaries)].append((adapter.boundaries, diversity, repulsion))
    total: Tensor | None = None
    for members in weights.values():
        boundaries = torch.stack([b for b, _, _ in members])
        diversity_, repulsion_ = column(
            tuple((d, r) for _, d, r in members), boundaries.dtype, boundaries.device
        )
        penalty = boundary_penalty(boundaries, diversity_, repulsion_).sum()
        total = penalty if total is None else total + penalty
    return total
