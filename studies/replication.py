"""What is left of the published figures when the faults of the code behind them are put right?

Every claim is measured as it was published, without any fault, and with each fault switched on or
off alone. :mod:`studies.spec.published` lists claims and faults.
"""

from studies.spec.arms import Arm
from studies.spec.published import CLAIMS, REPLICATION, published_arms
from studies.spec.study import Study

DESCRIPTION = "the published claims, with each fault of their code switched on and off alone"

# Nothing is searched: every run has the same learning rate, so one search says all, and the seeds
# are the replicates.
STUDY = Study(
    definition=REPLICATION,
    name=REPLICATION,
    trials=1,
    eval_every=24,
    eval_blocks=2,
    test_blocks=60,
    grace_steps=0,
    seeds=4,
    defaults={
        "r": 8,
        "lora_alpha": 16.0,
        "learning_rate": 3e-3,
        "max_steps": 24,
        "batch_size": 2,
    },
    arms={name: Arm(config=config) for name, config in published_arms().items()},
    comparisons=tuple(
        claim.pair(faults) for claim in CLAIMS for faults in (frozenset(), claim.all_faults)
    ),
).to_dict()
