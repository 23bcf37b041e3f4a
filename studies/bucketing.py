"""Which kind of position buckets is best?

From a single bucket to hard edges, soft edges, and learned ones. Softness and learning are compared
separately: ``soft`` has the same soft buckets as ``learned_log``, with boundaries that never train.
The other learned arms differ from ``learned_log`` in one thing each: where the boundaries start
(``learned_uniform``, ``learned_random``), a curriculum that first holds them still, or a
regularizer. Only the learning rate is searched; :mod:`studies.learnable_bucketing` searches the
settings of the buckets too.
"""

from collections.abc import Mapping
from typing import Any

from studies.spec.arms import Arm
from studies.spec.space import Range, Space
from studies.spec.study import Study

DESCRIPTION = "one, hard, soft and learned position buckets; starts, curriculum, regularizers"

# At their default rate, boundaries would hardly move in so few steps.
_LEARNED = {"landmark_bucketing": "learnable", "boundary_init": "log", "boundary_lr_scale": 10.0}

_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "no_buckets": {"landmark_bucketing": "fixed", "num_buckets": 1},
    "hard_linear": {"landmark_bucketing": "fixed", "bucket_spacing": "linear"},
    "hard_log": {"landmark_bucketing": "fixed", "bucket_spacing": "log"},
    "soft": {"landmark_bucketing": "soft", "boundary_init": "log"},
    "learned_log": _LEARNED,
    "learned_uniform": {**_LEARNED, "boundary_init": "uniform"},
    "learned_random": {**_LEARNED, "boundary_init": "random"},
    "curriculum": {**_LEARNED, "boundary_init": "fixed", "boundary_warmup": 0.3},
    "diversity": {**_LEARNED, "boundary_diversity": 0.1},
    "repulsion": {**_LEARNED, "boundary_repulsion": 0.1},
}

STUDY = Study(
    definition="bucketing",
    name="bucketing",
    subject="Learning the boundaries",
    trials=2,
    eval_every=8,
    eval_blocks=8,
    test_blocks=100,
    grace_steps=8,
    common=Space.of(learning_rate=Range(5e-4, 4e-3, log=True)),
    searches=5,
    seeds=1,
    defaults={
        "r": 8,
        "lora_alpha": 16.0,
        "position_bias": True,
        "num_landmarks": 8,
        "max_steps": 32,
        "batch_size": 2,
    },
    arms={name: Arm(config=config) for name, config in _CONFIGS.items()},
    comparisons=(
        ("learned_log", "soft"),
        ("soft", "hard_log"),
        ("learned_log", "hard_log"),
        ("hard_log", "no_buckets"),
        ("hard_log", "hard_linear"),
        ("learned_uniform", "learned_log"),
        ("learned_random", "learned_log"),
        ("curriculum", "learned_log"),
        ("diversity", "learned_log"),
        ("repulsion", "learned_log"),
    ),
).to_dict()
