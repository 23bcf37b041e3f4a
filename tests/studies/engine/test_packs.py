"""The engine resumes from a trial's own checkpoint and from no other."""

import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from hylorada import Adapter, HyLoRADAConfig, Pack, TrainingConfig
from hylorada.data.blocks import Blocks
from hylorada.training.checkpoint import write_seat
from studies.engine import report_files
from studies.engine.packs import Engine
from studies.trials.messages import CHECKPOINT, Job, Report

_LENGTH = 16


@pytest.fixture(scope="module")
def engine(toy_model: str) -> Engine:
    ids = np.random.default_rng(0).integers(0, 200, size=(8, _LENGTH), dtype=np.int32)
    blocks = Blocks(ids, np.full(8, 40), dropped_tokens=0, fingerprint="0" * 16)
    return Engine(
        toy_model,
        dtype="float32",
        device="cpu",
        blocks=dict.fromkeys(("train", "validation"), blocks),
    )


def make_job(folder: Path, **changes: Any) -> Job:
    own = {"num_buckets": changes.pop("num_buckets", 4), "r": changes.pop("r", 2)}
    config = HyLoRADAConfig(max_positions=_LENGTH, **own)
    training = TrainingConfig(max_steps=4, batch_size=2).to_dict()
    fields: dict[str, Any] = {"name": "fixed-0000", "seed": 1, "data_seed": 2, **changes}
    return Job(
        **fields,
        adapter=config.to_dict(),
        training=training,
        report_steps=(2, 4),
        folder=str(folder),
    )


def advance(engine: Engine, name: str) -> Report | None:
    """Take a step of one trial, and return its report when its files are written."""
    result = engine.advance([name])[name]
    assert not isinstance(result, Exception)
    return result.result() if isinstance(result, Future) else result


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Return an event without which no checkpoint is written."""
    event, write = threading.Event(), write_seat

    def wait_and_write(*arguments: Any) -> None:
        assert event.wait(20)
        write(*arguments)

    monkeypatch.setattr(report_files, "write_seat", wait_and_write)
    yield event
    event.set()


@pytest.fixture
def trained(engine: Engine, tmp_path: Path) -> Job:
    """Train a trial until its report at step 2, which leaves a checkpoint in its folder."""
    job = make_job(tmp_path / "fixed-0000")
    engine.attach(engine.build(job))
    for _ in range(2):
        advance(engine, job.name)
    engine.detach(job.name)
    assert (tmp_path / "fixed-0000" / CHECKPOINT).exists()
    return job


def test_own_checkpoint_is_continued(engine: Engine, trained: Job) -> None:
    occupant = engine.build(trained)
    assert occupant.last is not None
    assert (occupant.seat.step, occupant.last.step) == (2, 2)


@pytest.mark.parametrize(
    "other",
    [{"name": "fixed-0001"}, {"seed": 7}, {"data_seed": 7}, {"num_buckets": 8}],
    ids=lambda c: next(iter(c)),
)
def test_checkpoint_of_another_trial_is_not_continued(
    engine: Engine, trained: Job, tmp_path: Path, other: dict[str, Any]
) -> None:
    job = make_job(tmp_path / "other", **other)
    shutil.copytree(trained.folder, job.folder)
    occupant, fresh = engine.build(job), engine.build(replace(job, folder=str(tmp_path / "empty")))
    assert (occupant.seat.step, occupant.last, occupant.seconds) == (0, None, 0.0)
    actual, expected = (o.seat.adapter.state_dict() for o in (occupant, fresh))
    assert all(
        bool((actual[name] == expected[name]).all())
        for name in expected
        if not name.startswith("_")
    )


def test_report_comes_when_its_checkpoint_is_there_and_passes_do_not_wait_for_it(
    engine: Engine, tmp_path: Path, gate: threading.Event
) -> None:
    job = make_job(tmp_path / "fixed-0000")
    engine.attach(engine.build(job))
    assert engine.runs_ahead(job.name)
    assert advance(engine, job.name) is None
    assert not engine.runs_ahead(job.name)  # the next step is due a report
    writing = engine.advance([job.name])[job.name]
    assert isinstance(writing, Future)
    assert engine.runs_ahead(job.name)
    assert engine.advance([job.name]) == {job.name: None}
    checkpoint = tmp_path / "fixed-0000" / CHECKPOINT
    assert (writing.done(), checkpoint.exists()) == (False, False)
    gate.set()
    assert writing.result().step == 2
    with safe_open(checkpoint, framework="pt") as file:
        assert file.metadata()["step"] == "2"  # although the seat has taken three
    engine.detach(job.name)


def test_trial_goes_on_bit_for_bit_from_a_checkpoint_written_beside_its_steps(
    engine: Engine, tmp_path: Path, gate: threading.Event
) -> None:
    """The host dies after the report, while the trial runs ahead of the driver's answer."""
    whole, broken = make_job(tmp_path / "whole"), make_job(tmp_path / "broken")
    engine.attach(engine.build(broken))
    for _ in range(3):
        engine.advance([broken.name])
    with ThreadPoolExecutor(1) as other:
        building = other.submit(engine.build, broken)
        with pytest.raises(TimeoutError):
            building.result(0.3)  # the checkpoint is not written yet
        gate.set()
        occupant = building.result()
    assert occupant.seat.step == 2
    engine.attach(occupant)
    last = [advance(engine, broken.name) for _ in range(2)][-1]
    engine.attach(engine.build(whole))
    expected = [advance(engine, whole.name) for _ in range(4)][-1]
    assert last is not None
    assert expected is not None
    assert (last.metrics, last.done) == (expected.metrics, True)
    engine.detach(whole.name)


