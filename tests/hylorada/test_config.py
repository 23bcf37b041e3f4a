"""Configurations: conversion to and from JSON, and errors that name every problem at once."""

import dataclasses
import json
import math
import re
from typing import Any

import pytest

from hylorada import HyLoRADAConfig, InputError, TrainingConfig
from hylorada.config_values import field_problems

CHANGED: dict[str, Any] = {
    "r": 3,
    "lora_alpha": 5.5,
    "use_rslora": False,
    "lora_dropout": 0.25,
    "target_modules": ("q_proj", "k_proj"),
    "position_bias": False,
    "position_bias_buckets": 9,
    "landmarks": False,
    "num_landmarks": 0,
    "landmark_dropout": 0.125,
    "landmark_bucketing": "learnable",
    "num_buckets": 5,
    "bucket_spacing": "linear",
    "max_positions": 64,
    "temperature": 0.3,
    "boundary_lr_scale": 2.0,
    "boundary_init": "fixed",
    "boundary_warmup": 0.5,
    "boundary_diversity": 0.1,
    "boundary_repulsion": 0.2,
    "bucketing_study": "mlruns/studies/x",
}


def test_json_round_trip_keeps_every_field() -> None:
    config = HyLoRADAConfig(**CHANGED)
    default = HyLoRADAConfig()
    designed = HyLoRADAConfig(
        landmark_design="per_layer",
        share_landmarks=True,
        share_gates=True,
        replication_noncausal_pooling=True,
        use_dora=True,
        shifted_sparse_attention=True,
        attention_group=8,
    )
    published = (
        HyLoRADAConfig(replication_bucket_range=32_768),
        HyLoRADAConfig(landmark_bucketing="learnable", replication_untrained="landmarks"),
    )
    fields = [f.name for f in dataclasses.fields(config)]
    others = (config, designed, *published)
    assert [n for n in fields if {getattr(o, n) for o in others} == {getattr(default, n)}] == []
    for other in others:
        assert HyLoRADAConfig.from_json(other.to_json()) == other
    assert HyLoRADAConfig.from_json(default.to_json()) == default
    assert json.loads(config.to_json())["target_modules"] == ["q_proj", "k_proj"]


def test_training_json_round_trip_keeps_every_field() -> None:
    default = TrainingConfig()
    changed: dict[str, Any] = {"lr_scheduler_type": "linear", "max_steps": 7, "batch_size": 3}
    changed |= {"replication_bf16": True, "replication_pads": True}
    changed |= {n: 0.125 for n in default.to_dict() if n not in changed}
    config = TrainingConfig.from_dict(changed)
    assert all(getattr(config, n) != getattr(default, n) for n in default.to_dict())
    assert TrainingConfig.from_json(config.to_json()) == config


def test_configs_are_frozen_and_hashable() -> None:
    config = HyLoRADAConfig(**CHANGED)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'r'"):
        config.r = 4  # type: ignore[misc]
    assert hash(config) == hash(HyLoRADAConfig.from_json(config.to_json()))


