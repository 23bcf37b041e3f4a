"""The pace of a trial: its steps, its reports and ASHA's rungs, as arithmetic on plain values."""

from collections.abc import Mapping
from typing import Any

from hylorada import TrainingConfig
from studies.spec.arms import Arm
from studies.spec.space import Space

_MOST_REPORTS = 100_000
_REPORTS = 8  # of a trial whose `eval_every` is left open
_RUNGS_FROM = 4  # where `grace_steps` is left open, the first rung is at this fraction of the steps


def epoch_steps(epochs: int, num_blocks: int, batch_size: int) -> int:
    """Return the fewest optimizer steps in which each block is read at least ``epochs`` times.

    Batches straddle epochs (:class:`hylorada.BatchOrder`), so only the last step reads more than
    that.
    """
    return -(-epochs * num_blocks // batch_size)


def rungs(grace_steps: int, reduction_factor: int, max_steps: int) -> tuple[int, ...]:
    """Return ASHA's rungs below ``max_steps``; none if the first one, ``grace_steps``, is 0."""
    steps, rung = [], grace_steps
    while rung and rung < max_steps:
        steps.append(rung)
        rung *= reduction_factor
    return tuple(steps)


def report_steps(eval_every: int, max_steps: int) -> tuple[int, ...]:
    """Return the steps after which a trial is evaluated: every ``eval_every`` and the last."""
    return (*range(eval_every, max_steps, eval_every), max_steps)


def paced(max_steps: int, eval_every: int | None, grace_steps: int | None) -> tuple[int, int]:
    """Return ``eval_every`` and ``grace_steps``, with a value for each that is left open.

    Reports are an eighth of the steps apart, rounded up, or the next shorter distance that divides
    a given ``grace_steps``. The first rung is the report nearest to a quarter of the steps; there
    is none if that is already the last report.
    """
    if eval_every is None:
        eval_every = -(-max_steps // _REPORTS)
        while (grace_steps or 0) % eval_every:
            eval_every -= 1
    if grace_steps is None:
        grace_steps = eval_every * max(1, round(max_steps / _RUNGS_FROM / eval_every))
        grace_steps = grace_steps if grace_steps < max_steps else 0
    return eval_every, grace_steps


def parse_pace(
    max_steps: int | None,
    *,
    epochs: int | None,
    eval_every: int | None,
    grace_steps: int | None,
    reduction_factor: int,
) -> tuple[dict[str, Any], list[str]]:
    """Fill in what a study's pace leaves open, as far as the number of steps is known.

    Returns:
        ``eval_every`` and ``grace_steps``, and why they and the steps don't fit together.
    """
    if max_steps is None and epochs is not None:  # known once the text has been read
        return {"eval_every": eval_every, "grace_steps": grace_steps}, []
    steps = TrainingConfig().max_steps if max_steps is None else max_steps
    every, grace = paced(steps, eval_every, grace_steps)
    problems = _problems(steps, every, grace, reduction_factor)
    return {"eval_every": every, "grace_steps": grace}, problems


def _problems(
    max_steps: int, eval_every: int, grace_steps: int, reduction_factor: int
) -> list[str]:
    if grace_steps > max_steps:
        return [f"grace_steps {grace_steps} exceeds max_steps {max_steps}: ASHA has no rung"]
    if (reports := max_steps // eval_every) > _MOST_REPORTS:
        return [
            f"max_steps {max_steps} with eval_every {eval_every} makes {reports} "
            f"reports a trial, at most {_MOST_REPORTS}; raise eval_every"
        ]
    steps = rungs(grace_steps, reduction_factor, max_steps)
    if any(rung % eval_every for rung in steps):
        return [
            f"ASHA's rungs {list(steps)} must be multiples of eval_every "
            f"{eval_every}; change grace_steps, reduction_factor or eval_every"
        ]
    return []


def batch_size_problems(common: Space, arms: Mapping[str, Arm]) -> list[str]:
    """Return why epochs would give trials of unequal length: their batches have unequal sizes."""
    places = ["common.space"] if "batch_size" in common.parameters else []
    places += [f"arms.{name}" for name, arm in arms.items() if _has_own_batch_size(arm)]
    return [
        f"{place}: with epochs, trials of another batch_size would take other numbers of steps; "
        "set defaults.batch_size alone, or give defaults.max_steps instead of epochs"
        for place in places
    ]


def _has_own_batch_size(arm: Arm) -> bool:
    return "batch_size" in {*arm.config, *arm.space.parameters}


def open_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a study's plain values; with epochs, reports and rungs that are not set are None."""
    if values.get("epochs") is None:
        return dict(values)
    return {"eval_every": None, "grace_steps": None, **values}
