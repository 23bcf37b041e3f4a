"""The engine of one host: a pack on one device, with seats that trials take and leave at report boundaries."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hylorada import (
    Adapter,
    BatchOrder,
    Blocks,
    Diverged,
    Evaluation,
    HyLoRADAConfig,
    Pack,
    Seat,
    TrainingConfig,
    evaluate,
    load_base,
    load_seat,
    save_seat,
    train_step,
)

from ._job import Job, Report

CHECKPOINT = "checkpoint.safetensors"
BLOCK_NLL = "test_block_nll.npy"


@dataclass
class _Occupant:
    """A seat and the trial that sits in it."""

    job: Job
    seat: Seat
    last: Report | None = None
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def next_report(self) -> int:
        return next(s for s in self.job.report_steps if s > self.seat.step)


class Engine:
    """Trains whatever trials are attached, all in one pass.

    Args:
        model: name of the base.
        dtype: of the base, ``float32``, ``bfloat16`` or ``float64``.
        device: torch device.
        blocks: the splits ``train``, ``validation`` and ``test``.
    """

    def __init__(self, model: str, *, dtype: str, device: str, blocks: Mapping[str, Blocks]) -> None:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self.base = load_base(model, dtype=getattr(torch, dtype), device=device)
        self.pack = Pack(self.base, compile_backend="inductor" if self.base.device.type == "cuda" else None)
        self._train_ids = torch.from_numpy(blocks["train"].input_ids).to(self.base.device)
        self.blocks = blocks
        self.occupants: dict[str, _Occupant] = {}

    def attach(self, job: Job) -> None:
        """Seat a trial, from its checkpoint if it has one."""
        adapter = Adapter(self.base, HyLoRADAConfig.from_dict(job.adapter), seed=job.seed)
        training = TrainingConfig.from_dict(job.training)
        train = self.blocks["train"]
        seat = Seat(adapter, training, BatchOrder(train.num_blocks, training.batch_size, job.data_seed))
        occupant = _Occupant(job, seat)
        checkpoint = Path(job.folder) / CHECKPOINT
        if checkpoint.exists():
            occupant.last = Report.from_dict(load_seat(seat, checkpoint))
            occupant.seconds = occupant.last.seconds
        self.occupants[job.name] = occupant

    def detach(self, name: str) -> None:
        self.occupants.pop(name, None)

    def stored_report(self, name: str, after: int) -> Report | None:
        """The checkpoint's report, if the driver hasn't seen it: a crash may come between checkpoint and report."""
        last = self.occupants[name].last
        return last if last is not None and last.step > after else None

    def advance(self, names: Sequence[str]) -> dict[str, Report | Exception | None]:
        """One optimizer step of the named seats, and a report for each that has come to one.

        Returns:
            By name a report, an exception that fails this trial alone, or None where the trial goes on.
        """
        began = time.perf_counter()
        seated = {n: self.occupants[n] for n in names}
        losses = train_step(self.pack, {n: o.seat for n, o in seated.items()}, self._train_ids)
        due: dict[str, _Occupant] = {}
        results: dict[str, Report | Exception | None] = {}
        for name, loss in losses.items():
            occupant = seated[name]
            results[name] = None
            if isinstance(loss, Diverged):
                results[name] = self._diverged(occupant, loss)
            else:
                occupant.losses.append(loss)
                if occupant.seat.step in occupant.job.report_steps:
                    due[name] = occupant
        self._charge(seated.values(), began)
        results.update(self._report(due))
        return results

    def evaluate_base(self, split: str) -> dict[str, float]:
        """The figures of the base alone."""
        found = evaluate(self.pack, [], self.blocks[split])[0]
        return {**found.metrics(), "tokens": found.tokens}

    def _report(self, due: Mapping[str, _Occupant]) -> dict[str, Report | Exception | None]:
        """Evaluate together the seats that have come to a report, and save each."""
        if not due:
            return {}
        began = time.perf_counter()
        evaluations = evaluate(self.pack, [o.seat.adapter for o in due.values()], self.blocks["validation"])
        last = {n: o for n, o in due.items() if o.job.test and o.seat.step == o.job.report_steps[-1]}
        tests = evaluate(self.pack, [o.seat.adapter for o in last.values()], self.blocks["test"]) if last else []
        by_name = dict(zip(last, tests, strict=True))
        self._charge(due.values(), began)
        results: dict[str, Report | Exception | None] = {}
        for (name, occupant), evaluation in zip(due.items(), evaluations, strict=True):
            try:
                results[name] = self._save(occupant, evaluation, by_name.get(name))
            except Exception as error:  # e.g. a full disk: this trial's fault alone
                results[name] = error
        return results

    def _save(self, occupant: _Occupant, evaluation: Evaluation, test: Evaluation | None) -> Report:
        seat, job = occupant.seat, occupant.job
        if not np.isfinite(evaluation.nll):
            return self._diverged(occupant, Diverged("validation loss", seat.step))
        metrics = {"train/nll": float(np.mean(occupant.losses)) if occupant.losses else float("nan")}
        metrics |= {f"eval/{k}": v for k, v in evaluation.metrics().items()}
        folder = Path(job.folder)
        folder.mkdir(parents=True, exist_ok=True)
        block_nll = None
        if test is not None:
            metrics |= {f"test/{k}": v for k, v in test.metrics().items()}
            block_nll = str(folder / BLOCK_NLL)
            _save_array(test.block_nll, folder / BLOCK_NLL)
        report = Report(
            **_described(seat),
            step=seat.step,
            metrics=metrics,
            seconds=occupant.seconds,
            done=seat.step == job.report_steps[-1],
            block_nll=block_nll,
        )
        occupant.losses = []
        occupant.last = report
        save_seat(seat, folder / CHECKPOINT, report.to_dict())
        return report

    @staticmethod
    def _diverged(occupant: _Occupant, error: Diverged) -> Report:
        return Report(
            **_described(occupant.seat), step=error.step, seconds=occupant.seconds, done=True, diverged=str(error)
        )

    @staticmethod
    def _charge(occupants: Any, began: float) -> None:
        """Split the time since ``began`` evenly: a trial's time is its share of the pack's."""
        sharing = list(occupants)
        share = (time.perf_counter() - began) / max(1, len(sharing))
        for occupant in sharing:
            occupant.seconds += share


def _described(seat: Seat) -> dict[str, Any]:
    """The fields of a report that describe the adapter."""
    now, start = seat.adapter.learned_boundaries(), seat.adapter.start_boundaries()
    return {
        "boundaries": () if now is None else tuple(now.tolist()),
        "start_boundaries": () if start is None else tuple(start.tolist()),
        "parameters": seat.adapter.num_parameters(),
        "applied": seat.applied(),
    }


def _save_array(values: Any, path: Path) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        np.save(file, values, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