@pytest.mark.parametrize("names", [["q_proj"], ["all-linear"]])
def test_list_of_modules_is_as_good_as_a_tuple(names: Any) -> None:
    config = HyLoRADAConfig(target_modules=names)
    names.append("k_proj")  # the configuration keeps its own
    assert config.target_modules == tuple(names[:1])
    assert config == HyLoRADAConfig(target_modules=tuple(names[:1]))
    assert config == HyLoRADAConfig.from_json(config.to_json())
    assert hash(config) == hash(HyLoRADAConfig.from_json(config.to_json()))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("temprature", "unknown field 'temprature'; did you mean 'temperature'?"),
        ("num_bucket", "unknown field 'num_bucket'; did you mean 'num_buckets'?"),
        ("zzz", "unknown field 'zzz'; one of: attention_group, bound"),
    ],
)
def test_unknown_field_is_refused_with_the_nearest_name(name: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        HyLoRADAConfig.from_dict({name: 1})
    assert str(caught.value).startswith(message)


def test_all_problems_come_at_once() -> None:
    values = {
        "r": 0,
        "temprature": 0.1,
        "boundary_init": "logg",
        "lora_dropout": 1.5,
        "landmarks": 1,
        "num_buckets": 8,
    }
    with pytest.raises(InputError, match="r must be at least 1, got 0") as caught:
        HyLoRADAConfig.from_dict(values)
    assert caught.value.problems == [
        "r must be at least 1, got 0",
        "unknown field 'temprature'; did you mean 'temperature'?",
        "boundary_init 'logg' is unknown; did you mean 'log'?",
        "lora_dropout must be at least 0 and at most 0.99, got 1.5",
        "landmarks must be true or false, got 1",
    ]
    assert str(caught.value) == "\n".join(caught.value.problems)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("r", True, "r must be a whole number, got True"),
        ("r", 8.0, "r must be a whole number, got 8.0"),
        ("r", "8", "r must be a whole number, got '8'"),
        ("r", None, "r must be a whole number, got None"),
        ("lora_alpha", True, "lora_alpha must be a number, got True"),
        ("lora_alpha", "16", "lora_alpha must be a number, got '16'"),
        ("use_rslora", 1, "use_rslora must be true or false, got 1"),
        ("position_bias", "yes", "position_bias must be true or false, got 'yes'"),
        ("max_positions", 64.0, "max_positions must be a whole number or null, got 64.0"),
        ("max_positions", True, "max_positions must be a whole number or null, got True"),
        (
            "target_modules",
            "q_proj",
            "target_modules must be a list of names or null, got 'q_proj'",
        ),
        ("target_modules", (1,), r"target_modules must be a list of names or null, got \(1,\)"),
        (
            "landmark_bucketing",
            None,
            "landmark_bucketing None is unknown; one of: auto, fixed, learnable, soft",
        ),
        ("landmark_bucketing", ["fixed"], r"landmark_bucketing \['fixed'\] is unknown"),
        ("landmark_design", "globl", "landmark_design 'globl' is unknown; did you mean 'global'"),
    ],
)
def test_wrong_type_is_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        HyLoRADAConfig(**{field: value})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("lora_alpha", 0.0, "lora_alpha must be above 0, got 0.0"),
        ("lora_alpha", math.nan, "lora_alpha must be finite, got nan"),
        ("temperature", 0, "temperature must be above 0, got 0"),
        ("temperature", math.inf, "temperature must be finite, got inf"),
        ("lora_dropout", -0.1, "lora_dropout must be at least 0 and at most 0.99, got -0.1"),
        ("num_buckets", 0, "num_buckets must be at least 1, got 0"),
        ("position_bias_buckets", 1, "position_bias_buckets must be at least 2, got 1"),
        ("landmark_dropout", 1.0, "landmark_dropout must be at least 0 and at most 0.99, got 1.0"),
        ("num_landmarks", -1, "num_landmarks must be at least 0, got -1"),
        ("boundary_lr_scale", -1.0, "boundary_lr_scale must be at least 0, got -1.0"),
        ("boundary_warmup", 1.1, "boundary_warmup must be at least 0 and at most 1, got 1.1"),
        ("boundary_diversity", -1.0, "boundary_diversity must be at least 0, got -1.0"),
        ("boundary_repulsion", -1.0, "boundary_repulsion must be at least 0, got -1.0"),
        ("max_positions", 1, "max_positions must be at least 2, got 1"),
    ],
)
def test_value_outside_its_limits_is_refused(field: str, value: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        HyLoRADAConfig(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_steps", 0, "max_steps must be at least 1, got 0"),
        ("batch_size", 0, "batch_size must be at least 1, got 0"),
        ("learning_rate", 0.0, "learning_rate must be above 0, got 0.0"),
        (
            "lr_scheduler_type",
            "cosin",
            "lr_scheduler_type 'cosin' is unknown; did you mean 'cosine'?",
        ),
        ("warmup_ratio", 2.0, "warmup_ratio must be at least 0 and at most 1, got 2.0"),
        ("weight_decay", -0.1, "weight_decay must be at least 0, got -0.1"),
        ("max_grad_norm", 0.0, "max_grad_norm must be above 0, got 0.0"),
        ("adam_beta1", 1.0, "adam_beta1 must be at least 0 and at most 1, got 1.0"),
        ("adam_beta2", 1.0, "adam_beta2 must be at least 0 and at most 1, got 1.0"),
        ("adam_epsilon", 0.0, "adam_epsilon must be above 0, got 0.0"),
    ],
)
def test_training_value_outside_its_limits_is_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        TrainingConfig(**{field: value})
    assert str(caught.value) == message


