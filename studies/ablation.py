"""What does each part of the adapter add?

The path from LoRA to the whole adapter, one part a step, each step compared with the one before:
rsLoRA's scale, position bias, landmarks with fixed buckets, learnable buckets, and DoRA on top. A
second path adds landmarks to rsLoRA directly, without position bias. Every path is taken twice: on
the attention projections, and on all linear modules (arms named ``all_...``).

All arms train at equal learning rates. rsLoRA's scale is larger than LoRA's, which acts like a
higher rate; ``--set "profile=[0.5, 1, 2]"`` also compares each at its own best rate.
"""

from collections.abc import Mapping
from typing import Any

from studies.spec.arms import Arm
from studies.spec.space import Range, Space
from studies.spec.study import Study

DESCRIPTION = "what each part adds, from LoRA to the whole adapter, on attention or all modules"

_LORA = {"use_rslora": False, "position_bias": False, "landmarks": False}
_RSLORA = {**_LORA, "use_rslora": True}
_BIASED = {**_RSLORA, "position_bias": True}
_FIXED = {**_BIASED, "landmarks": True, "landmark_bucketing": "fixed"}
# At their default rate, boundaries would hardly move in so few steps.
_LEARNABLE = {**_FIXED, "landmark_bucketing": "learnable", "boundary_lr_scale": 10.0}

_ARMS: Mapping[str, Mapping[str, Any]] = {
    "lora": _LORA,
    "rslora": _RSLORA,
    "position_bias": _BIASED,
    "fixed_landmarks": _FIXED,
    "learnable_buckets": _LEARNABLE,
    "dora": {**_LEARNABLE, "use_dora": True},
    "direct_landmarks": {**_FIXED, "position_bias": False},
}
_STEPS = (
    ("rslora", "lora"),
    ("position_bias", "rslora"),
    ("fixed_landmarks", "position_bias"),
    ("learnable_buckets", "fixed_landmarks"),
    ("dora", "learnable_buckets"),
    ("direct_landmarks", "rslora"),
)

_ATTENTION = {name: Arm(config=config) for name, config in _ARMS.items()}
_ALL_LINEAR = {
    f"all_{name}": Arm(config={**config, "target_modules": ["all-linear"]})
    for name, config in _ARMS.items()
}

STUDY = Study(
    definition="ablation",
    name="ablation",
    trials=2,
    eval_every=3,
    eval_blocks=6,
    test_blocks=100,
    grace_steps=6,
    common=Space.of(learning_rate=Range(5e-4, 2e-3, log=True)),
    searches=4,
    seeds=1,
    criteria=True,
    defaults={"r": 8, "lora_alpha": 16.0, "num_landmarks": 8, "max_steps": 18, "batch_size": 2},
    arms={**_ATTENTION, **_ALL_LINEAR},
    comparisons=(*_STEPS, *((f"all_{arm}", f"all_{reference}") for arm, reference in _STEPS)),
).to_dict()
