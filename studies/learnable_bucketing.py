"""Do learned bucket boundaries beat fixed ones?

Three arms: no landmarks, fixed buckets, learnable boundaries.
"""

from studies.spec.arms import Arm
from studies.spec.space import Choice, Parameter, Range, Space
from studies.spec.study import Study

DESCRIPTION = "fixed against learned bucket boundaries of position-adaptive landmarks"

_LANDMARKS = Choice((4, 8, 16))
_BUCKETS = Choice((8, 16, 32))
_WEIGHTS = Choice((0.0, 0.001, 0.01, 0.1))

_BASELINE = Arm(config={"landmarks": False})

# The bucket count is searched here too, or the learnable arm could win by its bucket count alone.
_FIXED = Arm(
    config={"landmark_bucketing": "fixed"},
    space=Space.of(
        num_landmarks=_LANDMARKS,
        num_buckets=_BUCKETS,
        bucket_spacing=Choice(("log", "linear")),
    ),
)

_LEARNABLE = Arm(
    config={"landmark_bucketing": "learnable"},
    space=Space.of(
        num_landmarks=_LANDMARKS,
        num_buckets=_BUCKETS,
        temperature=Range(1e-3, 1e-1, log=True),
        boundary_lr_scale=Range(0.1, 30.0, log=True),
        boundary_init=Choice(("log", "uniform", "random", "fixed")),
        boundary_warmup=Parameter(Range(0.1, 0.7), when=("boundary_init", "fixed")),
        boundary_diversity=_WEIGHTS,
        boundary_repulsion=_WEIGHTS,
    ),
)

STUDY = Study(
    definition="learnable_bucketing",
    name="learnable_bucketing",
    subject="Learning the boundaries",
    trials=4,
    eval_every=8,
    eval_blocks=12,
    test_blocks=100,
    grace_steps=8,
    # One draw serves a trial of every arm: paired seeds cancel noise only between runs of equal
    # learning rate. Above 4e-3 the built-in base nears the edge of stability: at 8e-3 seeds differ
    # ten times as much.
    common=Space.of(learning_rate=Range(5e-4, 4e-3, log=True)),
    searches=5,
    profile=(0.5, 1.0, 2.0),
    seeds=1,
    defaults={
        "r": 8,
        "lora_alpha": 16.0,
        "position_bias": True,
        "max_steps": 32,
        "batch_size": 2,
    },
    arms={"baseline": _BASELINE, "fixed": _FIXED, "learnable": _LEARNABLE},
    comparisons=(("learnable", "fixed"), ("learnable", "baseline"), ("fixed", "baseline")),
).to_dict()
