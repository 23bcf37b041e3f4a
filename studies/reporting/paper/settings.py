"""Sentences on the settings of a study: what each arm fixes and searches, and how all train."""

from collections.abc import Iterable, Mapping
from typing import Any

from hylorada import HyLoRADAConfig, TrainingConfig
from studies.analysis.results import Results
from studies.analysis.verdict import listed
from studies.reporting.paper.prose import cite, code
from studies.reporting.shown.values import value_text
from studies.spec.space import Choice, Parameter, Range
from studies.spec.study import Study


def shared_fields(study: Study, arms: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the fields that have one value in all arms, or in all of these, and no searched one.

    Args:
        study: The study.
        arms: Names of arms; None means all of them.
    """
    names = list(study.arms if arms is None else arms)
    fields = [study.fields(arm) for arm in names]
    searched = {n for arm in names for n in study.space(arm).parameters}
    return {
        n: value
        for n, value in (fields[0] if fields else {}).items()
        if n not in searched and all(other[n] == value for other in fields)
    }


def can_be(study: Study, name: str, value: Any, arms: Iterable[str] | None = None) -> bool:
    """Return whether any arm, of all or of these, fixes or searches this value of a field."""
    for arm in study.arms if arms is None else arms:
        declared = study.space(arm).parameters.get(name)
        fixed = declared is None and study.fields(arm)[name] == value
        if fixed or (declared is not None and declared.values.contains(value)):
            return True
    return False


def departs(study: Study, name: str, arms: Iterable[str] | None = None) -> bool:
    """Return whether any arm, of all or of these, can have another value than the default."""
    default = {**HyLoRADAConfig().to_dict(), **TrainingConfig().to_dict()}[name]
    for arm in study.arms if arms is None else arms:
        if name in study.space(arm).parameters or study.fields(arm)[name] != default:
            return True
    return False


def arm_sentences(study: Study, results: Results) -> list[str]:
    """Describe each arm: its trainable parameters, what it fixes and what it searches."""
    sizes = {a.arm: a.parameters for a in results.arms}
    sentences = []
    for name, arm in study.arms.items():
        size = f" ({sizes[name]:,} trainable parameters as confirmed)" if name in sizes else ""
        fixes = [f"{code(n)} = {code(value_text(v))}" for n, v in arm.config.items()]
        searches = [_searched(n, p) for n, p in arm.space.parameters.items()]
        parts = [f"fixes {listed(fixes)}"] if fixes else []
        parts += [f"searches {'; '.join(searches)}"] if searches else []
        does = " and ".join(parts) or "fixes and searches nothing of its own"
        sentences.append(f"The arm {code(name)}{size} {does}.")
    if study.common.parameters:
        common = "; ".join(_searched(n, p) for n, p in study.common.parameters.items())
        sentences.append(f"All arms search {common}.")
    return sentences


def _searched(name: str, parameter: Parameter) -> str:
    when = parameter.when
    condition = f" (if {code(when[0])} is {code(value_text(when[1]))})" if when else ""
    return f"{code(name)} {_values(parameter.values)}{condition}"


def _values(values: Range | Choice) -> str:
    if isinstance(values, Range):
        scale = ", on a log scale" if values.log else ""
        return f"from {values.low:g} to {values.high:g}{scale}"
    return f"among {listed([code(value_text(o)) for o in values.options])}"


def training_sentences(study: Study) -> list[str]:
    """Describe the optimizer, its schedule and the batches, as far as all arms share them."""
    shared = shared_fields(study)
    text = f"Adapters were trained with AdamW{cite('loshchilov2019adamw')}"
    parts = [
        f"{name} {value_text(shared[field])}"
        for field, name in (
            ("learning_rate", "learning rate"),
            ("adam_beta1", "beta1"),
            ("adam_beta2", "beta2"),
            ("adam_epsilon", "epsilon"),
            ("weight_decay", "weight decay"),
            ("max_grad_norm", "gradients clipped to norm"),
        )
        if field in shared
    ]
    text += f" ({', '.join(parts)})" if parts else ""
    text += _length(study, shared)
    text += f" of {shared['batch_size']} blocks" if "batch_size" in shared else ""
    return [f"{text}.", *_schedule(shared)]


def _length(study: Study, shared: Mapping[str, Any]) -> str:
    """Return the length of a training in steps, and in epochs where the study gives it so."""
    if "max_steps" not in shared or not study.knows_steps:
        return ""
    steps = f" for {study.max_steps:,} steps"
    if study.epochs is None:
        return steps
    return f"{steps} ({study.epochs} epoch{'s' * (study.epochs > 1)})"


def _schedule(shared: Mapping[str, Any]) -> list[str]:
    if not {"lr_scheduler_type", "warmup_ratio"} <= shared.keys():
        return []
    kind, share = shared["lr_scheduler_type"], shared["warmup_ratio"]
    warmup = (
        f"rose linearly over the first {100 * share:g} % of the steps and then " if share else ""
    )
    after = "stayed constant" if kind == "constant" else f"fell to 0 on a {kind} schedule"
    return [f"The learning rate {warmup}{after}."]
