"""The times that the bench's engine notes at each report of a real pack."""

import json
from pathlib import Path

import numpy as np

from hylorada import HyLoRADAConfig, TrainingConfig
from hylorada.data.blocks import Blocks
from studies.bench.timed_engine import PARTS, TIMES, TimedEngine
from studies.trials.messages import Job

_LENGTH = 16


def _job(name: str, folder: Path) -> Job:
    return Job(
        name=name,
        adapter=HyLoRADAConfig(max_positions=_LENGTH, num_buckets=4, r=2).to_dict(),
        training=TrainingConfig(max_steps=4, batch_size=2).to_dict(),
        seed=1,
        data_seed=2,
        report_steps=(2, 4),
        folder=str(folder / name),
    )


def test_parts_of_all_reports_grow_and_fit_into_the_clock(toy_model: str, tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 200, size=(8, _LENGTH), dtype=np.int32)
    blocks = Blocks(ids, np.full(8, 40), dropped_tokens=0, fingerprint="0" * 16)
    splits = dict.fromkeys(("train", "validation"), blocks)
    engine = TimedEngine(model=toy_model, dtype="float32", device="cpu", blocks=splits)
    names = ["a", "b"]
    for name in names:
        engine.attach(engine.build(_job(name, tmp_path)))
    for _ in range(4):
        engine.advance(names)
    first, last = map(json.loads, (tmp_path / TIMES).read_text().splitlines())
    assert (first["step"], last["step"]) == (2, 4)
    spent = {part: last[part] - first[part] for part in PARTS}
    assert min(spent.values()) > 0
    assert sum(spent.values()) < last["clock"] - first["clock"]
