"""Sentences on the adapters of a study: what they are, how they train, what each arm searches."""

from collections.abc import Iterable, Mapping
from typing import Any

from studies.analysis.results import Results
from studies.analysis.verdict import listed
from studies.files.own_designs import own_designs
from studies.reporting.figures.plots import value_text
from studies.reporting.paper.prose import cite, code
from studies.spec.space import Choice, Parameter, Range
from studies.spec.study import Study

_DESIGNS = {
    "position_adaptive": "at the final norm, with gates that depend on the token's content and on "
    "the bucket of its position",
    "global": "at the final norm, with gates that depend on the mean of the hidden states so far",
    "per_layer": "at every layer's MLP, with gates that depend on the maximum of its outputs so "
    "far",
    "attention": "in every layer, as trained keys and values with a softmax of their own",
}


def shared_fields(study: Study) -> dict[str, Any]:
    """Return the fields that have one value in all arms and are searched in none."""
    arms = [study.fields(arm) for arm in study.arms]
    searched = {n for arm in study.arms for n in study.space(arm).parameters}
    return {
        n: value
        for n, value in arms[0].items()
        if n not in searched and all(other[n] == value for other in arms)
    }


def can_be(study: Study, name: str, value: Any, arms: Iterable[str] | None = None) -> bool:
    """Return whether any arm, of all or of these, fixes or searches this value of a field."""
    for arm in study.arms if arms is None else arms:
        declared = study.space(arm).parameters.get(name)
        fixed = declared is None and study.fields(arm)[name] == value
        if fixed or (declared is not None and declared.values.contains(value)):
            return True
    return False


def adapter_sentences(study: Study) -> list[str]:
    """Describe what the adapters of all arms have in common, and the designs that occur."""
    shared = shared_fields(study)
    return [s for s in (_lora(study, shared), _bias(shared), *_landmarks(study, shared)) if s]


def _lora(study: Study, shared: Mapping[str, Any]) -> str:
    modules = shared.get("target_modules")
    targets = "the attention projections" if modules is None else listed([*map(code, modules)])
    where = f" of {targets}" if "target_modules" in shared else ""
    parts = [
        f"{name} {value_text(shared[field])}"
        for field, name in (("r", "rank"), ("lora_alpha", "alpha"), ("lora_dropout", "dropout"))
        if field in shared
    ]
    text = f"Every adapter trains low-rank updates{cite('hu2022lora')}{where}"
    text += f" ({', '.join(parts)})" if parts else ""
    if shared.get("use_rslora"):
        text += f", scaled by alpha / sqrt(rank){cite('kalajdzievski2023rslora')}"
    elif shared.get("use_rslora") is False:
        text += ", scaled by alpha / rank"
    elif can_be(study, "use_rslora", True):
        text += f", in part scaled by alpha / sqrt(rank){cite('kalajdzievski2023rslora')}"
    if can_be(study, "use_dora", True):
        who = "" if shared.get("use_dora") else " in some configurations"
        text += f", with a trained magnitude of each output feature{who}{cite('liu2024dora')}"
    return f"{text}."


def _bias(shared: Mapping[str, Any]) -> str:
    if not shared.get("position_bias"):
        return ""
    buckets = shared.get("position_bias_buckets")
    count = f" of {buckets} log-spaced position buckets{cite('raffel2020t5')}" if buckets else ""
    return f"A trained bias{count} scales the update of each layer by position."


def _landmarks(study: Study, shared: Mapping[str, Any]) -> list[str]:
    """Describe each landmark design that an arm with landmarks fixes or searches."""
    arms = [a for a in study.arms if can_be(study, "landmarks", True, [a])]
    sentences = []
    for design, where in _DESIGNS.items():
        if can_be(study, "landmark_design", design, arms):
            source = cite("zhang2023llamaadapter") if design == "attention" else ""
            sentences.append(f"Landmarks of design {code(design)} are added {where}{source}.")
    for design in own_designs(study.to_dict()):
        file = design.partition(":")[0]
        sentences.append(
            f"Landmarks of design {code(design)}, our own, are added at the final norm; "
            f"{code(f'designs/{file}')} defines them."
        )
    counts = [
        f"{shared[field]} {name}"
        for field, name in (("num_landmarks", "landmarks"), ("num_buckets", "position buckets"))
        if arms and field in shared
    ]
    if counts:
        sentences.append(f"Adapters with landmarks have {listed(counts)}.")
    if can_be(study, "replication_noncausal_pooling", True, arms):
        sentences.append(
            "Some landmarks pool over the whole block, so these models see the tokens that they "
            "have to predict."
        )
    return sentences


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
    text += f" for {study.max_steps:,} steps" if "max_steps" in shared else ""
    text += f" of {shared['batch_size']} blocks" if "batch_size" in shared else ""
    return [f"{text}.", *_schedule(shared)]


def _schedule(shared: Mapping[str, Any]) -> list[str]:
    if not {"lr_scheduler_type", "warmup_ratio"} <= shared.keys():
        return []
    kind, share = shared["lr_scheduler_type"], shared["warmup_ratio"]
    warmup = (
        f"rose linearly over the first {100 * share:g} % of the steps and then " if share else ""
    )
    after = "stayed constant" if kind == "constant" else f"fell to 0 on a {kind} schedule"
    return [f"The learning rate {warmup}{after}."]
