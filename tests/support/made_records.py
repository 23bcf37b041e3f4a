"""Invented records of a small study, in memory."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from hylorada import Adapter, BatchOrder, HyLoRADAConfig, Seat, TrainingConfig, save_seat
from hylorada.adapters.landmarks.position_adaptive import PositionLandmark
from studies.spec.study import Study
from studies.trials.messages import CHECKPOINT, Report
from studies.trials.records import Record

SPACE = {
    "learning_rate": {"low": 1e-3, "high": 1e-1, "log": True},
    "num_buckets": {"choice": [8, 16]},
    "lora_dropout": {"low": 0.0, "high": 0.5, "when": {"num_buckets": 8}},
}


def study(*arms: str, **changes: Any) -> Study:
    names = arms or ("baseline", "fixed", "learnable")
    declared = {arm: {"space": SPACE} for arm in names}
    values = {
        "definition": "own",
        "name": "own",
        "block_size": 64,
        "eval_every": 20,
        "grace_steps": 20,
    }
    return Study.from_dict({**values, "defaults": {"max_steps": 60}, "arms": declared, **changes})


def report(step: int, ppl: float, **fields: Any) -> Report:
    metrics = {"eval/ppl": ppl, "eval/nll": math.log(ppl), "test/ppl": 1.01 * ppl}
    return Report(
        step=step, metrics=metrics, seconds=1.5, parameters=1234, done=step == 60, **fields
    )


def record(
    arm: str, number: int, ppl: Sequence[float], *, stage: Any = "search", **fields: Any
) -> Record:
    """Return a trial with a report every 20 steps, complete if it has reached the last step."""
    reports = [report(20 * (i + 1), x) for i, x in enumerate(ppl)]
    values = {
        "params": {"learning_rate": 0.0123, "num_buckets": 16},
        "state": "complete" if len(ppl) == 3 else "pruned",
    }
    name = f"{arm}-{'' if stage == 'search' else 'confirm-'}{number:04d}"
    filled = {
        "adapter": {},
        "training": {},
        "seed": number,
        "data_seed": 0,
        "reports": reports,
        **values,
        **fields,
    }
    return Record(name=name, arm=arm, stage=stage, number=number, **filled)


def named(*records: Record) -> dict[str, Record]:
    return {r.name: r for r in records}


def gated_run(
    folder: Path,
    base: PreTrainedModel,
    config: HyLoRADAConfig,
    gates: Mapping[tuple[int, int], float],
    boundaries: Sequence[float] = (),
) -> Record:
    """Return a confirm run, and save its adapter in a study's folder.

    Args:
        folder: the study's folder.
        base: the adapter's base.
        config: the adapter's config.
        gates: gate logits by bucket and landmark; all others are 0.
        boundaries: boundaries in token positions, if they are learned.
    """
    adapter = Adapter(base, config, seed=0)
    assert isinstance(adapter.landmark, PositionLandmark)
    with torch.no_grad():
        adapter.landmark.position_gates.zero_()
        for place, logit in gates.items():
            adapter.landmark.position_gates[place] = logit
        if adapter.boundaries is not None:
            adapter.boundaries.copy_(torch.tensor(boundaries) / adapter.landmark.max_positions)
    run = record(
        "fixed", 0, [15, 15, 14], stage="confirm", adapter=config.to_dict(), winner="fixed-0000"
    )
    trial = folder / "trials" / run.name
    trial.mkdir(parents=True)
    save_seat(Seat(adapter, TrainingConfig(), BatchOrder(4, 2, 0)), trial / CHECKPOINT, {})
    return run
