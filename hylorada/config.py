"""Configurations of an adapter (:class:`HyLoRADAConfig`) and of its training."""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from hylorada.base_models.builtin_names import ALL_LINEAR
from hylorada.config_values import field_problems
from hylorada.errors import InputError
from hylorada.study_verdict import decided_bucketing

BoundaryInit = Literal["uniform", "log", "random", "fixed"]
BucketSpacing = Literal["log", "linear"]
LandmarkBucketing = Literal["fixed", "learnable", "soft", "auto"]
LandmarkDesign = Literal["position_adaptive", "global", "per_layer", "attention"]
ReplicationUntrained = Literal["nothing", "boundaries", "landmarks"]
SchedulerType = Literal["cosine", "linear", "constant"]

# Fields that do nothing unless boundaries are trained.
_OF_TRAINED_BOUNDARIES = (
    *("boundary_lr_scale", "boundary_warmup"),
    *("boundary_diversity", "boundary_repulsion"),
)


@dataclass(frozen=True, kw_only=True)
class _Config:
    """A configuration that checks its values on construction and converts to and from JSON."""

    def __post_init__(self) -> None:
        problems = field_problems(type(self), dataclasses.asdict(self))
        if problems:
            raise InputError(problems)
        for name, value in list(vars(self).items()):
            if isinstance(value, list):  # it could be changed later, and has no hash
                object.__setattr__(self, name, tuple(value))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values; tuples become lists."""
        values = dataclasses.asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def to_json(self) -> str:
        """Return the fields as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build a configuration from plain values.

        Raises:
            InputError: a field is unknown or a value is not allowed; it names all such problems.
        """
        problems = field_problems(cls, values)
        if problems:
            raise InputError(problems)
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Build a configuration from the text that :meth:`to_json` returns.

        Raises:
            InputError: the text is not a JSON object, or :meth:`from_dict` rejects its values.
        """
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"not JSON: {error}") from error
        if not isinstance(values, dict):
            raise InputError(f"must be a JSON object, got {type(values).__name__}")
        return cls.from_dict(values)