def test_host_that_dies_before_the_checkpoint_leaves_the_trial_at_the_report_before(
    engine: Engine, trained: Job, gate: threading.Event, tmp_path: Path
) -> None:
    """Its folder is copied at that moment: the driver has not got the report either."""
    engine.attach(engine.build(trained))
    writing = [engine.advance([trained.name])[trained.name] for _ in range(2)][-1]
    assert isinstance(writing, Future)
    assert not writing.done()
    found = replace(trained, folder=str(tmp_path / "found"))
    shutil.copytree(trained.folder, found.folder)
    gate.set()
    whole = writing.result()
    occupant = engine.build(found)
    assert occupant.seat.step == 2
    engine.attach(occupant)
    again = [advance(engine, found.name) for _ in range(2)][-1]
    assert again is not None
    assert (again.step, again.metrics) == (whole.step, whole.metrics)
    engine.detach(found.name)


def test_trials_report_the_same_whether_layers_are_recomputed(
    toy_model: str, engine: Engine, tmp_path: Path
) -> None:
    recomputing = Engine(
        toy_model,
        dtype="float32",
        device="cpu",
        blocks=engine.blocks,
        gradient_checkpointing=True,
    )
    metrics: list[Any] = []
    for each in (engine, recomputing):
        job = make_job(tmp_path / f"{len(metrics)}")
        each.attach(each.build(job))
        reports = [advance(each, job.name) for _ in range(2)]
        each.detach(job.name)
        assert reports[-1] is not None
        metrics.append(reports[-1].metrics)
    assert metrics[0] == metrics[1]


def test_trials_of_unequal_rank_share_the_pass_of_their_lane(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[list[int]] = []

    def count(pack: Pack) -> None:
        whole = pack.token_nll

        def counted(adapters: Sequence[Adapter], ids: torch.Tensor) -> torch.Tensor:
            passes.append([a.config.r for a in adapters])
            return whole(adapters, ids)

        monkeypatch.setattr(pack, "token_nll", counted)

    for pack in engine._lanes.packs:
        count(pack)
    jobs = [make_job(tmp_path / str(r), name=f"rank-{r}", r=r) for r in (2, 4, 8, 16)]
    for job in jobs:
        engine.attach(engine.build(job))
    assert engine.advance([job.name for job in jobs]) == dict.fromkeys(
        f"rank-{r}" for r in (2, 4, 8, 16)
    )
    assert len(passes) == min(len(engine._lanes.packs), len(jobs))
    assert sorted(r for ranks in passes for r in ranks) == [2, 4, 8, 16]
    for job in jobs:
        engine.detach(job.name)


def test_job_with_pads_trains_and_is_evaluated_on_padded_rows(
    toy_model: str, tmp_path: Path
) -> None:
    """It equals a job without pads in an engine whose blocks are the padded rows."""
    rng = np.random.default_rng(1)
    plain, padded = (
        Blocks(rng.integers(0, 200, size=(n, _LENGTH), dtype=np.int32), np.full(n, 40), 0, "0" * 16)
        for n in (8, 6)
    )
    own = {"train": plain, "validation": plain}
    both = own | {"train_padded": padded, "validation_padded": padded}
    engines = [
        Engine(toy_model, dtype="float32", device="cpu", blocks=blocks)
        for blocks in (both, {"train": padded, "validation": padded})
    ]
    job = make_job(tmp_path / "one")
    jobs = (
        replace(job, training={**job.training, "replication_pads": True}),
        replace(job, folder=str(tmp_path / "two")),
    )
    metrics = []
    for engine, each in zip(engines, jobs, strict=True):
        engine.attach(engine.build(each))
        reports = [advance(engine, each.name) for _ in range(2)]
        assert reports[-1] is not None
        metrics.append(reports[-1].metrics)
    assert metrics[0] == metrics[1]


def test_peak_memory_is_that_of_trials_not_of_the_search_for_their_number(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    monkeypatch.setattr(engine, "_on_gpu", True)
    monkeypatch.setattr(engine, "_rate", lambda *_: events.append("measured"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: events.append("reset"))
    assert engine.find_seats(batch_size=2) == 1
    assert events == ["measured", "reset"]
