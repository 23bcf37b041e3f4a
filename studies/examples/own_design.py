"""Compare a landmark design of your own with those of the package.

Run it from anywhere: ``python own_design.py``. It takes about half a minute on two cores and
writes to ``mlruns`` in the current folder. The design is the class in ``sigmoid_gates.py``, which
the study reads once and keeps: it resumes with the code that it began with, and refuses to go on
with another. The budget is far too small for an answer; raise ``searches``, ``trials`` and
``max_steps`` for one.
"""

from pathlib import Path

from studies import Arm, Choice, Range, Space, Study, run_study

_SIGMOID = f"{Path(__file__).with_name('sigmoid_gates.py')}:SigmoidGates"
_SPACE = Space.of(num_landmarks=Choice((4, 8)))

study = Study(
    definition="gates",
    name="gates",
    subject="Gating each landmark by itself",
    arms={
        "baseline": Arm(config={"landmarks": False}),
        # One bucket: gates that depend on the text alone, as those of the own design do.
        "softmax": Arm(config={"num_buckets": 1}, space=_SPACE),
        "sigmoid": Arm(config={"landmark_design": _SIGMOID}, space=_SPACE),
    },
    comparisons=(("sigmoid", "softmax"), ("sigmoid", "baseline")),
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
