"""Sentences on the adapters of a study: LoRA and all in which they depart from it."""

from collections.abc import Mapping, Sequence
from typing import Any

from studies.analysis.verdict import listed
from studies.files.own_designs import own_designs
from studies.reporting.paper.prose import cite, code
from studies.reporting.paper.settings import can_be, departs, shared_fields
from studies.reporting.shown.values import value_text
from studies.spec.study import Study

_DESIGNS = {
    "position_adaptive": "at the final norm, with gates that depend on the token's content and on "
    "the bucket of its position",
    "global": "at the final norm, with gates that depend on the mean of the hidden states so far",
    "per_layer": "at every layer's MLP, with gates that depend on the maximum of its outputs so "
    "far",
    "attention": "in every layer, as trained keys and values with a softmax of their own",
}
_SPACINGS = {"log": " and logarithmic widths", "linear": " and equal widths"}
_STARTS = {
    "log": "start at the edges of logarithmic buckets",
    "uniform": "start evenly spaced",
    "random": "start at random places",
    "fixed": "start at the edges of logarithmic buckets",
}
_FAULTS = {  # of published code; pooling over future tokens has a sentence of its own
    "replication_bucket_range": "spread fixed buckets linearly over more positions than a block "
    "has",
    "replication_untrained": "leave landmarks or boundaries out of the optimizer",
    "replication_bf16": "hold the adapter, its gradients and both moments in bfloat16",
    "replication_pads": "train and evaluate on one paragraph a row, filled up with end-of-text "
    "tokens that count in the loss",
}


def adapter_sentences(study: Study) -> list[str]:
    """Describe what adapters have in common, the parts and designs that occur, and known faults."""
    shared = shared_fields(study)
    sentences = [_lora(study, shared), _bias(study, shared), _attention(study, shared)]
    sentences += [*_landmarks(study), _faults(study)]
    return [s for s in sentences if s]


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


def _bias(study: Study, shared: Mapping[str, Any]) -> str:
    if not can_be(study, "position_bias", True):
        return ""
    buckets = shared.get("position_bias_buckets")
    count = f" of {buckets} log-spaced position buckets{cite('raffel2020t5')}" if buckets else ""
    where = "" if shared.get("position_bias") else ", in some configurations"
    return f"A trained bias{count} scales the update of each layer by position{where}."


def _attention(study: Study, shared: Mapping[str, Any]) -> str:
    """Describe S2-Attn, if any arm trains with it."""
    if not can_be(study, "shifted_sparse_attention", True):
        return ""
    size = shared.get("attention_group", 0)  # 0 where arms differ
    tokens = study.block_size // 4 if size is None else size
    groups = f"groups of {tokens} tokens" if tokens else "groups of tokens"
    whose = "" if shared.get("shifted_sparse_attention") else " in some configurations"
    return (
        f"While an adapter trains, the heads of the base{whose} attend within {groups}, half of "
        f"the heads in groups shifted by half a group{cite('chen2024longlora')}; evaluation "
        "attends fully."
    )


def _landmarks(study: Study) -> list[str]:
    """Describe the landmarks of the arms that can have any."""
    arms = [a for a in study.arms if can_be(study, "landmarks", True, [a])]
    arms = [a for a in arms if shared_fields(study, [a]).get("num_landmarks") != 0]
    shared = shared_fields(study, arms)
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
    sentences += _counts(study, arms, shared)
    if dropout := shared.get("landmark_dropout"):
        sentences.append(f"Dropout of {value_text(dropout)} acts on what landmarks add.")
    sentences += [*_sharing(study, arms, shared), *_buckets(study, arms)]
    if can_be(study, "replication_noncausal_pooling", True, arms):
        sentences.append(
            "Some landmarks pool over the whole block, so these models see the tokens that they "
            "have to predict."
        )
    return sentences