@dataclass(frozen=True, kw_only=True)
class HyLoRADAConfig(_Config):
    """An adapter: rsLoRA on the attention projections, a position bias, and landmarks.

    Constructing one reads no files.

    Attributes:
        r: rank of the LoRA update.
        lora_alpha: LoRA's numerator; the update is scaled by alpha/sqrt(r) (rsLoRA) or alpha/r.
        use_rslora: scale by alpha/sqrt(r) (Kalajdzievski 2023) instead of alpha/r (Hu et al. 2021).
        use_dora: give every output feature of an adapted module a trained magnitude (DoRA, Liu et
            al. 2024).
        lora_dropout: dropout on the input of the LoRA branch.
        target_modules: suffixes of the adapted linear modules; None selects the base's attention
            projections, and ``("all-linear",)`` every linear module but the head (PEFT's word).
        position_bias: scale each layer's update by position (see :class:`PositionBias`).
        position_bias_buckets: number of log buckets of the position bias.
        shifted_sparse_attention: while the adapter trains, let the base's heads attend within
            groups of tokens, half of the heads in groups shifted by half a group (S2-Attn, Chen et
            al. 2023); evaluation attends fully. Not with landmark_design ``attention``.
        attention_group: tokens in such a group; None takes ``max_positions`` // 4.
        landmarks: whether the adapter has landmarks at all.
        landmark_design: where landmarks are added and what their gates depend on:
            ``position_adaptive``, at the final norm, on position bucket and content; ``global``, at
            the final norm, on the mean of all tokens so far; ``per_layer``, at every layer's MLP,
            on the maximum so far; ``attention``, as extra keys and values of every layer. Only the
            first has buckets and boundaries. ``FILE.py:CLASS`` names a design of your own, which
            :func:`load_landmark_design` has loaded.
        num_landmarks: L; 0 is the same as ``landmarks=False``.
        landmark_dropout: dropout on what the landmarks add, in training.
        share_landmarks: with ``per_layer``, use one bank of landmarks for all layers; each layer
            keeps its own gate and scale.
        share_gates: with ``share_landmarks``, use one gate and one scale for all layers too.
        replication_noncausal_pooling: with ``global`` or ``per_layer``, pool over the whole block,
            future tokens included, as the published code did. Such a model sees the tokens that it
            has to predict; use it only to reproduce published figures.
        replication_bucket_range: with fixed buckets, space them linearly over so many positions
            instead of over the block, as the published code did with 32,768: all positions of a
            short block then share the first bucket. Only to reproduce published figures.
        replication_untrained: with learnable buckets, the parameters withheld from the optimizer:
            ``boundaries``, or all parameters of the ``landmarks``, which the published code hung on
            the base without registering them. Only to reproduce published figures.
        landmark_bucketing: ``fixed`` buckets have hard edges; ``learnable`` ones are soft and their
            boundaries are trained; ``soft`` ones start as ``learnable`` ones do, but their
            boundaries are never trained, which separates the effect of softness from that of
            learning. ``auto`` takes the verdict of ``bucketing_study``: ``learnable`` if the study
            confirmed it to be better, otherwise ``fixed``. The adapter reads it when it is built
            (:meth:`resolved`).
        bucketing_study: folder of that study (``mlruns/studies/NAME``).
        num_buckets: B. One ``fixed`` bucket makes gates that don't depend on the position.
        bucket_spacing: spacing of fixed buckets.
        max_positions: the trained block length T in tokens; a study sets it from the text.
        temperature: softness of learnable and soft buckets, in units of the relative position
            u = p / max_positions.
        boundary_lr_scale: learning rate of the boundaries divided by that of everything else.
        boundary_init: where boundaries start, or stay if they are ``soft``; ``fixed`` starts at the
            log edges and holds learnable ones still for the first ``boundary_warmup`` share of the
            steps (the curriculum).
        boundary_warmup: that share; only with ``boundary_init="fixed"``.
        boundary_diversity: weight w of the regularizer -w * std(boundaries).
        boundary_repulsion: weight w of the regularizer -w * (smallest gap between neighbours, 0 and
            1 included).

    The optimizer of a :class:`Seat`, or of :meth:`HyLoRADAModel.create_optimizer`, applies the
    boundaries' learning rate, holds them during their warm-up and clamps them to the block. Any
    other optimizer trains boundaries like every other parameter.

    Example:
        >>> HyLoRADAConfig(landmark_bucketing="learnable", temperature=0.01).num_buckets
        32
    """

    r: int = 8
    lora_alpha: float = 16.0
    use_rslora: bool = True
    use_dora: bool = False
    lora_dropout: float = 0.0
    target_modules: tuple[str, ...] | None = None
    position_bias: bool = True
    position_bias_buckets: int = 64
    shifted_sparse_attention: bool = False
    attention_group: int | None = None
    landmarks: bool = True
    landmark_design: LandmarkDesign | str = "position_adaptive"
    num_landmarks: int = 8
    landmark_dropout: float = 0.0
    share_landmarks: bool = False
    share_gates: bool = False
    replication_noncausal_pooling: bool = False
    replication_bucket_range: int | None = None
    replication_untrained: ReplicationUntrained = "nothing"
    landmark_bucketing: LandmarkBucketing = "fixed"
    bucketing_study: str | None = None
    num_buckets: int = 32
    bucket_spacing: BucketSpacing = "log"
    max_positions: int | None = None
    temperature: float = 0.02
    boundary_lr_scale: float = 1.0
    boundary_init: BoundaryInit = "log"
    boundary_warmup: float = 0.0
    boundary_diversity: float = 0.0
    boundary_repulsion: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = [*self._bucket_problems(), *self._design_problems()]
        problems += [*self._attention_problems(), *self._replication_problems()]
        if self.boundary_warmup > 0 and self.boundary_init != "fixed":
            problems.append(
                f"boundary_warmup {self.boundary_warmup} needs boundary_init 'fixed', "
                f"got {self.boundary_init!r}"
            )
        if self.target_modules is not None and not self.target_modules:
            problems.append("target_modules must name at least one module, got []")
        if ALL_LINEAR in (self.target_modules or ()) and self.target_modules != (ALL_LINEAR,):
            problems.append(
                f"target_modules {list(self.target_modules or ())}: {ALL_LINEAR!r} includes every "
                "other name; give it alone"
            )
        if problems:
            raise InputError(problems)

    def _bucket_problems(self) -> list[str]:
        if not self.has_buckets:
            return []
        problems = []
        if self.landmark_bucketing == "auto" and self.bucketing_study is None:
            problems.append(
                "landmark_bucketing 'auto' needs bucketing_study, the folder of a confirmed study"
            )
        if self.max_positions is not None and self.num_buckets > self.max_positions:
            problems.append(
                f"num_buckets {self.num_buckets} exceeds the block of {self.max_positions} "
                "positions; use at most one bucket a position"
            )
        if self.num_buckets < 2 and self.landmark_bucketing != "fixed":
            problems.append(
                f"num_buckets must be at least 2 with landmark_bucketing "
                f"{self.landmark_bucketing!r}, got {self.num_buckets}; "
                "a single bucket has no boundary and needs landmark_bucketing 'fixed'"
            )
        if self.landmark_bucketing == "soft" and (unused := self.boundary_training()):
            problems.append(
                f"landmark_bucketing 'soft' never trains boundaries, so {' and '.join(unused)} "
                "would do nothing; leave unset, or use landmark_bucketing 'learnable'"
            )
        return problems

    def _design_problems(self) -> list[str]:
        problems = []
        design = self.landmark_design
        if self.landmark_bucketing in ("learnable", "soft") and design != "position_adaptive":
            problems.append(
                f"landmark_bucketing {self.landmark_bucketing!r} needs landmark_design "
                f"'position_adaptive', got {design!r}"
            )
        if self.share_landmarks and design != "per_layer":
            problems.append(f"share_landmarks needs landmark_design 'per_layer', got {design!r}")
        if self.share_gates and not self.share_landmarks:
            problems.append("share_gates needs share_landmarks, got share_landmarks False")
        if self.replication_noncausal_pooling and design not in ("global", "per_layer"):
            problems.append(
                "replication_noncausal_pooling needs landmark_design 'global' or 'per_layer', "
                f"got {design!r}"
            )
        return problems

    def _attention_problems(self) -> list[str]:
        problems, group, length = [], self.tokens_in_group, self.max_positions
        if self.attention_group is not None and not self.shifted_sparse_attention:
            problems.append(
                f"attention_group {self.attention_group} needs shifted_sparse_attention true"
            )
        in_attention = self.has_landmarks and self.landmark_design == "attention"
        if self.shifted_sparse_attention and in_attention:
            problems.append(
                "shifted_sparse_attention does not work with landmark_design 'attention'; "
                "choose another design or attend fully"
            )
        if group is not None and length is not None and not 2 <= group <= length // 2:
            problems.append(
                f"groups of {group} tokens (attention_group) don't fit a block of {length} "
                "positions; shifted_sparse_attention needs 2 groups of 2 tokens at least"
            )
        return problems

    def _replication_problems(self) -> list[str]:
        problems = []
        buckets = self.landmark_bucketing if self.has_buckets else "no"
        reach, untrained = self.replication_bucket_range, self.replication_untrained
        if reach is not None and buckets != "fixed":
            problems.append(
                f"replication_bucket_range {reach} needs fixed buckets, got {buckets} buckets"
            )
        if untrained != "nothing" and buckets != "learnable":
            problems.append(
                f"replication_untrained {untrained!r} needs learnable buckets, got {buckets} "
                "buckets"
            )
        return problems

    def resolved(self) -> "HyLoRADAConfig":
        """Return the configuration with ``landmark_bucketing="auto"`` replaced by the verdict.

        The verdict is read from the files of ``bucketing_study``, a path relative to the working
        folder. Without buckets there is nothing to decide, and ``auto`` becomes ``fixed``.

        Raises:
            InputError: ``bucketing_study`` is not a confirmed study, is damaged, or compares no
                learnable with a fixed arm.
        """
        if self.landmark_bucketing != "auto":
            return self
        if not self.has_buckets or self.bucketing_study is None:
            return dataclasses.replace(self, landmark_bucketing="fixed")
        bucketing = decided_bucketing(self.bucketing_study)
        return dataclasses.replace(self, landmark_bucketing=bucketing)

    @property
    def has_landmarks(self) -> bool:
        """Whether the adapter has any landmarks."""
        return self.landmarks and self.num_landmarks > 0

    @property
    def tokens_in_group(self) -> int | None:
        """Tokens in a group of S2-Attn; None with full attention, or while no length is known."""
        if not self.shifted_sparse_attention:
            return None
        if self.attention_group is not None or self.max_positions is None:
            return self.attention_group
        return self.max_positions // 4

    @property
    def has_buckets(self) -> bool:
        """Whether the landmarks' gates depend on position buckets."""
        return self.has_landmarks and self.landmark_design == "position_adaptive"

    @property
    def learns_boundaries(self) -> bool:
        """Whether the boundaries of the buckets are trained.

        Raises:
            InputError: ``landmark_bucketing`` is ``auto``, and the study decides.
        """
        if self.has_buckets and self.landmark_bucketing == "auto":
            raise InputError(
                "landmark_bucketing 'auto' is not decided yet; call resolved() on the configuration"
            )
        return self.has_buckets and self.landmark_bucketing == "learnable"

    @property
    def has_soft_buckets(self) -> bool:
        """Whether the buckets are soft, with boundaries that are trained or not.

        Raises:
            InputError: ``landmark_bucketing`` is ``auto``, and the study decides.
        """
        return self.learns_boundaries or (self.has_buckets and self.landmark_bucketing == "soft")

    def boundary_training(self) -> list[str]:
        """Return name and value of each field on the training of boundaries that is not default."""
        # a dataclass keeps each default as an attribute of its class
        fields = [n for n in _OF_TRAINED_BOUNDARIES if getattr(self, n) != getattr(type(self), n)]
        return [f"{name} {getattr(self, name)}" for name in fields]

    @property
    def scaling(self) -> float:
        """Scale of the LoRA update: alpha/sqrt(r) with rsLoRA, alpha/r without."""
        return self.lora_alpha / (math.sqrt(self.r) if self.use_rslora else self.r)


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(_Config):
    """The training of an adapter; names are those of transformers' ``TrainingArguments``.

    Attributes:
        max_steps: optimizer steps of a full run; the schedule ends there, even for a run that is
            stopped early.
        batch_size: blocks per step.
        learning_rate: peak learning rate of everything but the boundaries.
        lr_scheduler_type: shape of the decay to 0 after the warm-up (``constant``: no decay).
        warmup_ratio: share of the steps with a linearly rising learning rate.
        weight_decay: AdamW's weight decay on matrices; boundaries, scales and biases have none.
        max_grad_norm: the adapter's gradient is clipped to this norm.
        adam_beta1: AdamW's decay rate of the first moment.
        adam_beta2: AdamW's decay rate of the second moment.
        adam_epsilon: the constant that AdamW adds to the root of the second moment.
        replication_bf16: hold the adapter's parameters, their gradients and both moments in
            bfloat16, as the published code did. Only a :class:`Seat` does so; only to reproduce
            published figures.
        replication_pads: train and evaluate on one row a paragraph, filled up with end-of-text
            tokens that count in the loss, as the published code did. Only studies do so.
    """

    max_steps: int = 250
    batch_size: int = 4
    learning_rate: float = 2e-3
    lr_scheduler_type: SchedulerType = "cosine"
    warmup_ratio: float = 0.05
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    replication_bf16: bool = False
    replication_pads: bool = False
