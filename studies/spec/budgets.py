"""The published budgets of a study, and epochs as the optimizer steps that they come to.

Source of the three budgets: the validation protocol of the public HyLoRADA repository, in three
phases of 500, 1,000 and 2,000 training blocks and 1, 3 and 5 epochs; the third names three seeds.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from hylorada import InputError, TrainingConfig, field_problems, nearest
from studies.spec.pace import epoch_steps, parse_pace
from studies.spec.study import Study

BUDGETS: Mapping[str, Mapping[str, int]] = {
    "quick": {"train_blocks": 500, "epochs": 1},
    "full": {"train_blocks": 1000, "epochs": 3},
    "extended": {"train_blocks": 2000, "epochs": 5},
}
PUBLISHED_SEEDS = (42, 123, 456)  # of the extended budget
# Fields from which the number of steps of a study with epochs follows, apart from the batch size.
_DECIDE_STEPS = (
    *("epochs", "train_blocks", "block_size", "model"),
    *("data", "text_column", "document_separator"),
)


def budget_of(study: Study) -> str | None:
    """Return the name of the budget that a study has; None if it has none of the published ones."""
    has = {"train_blocks": study.train_blocks, "epochs": study.epochs}
    return next((name for name, budget in BUDGETS.items() if budget == has), None)


def budget_after(name: str) -> str | None:
    """Return the next larger budget; None after the last."""
    names = [*BUDGETS, None]
    return names[names.index(name) + 1]


def budget_problems(name: str | None) -> list[str]:
    """Return the problems with the name of a budget; an empty list for None."""
    if name is None or name in BUDGETS:
        return []
    return [f"--budget {name!r} is unknown; {nearest(name, BUDGETS)}"]


def giving_way(base: Mapping[str, Any], requested: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a study's values without the steps or epochs that a request overrides.

    Steps and epochs exclude each other, so the one that a user asks for takes the place of the one
    that the study comes with. Reports and rungs that were set for other steps go too.

    Args:
        base: a definition or a stored study, as plain values.
        requested: the same with everything that the user has changed.
    """
    if base.get("epochs") is not None and requested.get("epochs") == base["epochs"]:
        steps = _default(requested, "max_steps")
        if steps is not None and steps != _default(base, "max_steps"):
            return {**base, "epochs": None}
    if requested.get("epochs") is None or not _changes_steps(base, requested):
        return base
    pace = {"eval_every"} if base.get("grace_steps") == 0 else {"eval_every", "grace_steps"}
    kept = {name: value for name, value in base.items() if name not in pace}
    if isinstance(defaults := base.get("defaults"), Mapping):
        kept["defaults"] = {k: v for k, v in defaults.items() if k != "max_steps"}
    return kept


def _changes_steps(base: Mapping[str, Any], requested: Mapping[str, Any]) -> bool:
    if _default(base, "batch_size") != _default(requested, "batch_size"):
        return True
    return any(base.get(name) != requested.get(name) for name in _DECIDE_STEPS)


def _default(values: Mapping[str, Any], name: str) -> Any:
    defaults = values.get("defaults")
    return defaults.get(name) if isinstance(defaults, Mapping) else None


def with_steps(study: Study, num_blocks: int) -> Study:
    """Return a study with epochs as the steps that they come to on its training blocks.

    From then on the steps are fixed: a resumed study compares its stored steps with these.

    Args:
        study: the study; without epochs it is returned as it is.
        num_blocks: training blocks that it uses.

    Raises:
        InputError: ``defaults.max_steps`` is another number, or the steps don't fit reports and
            rungs.
    """
    if study.epochs is None:
        return study
    batch_size = int(study.defaults.get("batch_size", TrainingConfig().batch_size))
    steps = epoch_steps(study.epochs, num_blocks, batch_size)
    given = study.defaults.get("max_steps", steps)
    if given != steps:
        raise InputError(
            f"epochs {study.epochs} over {num_blocks} training blocks in batches of {batch_size} "
            f"makes {steps} steps, but defaults.max_steps is {given}; leave one of the two out, or "
            "restore the text that the steps were counted on"
        )
    filled, problems = parse_pace(
        steps,
        epochs=study.epochs,
        eval_every=study.eval_every,
        grace_steps=study.grace_steps,
        reduction_factor=study.reduction_factor,
    )
    if problems := [*field_problems(TrainingConfig, {"max_steps": steps}), *problems]:
        raise InputError(problems)
    return dataclasses.replace(study, defaults={**study.defaults, "max_steps": steps}, **filled)