def _counts(study: Study, arms: Sequence[str], shared: Mapping[str, Any]) -> list[str]:
    named = {"num_landmarks": "landmarks"}
    if can_be(study, "landmark_design", "position_adaptive", arms):
        named["num_buckets"] = "position buckets"
    counts = [
        f"{shared[field]} {name}" for field, name in named.items() if arms and field in shared
    ]
    return [f"Adapters with landmarks have {listed(counts)}."] if counts else []


def _sharing(study: Study, arms: Sequence[str], shared: Mapping[str, Any]) -> list[str]:
    """Say what the layers of design ``per_layer`` share."""
    parts = (("share_landmarks", "one bank of landmarks"), ("share_gates", "one gate and scale"))
    sentences = []
    for field, what in parts:
        if can_be(study, field, True, arms):
            who = "" if shared.get(field) else "In some configurations, "
            sentences.append(f"{who}{'a' if who else 'A'}ll layers share {what}.")
    return sentences


def _buckets(study: Study, arms: Sequence[str]) -> list[str]:
    """Describe each kind of buckets, for the design that has any."""
    arms = [a for a in arms if can_be(study, "landmark_design", "position_adaptive", [a])]
    kinds = ("fixed", "learnable", "soft")
    of_kind = {
        kind: [a for a in arms if can_be(study, "landmark_bucketing", kind, [a])] for kind in kinds
    }
    sentences = []
    if of_kind["fixed"]:
        spacing = shared_fields(study, of_kind["fixed"]).get("bucket_spacing", "")
        sentences.append(f"Fixed buckets have hard edges{_SPACINGS.get(spacing, '')}.")
    if soft := [kind for kind in kinds[1:] if of_kind[kind]]:
        sentences += _soft_buckets(study, soft, [a for kind in soft for a in of_kind[kind]])
    if of_kind["learnable"]:
        sentences += _trained_boundaries(shared_fields(study, of_kind["learnable"]))
    if of_kind["soft"]:
        sentences.append("The boundaries of soft buckets are not trained.")
    if arms and departs(study, "bucketing_study", arms):
        sentences.append("Whether boundaries are learned follows the verdict of an earlier study.")
    return sentences


def _soft_buckets(study: Study, kinds: Sequence[str], arms: Sequence[str]) -> list[str]:
    """Describe the edges of learnable and soft buckets, and where their boundaries start."""
    shared = shared_fields(study, arms)
    width = shared.get("temperature")
    soft = f", sigmoids of temperature {value_text(width)} in units of the block" if width else ""
    sentences = [f"The edges of {listed(kinds)} buckets are smooth{soft}."]
    if start := _STARTS.get(shared.get("boundary_init", "")):
        sentences.append(f"Their boundaries {start}.")
    return sentences


def _trained_boundaries(shared: Mapping[str, Any]) -> list[str]:
    """Describe how boundaries are trained, as far as all arms that learn them share it."""
    scale = shared.get("boundary_lr_scale")
    times = "" if scale == 1 else f"{value_text(scale)} times "
    rate = f" at {times}the learning rate of the rest" if scale else ""
    sentences = [f"Boundaries are trained{rate}, without weight decay, and kept in the block."]
    if held := shared.get("boundary_warmup"):
        sentences.append(f"They are held for the first {100 * held:g} % of the steps.")
    terms = [
        f"{value_text(weight)} times {what}"
        for field, what in (
            ("boundary_diversity", "the standard deviation of the boundaries"),
            ("boundary_repulsion", "the smallest gap between neighbouring boundaries"),
        )
        if (weight := shared.get(field))
    ]
    return [*sentences, *([f"The training loss is lowered by {listed(terms)}."] if terms else [])]


def _faults(study: Study) -> str:
    """Name the faults of published code that configurations repeat on purpose."""
    faults = [does for field, does in _FAULTS.items() if departs(study, field)]
    if not faults:
        return ""
    return f"Some configurations repeat faults of published code: they {listed(faults)}."