def test_fields_are_checked_against_each_other() -> None:
    with pytest.raises(
        InputError, match="num_buckets 32 exceeds the block of 16 positions"
    ) as caught:
        HyLoRADAConfig(max_positions=16, boundary_warmup=0.1, target_modules=())
    assert caught.value.problems[1:] == [
        "boundary_warmup 0.1 needs boundary_init 'fixed', got 'log'",
        "target_modules must name at least one module, got []",
    ]
    HyLoRADAConfig(max_positions=32)
    HyLoRADAConfig(max_positions=16, landmarks=False)
    HyLoRADAConfig(boundary_warmup=0.1, boundary_init="fixed")


def test_design_fields_are_checked_against_each_other() -> None:
    with pytest.raises(InputError) as caught:
        HyLoRADAConfig(
            landmark_design="attention",
            landmark_bucketing="learnable",
            share_landmarks=True,
            replication_noncausal_pooling=True,
        )
    assert caught.value.problems == [
        "landmark_bucketing 'learnable' needs landmark_design 'position_adaptive', got 'attention'",
        "share_landmarks needs landmark_design 'per_layer', got 'attention'",
        "replication_noncausal_pooling needs landmark_design 'global' or 'per_layer', "
        "got 'attention'",
    ]
    HyLoRADAConfig(
        landmark_design="per_layer", share_landmarks=True, replication_noncausal_pooling=True
    )
    HyLoRADAConfig(
        landmark_design="global", max_positions=16
    )  # there are no buckets to be too many


def test_gates_are_shared_only_with_landmarks() -> None:
    problem = "share_gates needs share_landmarks, got share_landmarks False"
    with pytest.raises(InputError, match=problem):
        HyLoRADAConfig(landmark_design="per_layer", share_gates=True)
    HyLoRADAConfig(landmark_design="per_layer", share_landmarks=True, share_gates=True)


def test_all_linear_stands_alone() -> None:
    assert HyLoRADAConfig(target_modules=("all-linear",)).target_modules == ("all-linear",)
    problem = r"target_modules \['q_proj', 'all-linear'\]: 'all-linear' includes every other name"
    with pytest.raises(InputError, match=problem):
        HyLoRADAConfig(target_modules=("q_proj", "all-linear"))


@pytest.mark.parametrize("bucketing", ["learnable", "soft", "auto"])
def test_single_bucket_must_be_fixed(bucketing: Any) -> None:
    with pytest.raises(
        InputError,
        match=f"num_buckets must be at least 2 with landmark_bucketing '{bucketing}', got 1; a sin",
    ):
        HyLoRADAConfig(landmark_bucketing=bucketing, num_buckets=1, bucketing_study="x")
    assert HyLoRADAConfig(num_buckets=1).has_buckets
    HyLoRADAConfig(landmark_bucketing=bucketing, num_buckets=1, landmarks=False)


