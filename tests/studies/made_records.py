"""Records of a small study, made up in memory."""

import math
from collections.abc import Sequence
from typing import Any

from studies._job import Report
from studies._records import Record
from studies._study import Study

SPACE = {
    "learning_rate": {"low": 1e-3, "high": 1e-1, "log": True},
    "num_buckets": {"choice": [8, 16]},
    "lora_dropout": {"low": 0.0, "high": 0.5, "when": {"num_buckets": 8}},
}


def study(*arms: str) -> Study:
    names = arms or ("baseline", "fixed", "learnable")
    declared = {arm: {"space": SPACE} for arm in names}
    values = {"definition": "own", "name": "own", "block_size": 64, "eval_every": 20, "grace_steps": 20}
    return Study.from_dict({**values, "defaults": {"max_steps": 60}, "arms": declared})


def report(step: int, ppl: float, **fields: Any) -> Report:
    metrics = {"eval/ppl": ppl, "eval/nll": math.log(ppl), "test/ppl": 1.01 * ppl}
    return Report(step=step, metrics=metrics, seconds=1.5, parameters=1234, done=step == 60, **fields)


def record(arm: str, number: int, ppl: Sequence[float], *, stage: Any = "search", **fields: Any) -> Record:
    """A trial with a report every 20 steps; complete if it reached the last."""
    reports = [report(20 * (i + 1), x) for i, x in enumerate(ppl)]
    values = {
        "params": {"learning_rate": 0.0123, "num_buckets": 16},
        "state": "complete" if len(ppl) == 3 else "pruned",
    }
    name = f"{arm}-{'' if stage == 'search' else 'confirm-'}{number:04d}"
    filled = {"adapter": {}, "training": {}, "seed": number, "data_seed": 0, "reports": reports, **values, **fields}
    return Record(name=name, arm=arm, stage=stage, number=number, **filled)


def named(*records: Record) -> dict[str, Record]:
    return {r.name: r for r in records}
