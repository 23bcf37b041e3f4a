"""Compare arms of your own: does DoRA help, with and without landmarks?

Run it from anywhere: ``python own_arms.py``. It takes about half a minute on two cores and writes
to ``mlruns`` in the current folder. The budget is far too small for an answer; raise ``searches``,
``trials`` and ``max_steps`` for one.
"""

from studies import Arm, Choice, Range, Space, Study, run_study

_RANKS = Space.of(r=Choice((4, 8)))

study = Study(
    definition="dora",
    name="dora",
    subject="DoRA",
    arms={
        "lora": Arm(config={"landmarks": False}, space=_RANKS),
        "dora": Arm(config={"landmarks": False, "use_dora": True}, space=_RANKS),
        "dora_landmarks": Arm(config={"use_dora": True}, space=_RANKS),
    },
    comparisons=(("dora", "lora"), ("dora_landmarks", "dora")),
    # One draw of the learning rate serves a trial of every arm.
    common=Space.of(learning_rate=Range(5e-4, 4e-3, log=True)),
    defaults={"max_steps": 8, "batch_size": 2},
    searches=2,
    trials=1,
    seeds=1,
    eval_every=4,
    grace_steps=4,
    eval_blocks=8,
    test_blocks=20,
)

if __name__ == "__main__":
    results = run_study(study)
    print(results.comparisons[["change", "low", "high", "outcome"]])
    print(results.verdict)