def test_fields_that_would_do_nothing_are_refused_with_soft_buckets() -> None:
    trained: dict[str, Any] = {"boundary_lr_scale": 5, "boundary_warmup": 0.2}
    weights: dict[str, Any] = {"boundary_diversity": 0.1, "boundary_repulsion": 0.3}
    with pytest.raises(InputError) as caught:
        HyLoRADAConfig(
            landmark_bucketing="soft", boundary_init="fixed", temperature=0.1, **trained, **weights
        )
    assert caught.value.problems == [
        "landmark_bucketing 'soft' never trains boundaries, so boundary_lr_scale 5 and "
        "boundary_warmup 0.2 and boundary_diversity 0.1 and boundary_repulsion 0.3 would do "
        "nothing; leave unset, or use landmark_bucketing 'learnable'"
    ]
    default: dict[str, Any] = {"boundary_lr_scale": 1, "boundary_repulsion": 0}
    HyLoRADAConfig(landmark_bucketing="soft", boundary_init="fixed", **default)
    HyLoRADAConfig(landmark_bucketing="soft", landmarks=False, **trained, boundary_init="fixed")


def test_soft_buckets_need_a_design_with_buckets() -> None:
    with pytest.raises(InputError, match="'soft' needs landmark_design 'position_adaptive', got"):
        HyLoRADAConfig(landmark_bucketing="soft", landmark_design="global")


def test_shifted_sparse_attention_is_checked_against_block_group_and_design() -> None:
    with pytest.raises(InputError, match="does not work with landmark_design 'attention'") as both:
        HyLoRADAConfig(
            shifted_sparse_attention=True,
            landmark_design="attention",
            max_positions=16,
            attention_group=9,
        )
    assert both.value.problems[1:] == [
        "groups of 9 tokens (attention_group) don't fit a block of 16 positions; "
        "shifted_sparse_attention needs 2 groups of 2 tokens at least"
    ]
    with pytest.raises(InputError, match="don't fit a block of 7 positions"):
        HyLoRADAConfig(shifted_sparse_attention=True, landmarks=False, max_positions=7)
    with pytest.raises(InputError, match="attention_group 4 needs shifted_sparse_attention true"):
        HyLoRADAConfig(attention_group=4)
    with pytest.raises(InputError, match="attention_group must be at least 2, got 1"):
        HyLoRADAConfig(shifted_sparse_attention=True, attention_group=1)
    HyLoRADAConfig(shifted_sparse_attention=True, landmark_design="attention", landmarks=False)
    HyLoRADAConfig(shifted_sparse_attention=True, landmarks=False, max_positions=8)


def test_properties_follow_the_fields() -> None:
    assert HyLoRADAConfig(landmark_bucketing="soft").has_soft_buckets
    assert not HyLoRADAConfig(landmark_bucketing="soft").learns_boundaries
    assert not HyLoRADAConfig(landmark_bucketing="soft", landmarks=False).has_soft_buckets
    assert HyLoRADAConfig(landmark_bucketing="learnable").has_soft_buckets
    assert not HyLoRADAConfig().has_soft_buckets
    assert HyLoRADAConfig().has_landmarks
    assert not HyLoRADAConfig(num_landmarks=0).has_landmarks
    assert not HyLoRADAConfig(landmarks=False).has_landmarks
    assert HyLoRADAConfig(landmark_bucketing="learnable").learns_boundaries
    assert not HyLoRADAConfig(landmark_bucketing="learnable", num_landmarks=0).learns_boundaries
    assert not HyLoRADAConfig().learns_boundaries


def test_field_problems_of_good_values_are_none() -> None:
    assert field_problems(HyLoRADAConfig, CHANGED) == []
    assert field_problems(TrainingConfig, {"learning_rate": 1, "weight_decay": 0}) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"landmark_bucketing": "learnable", "replication_bucket_range": 32_768},
            "replication_bucket_range 32768 needs fixed buckets, got learnable buckets",
        ),
        (
            {"landmark_design": "global", "replication_bucket_range": 32_768},
            "replication_bucket_range 32768 needs fixed buckets, got no buckets",
        ),
        (
            {"replication_untrained": "boundaries"},
            "replication_untrained 'boundaries' needs learnable buckets, got fixed buckets",
        ),
        ({"replication_bucket_range": 1}, "replication_bucket_range must be at least 2, got 1"),
    ],
)
def test_replication_flag_without_what_it_changes_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        HyLoRADAConfig(**changes)
