"""A study's share of the training text, and its epochs as steps, once the text has been read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hylorada import InputError
from studies.learnable_bucketing import STUDY
from studies.process.options import Options
from studies.runner.inputs import Material, prepare
from studies.spec.study import Study
from studies.trials.store import Store

_VALUES: dict[str, Any] = {
    "definition": "own",
    "name": "own",
    "block_size": 32,
    "defaults": {"batch_size": 3, "num_buckets": 8},
    "arms": {"one": {}},
    "eval_blocks": 4,
    "test_blocks": 8,
}


def _prepared(model: str, storage: Path, **changes: Any) -> tuple[Study, Material]:
    study = Study.from_dict({**_VALUES, "model": model, **changes})
    return study, prepare(study, Options(storage=storage))


def test_study_reads_the_first_of_its_training_blocks(toy_model: str, tmp_path: Path) -> None:
    _, whole = _prepared(toy_model, tmp_path)
    _, first = _prepared(toy_model, tmp_path, train_blocks=20)
    ids = whole.blocks["train"].input_ids
    assert np.array_equal(first.blocks["train"].input_ids, ids[:20])
    assert first.provenance["train_blocks"] == 20
    assert first.provenance["train_tokens"] == whole.provenance["train_tokens"]
    differing = {k for k, v in first.inputs().items() if v != whole.inputs()[k]}
    assert differing == {"train_fingerprint"}
    assert first.text_notes[-1] == f"text train: the first 20 of {len(ids):,} blocks"
    assert len(whole.text_notes) == len(first.text_notes) - 1


def test_epochs_are_counted_on_the_blocks_that_are_read(toy_model: str, tmp_path: Path) -> None:
    study, material = _prepared(toy_model, tmp_path, train_blocks=20, epochs=2)
    settled = material.settled(study)
    assert (settled.max_steps, settled.eval_every, settled.grace_steps) == (14, 2, 4)
    assert material.text_notes[-1] == (
        "budget: 2 epochs of 20 blocks are 14 steps a trial; a report every 2, "
        "ASHA's first rung at 4"
    )
    assert material.provenance["study_fingerprint"] == settled.fingerprint()
    assert material.settled(settled) == settled


def test_shorter_text_is_read_whole(toy_model: str, tmp_path: Path) -> None:
    study, material = _prepared(toy_model, tmp_path, train_blocks=10**6, epochs=1)
    blocks = material.provenance["train_blocks"]
    assert material.settled(study).max_steps == -(-blocks // 3)
    assert f"all of its {blocks:,} blocks, fewer than train_blocks" in material.text_notes[-2]


def test_steps_of_another_text_are_refused(toy_model: str, tmp_path: Path) -> None:
    study, material = _prepared(toy_model, tmp_path, train_blocks=20, epochs=2)
    stored = material.settled(study)
    with pytest.raises(InputError, match="over 20 training blocks in batches of 3 makes 14 steps"):
        _prepared(
            toy_model,
            tmp_path,
            train_blocks=20,
            epochs=2,
            defaults={**stored.defaults, "max_steps": 15},
        )


def test_folder_from_before_the_fields_resumes(tmp_path: Path) -> None:
    study = Study.from_dict({**STUDY, "document_separator": "eos"})
    Store(tmp_path / "s", study).close()
    path = tmp_path / "s" / "study.json"
    values = json.loads(path.read_text())
    for name in ("train_blocks", "epochs", "seed_list", "seal", "id"):
        del values[name]
    path.write_text(json.dumps(values))
    Store(tmp_path / "s", study).close()
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match="train_blocks was None, now 9"):
        Store(tmp_path / "s", Study.from_dict({**study.to_dict(), "train_blocks": 9}))
