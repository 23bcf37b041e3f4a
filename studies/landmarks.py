"""Which landmark design helps most, and at what cost?

Six designs against an adapter without landmarks. The number of landmarks is fixed, so that each
design has one number of parameters; only the learning rate is searched. For other sizes, use
``--set defaults.num_landmarks=4``.
"""

from studies.spec.arms import Arm
from studies.spec.space import Range, Space
from studies.spec.study import Study

DESCRIPTION = "landmark designs against no landmarks: gain, parameters, stability"

_PER_LAYER = {"landmark_design": "per_layer"}

_DESIGNS = {
    "global": Arm(config={"landmark_design": "global"}),
    "per_layer": Arm(config=_PER_LAYER),
    "shared_landmarks": Arm(config={**_PER_LAYER, "share_landmarks": True}),
    "shared_gates": Arm(config={**_PER_LAYER, "share_landmarks": True, "share_gates": True}),
    "attention": Arm(config={"landmark_design": "attention"}),
    "position_adaptive": Arm(config={"landmark_design": "position_adaptive"}),
}

STUDY = Study(
    definition="landmarks",
    name="landmarks",
    trials=2,
    eval_every=4,  # eight reports a run, because the first four are not judged for spikes
    eval_blocks=8,
    test_blocks=100,
    grace_steps=8,
    common=Space.of(learning_rate=Range(5e-4, 4e-3, log=True)),
    searches=5,
    seeds=1,
    criteria=True,
    defaults={
        "r": 8,
        "lora_alpha": 16.0,
        "position_bias": True,
        "num_landmarks": 8,
        "max_steps": 32,
        "batch_size": 2,
    },
    arms={"baseline": Arm(config={"landmarks": False}), **_DESIGNS},
    comparisons=tuple((design, "baseline") for design in _DESIGNS),
).to_dict()
