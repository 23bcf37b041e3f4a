"""The engine of one host: the packs of one device, which trials join and leave at their reports."""

import io
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
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
    DoesNotFit,
    Evaluation,
    HyLoRADAConfig,
    InputError,
    Lanes,
    Seat,
    TrainingConfig,
    load_base,
    load_landmark_design,
    load_seat,
    probe,
    read_step,
)
from hylorada.multi_adapter.spread_base import is_spread
from hylorada.runtime.checksums import digest
from hylorada.runtime.cores import available_cores
from hylorada.runtime.devices import own_threads
from hylorada.runtime.memory import process_peak
from hylorada.training.checkpoint import copy_seat
from studies.engine.report_files import ReportFiles, Unwritten
from studies.files.folder_files import patiently
from studies.trials.messages import CHECKPOINT, OWNER, Job, Report, block_file, split_for

BLOCK_NLL = block_file("test")
PADDED_TRAIN = split_for("train", {"replication_pads": True})
_PROBED_SEATS = (4, 8, 16, 32, 64)
_PROBE_STEPS = 4
_IO_THREADS = 8  # threads that build and save seats

# What a pass gives for a trial: a report; a report whose files are still being written; an
# exception that fails only this trial; or None if the trial continues without a report.
Result = Report | Future[Report] | Exception | None


@dataclass
class Occupant:
    """A seat and the trial that sits in it."""

    job: Job
    seat: Seat
    last: Report | None = None
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0


class Engine:
    """The engine that trains all attached trials in one pass, in one thread and its lanes.

    Args:
        model: name of the base.
        dtype: data type of the base, ``float32``, ``bfloat16`` or ``float64``.
        device: torch device.
        designs: source of each landmark design of the user's own, by its name.
        gradient_checkpointing: whether the backward pass computes decoder layers again.
        device_map: how the base lies on all GPUs that the process sees; ``none`` puts it on one.
        quantization: how the base's weights are stored, see :func:`hylorada.load_base`.
        blocks: the splits ``train`` and ``validation``, and those that jobs evaluate at their end;
            for jobs with ``replication_pads`` the padded rows of each, too.
    """

    def __init__(
        self,
        model: str,
        *,
        dtype: str,
        device: str,
        blocks: Mapping[str, Blocks],
        designs: Mapping[str, str] | None = None,
        gradient_checkpointing: bool = False,
        device_map: str = "none",
        quantization: str = "none",
    ) -> None:
        torch.set_num_threads(available_cores())
        for design, source in (designs or {}).items():
            load_landmark_design(design, source)
        self.base = load_base(
            model,
            dtype=getattr(torch, dtype),
            device=device,
            device_map=None if device_map == "none" else device_map,
            quantization=quantization,
        )
        self.spread = is_spread(self.base)
        # accelerate's hooks, which move hidden states between GPUs, can't be compiled, and whether
        # products with 4-bit weights can has not been tried
        compiles = not self.spread and quantization == "none"
        self._lanes = Lanes(
            self.base,
            compile_backend="inductor" if device == "cuda" and compiles else None,
            gradient_checkpointing=gradient_checkpointing,
        )
        padded = [blocks[PADDED_TRAIN]] if PADDED_TRAIN in blocks else []
        train_ids = np.concatenate([b.input_ids for b in (blocks["train"], *padded)])
        self._train_ids = torch.from_numpy(train_ids).to(self.base.device)
        self.blocks = blocks
        self._on_gpu = self.base.device.type == "cuda"
        self.occupants: dict[str, Occupant] = {}
        # Steps that the device may not have finished.
        self._unread: list[tuple[list[Any], dict[str, Occupant]]] = []
        # The initializer is explained at `Lanes`.
        self._io = ThreadPoolExecutor(_IO_THREADS, initializer=own_threads, initargs=(1,))
        self._files = ReportFiles(self._io)

    def probe(self, jobs: Sequence[Job]) -> None:
        """Try one job of each arm; see :func:`hylorada.probe`.

        Raises:
            InputError: a job can't run on this base.
        """
        probe(self._lanes.packs[0], [self._seat(job) for job in jobs], self._train_ids)

    def build(self, job: Job) -> Occupant:
        """Build a seat for a trial, from its checkpoint if it has one.

        This may run during a pass, because it touches nothing that the pass uses. It waits first
        for a checkpoint that is still being written for an earlier process of the trial. If the
        checkpoint is damaged or belongs to another trial, the trial trains again from its first
        step, with the same result.
        """
        self._files.wait(job.name)
        return self._io.submit(self._occupant, job).result()

    def _occupant(self, job: Job) -> Occupant:
        checkpoint = Path(job.folder) / CHECKPOINT
        if checkpoint.exists():
            # Opened once before, because safetensors hides why a file can't be read.
            patiently(lambda: checkpoint.open("rb").close(), checkpoint, what="read")
            seat = self._seat(job)
            with suppress(InputError):
                extra = load_seat(seat, checkpoint)
                if extra.pop(OWNER, job.digest()) == job.digest():
                    last = Report.from_dict(extra)
                    return Occupant(job, seat, last, seconds=last.seconds)
        return Occupant(job, self._seat(job))

    def _seat(self, job: Job) -> Seat:
        adapter = Adapter(self.base, HyLoRADAConfig.from_dict(job.adapter), seed=job.seed)
        training = TrainingConfig.from_dict(job.training)
        # Padded rows follow the blocks in the array of training blocks.
        split = split_for("train", job.training)
        first = self.blocks["train"].num_blocks if split == PADDED_TRAIN else 0
        order = BatchOrder(
            self.blocks[split].num_blocks, training.batch_size, job.data_seed, first=first
        )
        return Seat(adapter, training, order)

    def attach(self, occupant: Occupant) -> None:
        """Add a trial to the packs."""
        self.occupants[occupant.job.name] = occupant

    def detach(self, name: str) -> None:
        """Remove a trial from the packs, if it is there."""
        self.occupants.pop(name, None)

    def stored_report(self, name: str, after: int) -> Report | None:
        """Return the checkpoint's report if the driver hasn't seen it, else None.

        A crash may come between checkpoint and report.
        """
        last = self.occupants[name].last
        return last if last is not None and last.step > after else None

    def runs_ahead(self, name: str) -> bool:
        """Return whether a trial may take its next step before the driver has asked for it.

        It may not if that step is due a report: the checkpoint would replace that of the report
        before, which the driver may not have stored yet.
        """
        occupant = self.occupants[name]
        next_step = occupant.seat.step + 1
        return not self.is_done(name) and next_step not in occupant.job.report_steps

    def is_done(self, name: str) -> bool:
        """Return whether a trial has taken its last step."""
        occupant = self.occupants[name]
        return occupant.seat.step >= occupant.job.report_steps[-1]

    def advance(self, names: Sequence[str]) -> dict[str, Result]:
        """Take one optimizer step in the named seats, and report those for which a report is due.

        The files of a report are written by other threads, while the next pass may already run.

        On a GPU the step is only queued: the results of one step are read while the next one runs,
        unless a report is due. A divergence is therefore noticed one step late; its report still
        names the step at which it happened.

        Returns:
            A :data:`Result` for each name.
        """
        began = time.perf_counter()
        seated = {n: self.occupants[n] for n in names}
        started = self._lanes.start_step({n: o.seat for n, o in seated.items()}, self._train_ids)
        due = {n: o for n, o in seated.items() if o.seat.step in o.job.report_steps}
        earlier, self._unread = self._unread, [(started, seated)]
        if due or not self._on_gpu:
            earlier, self._unread = [*earlier, *self._unread], []
        results: dict[str, Result] = dict.fromkeys(names)
        for step in earlier:
            results |= self._read(*step)
        self._charge(seated.values(), began)
        results |= self._report({n: o for n, o in due.items() if results[n] is None})
        return results

    def _read(self, started: Any, seated: Mapping[str, Occupant]) -> dict[str, Result]:
        """Read the losses of a step, and return a result for each trial that the step has ended."""
        ended: dict[str, Result] = {}
        for name, loss in read_step(started).items():
            occupant = seated[name]
            if self.occupants.get(name) is not occupant:
                continue  # the trial has left, or a newer process of it has taken over
            if isinstance(loss, Diverged):
                ended[name] = self._diverged(occupant, loss)
            elif isinstance(loss, DoesNotFit):
                ended[name] = loss
            else:
                occupant.losses.append(loss)
        return ended

    def find_seats(self, batch_size: int) -> int:
        """Return the largest pack size that still raised the rate by at least 3 %.

        Packs of growing size train for a few steps each. The search ends at a doubling that brings
        less than 3 %, or that no longer fits into memory.
        """
        rates: dict[int, float] = {}
        for seats in _PROBED_SEATS:
            rate = self._rate(seats, batch_size)
            if rate is None or (rates and rate < 1.03 * max(rates.values())):
                break
            rates[seats] = rate
        self._lanes.max_seats = None  # the limit that a pack too large for memory has set
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats()
        return max(rates, default=1)

    def _rate(self, seats: int, batch_size: int) -> float | None:
        """Return the trial-steps per second of a pack, or None if it doesn't fit into memory."""
        length = self.blocks["train"].input_ids.shape[1]
        training = TrainingConfig(batch_size=batch_size)
        config = HyLoRADAConfig(
            max_positions=length, num_buckets=min(32, length), landmark_bucketing="learnable"
        )
        order = BatchOrder(len(self._train_ids), batch_size, 0)
        probe = {k: Seat(Adapter(self.base, config, seed=k), training, order) for k in range(seats)}
        read_step(self._lanes.start_step(probe, self._train_ids))  # compiles
        began = time.perf_counter()
        for _ in range(_PROBE_STEPS):
            started = self._lanes.start_step(probe, self._train_ids)
        whole = not any(isinstance(o, DoesNotFit) for o in read_step(started).values())
        fits = whole and self._lanes.max_seats is None
        return _PROBE_STEPS * seats / (time.perf_counter() - began) if fits else None

    def synchronize(self) -> None:
        """Wait until a GPU has finished its work."""
        if self._on_gpu:
            torch.cuda.synchronize()

    def peak_memory(self) -> int:
        """Return the peak memory in bytes: of the GPUs' tensors, or of this process on a CPU."""
        if not self._on_gpu:
            return process_peak()
        return sum(torch.cuda.max_memory_allocated(k) for k in range(torch.cuda.device_count()))

    def evaluate_base(self, split: str) -> dict[str, float]:
        """Return the metrics of the base alone."""
        (evaluation,) = self._lanes.evaluate([], self.blocks[split])
        return {**evaluation.metrics(), "tokens": evaluation.tokens}

    def _report(self, due: Mapping[str, Occupant]) -> dict[str, Result]:
        """Evaluate the seats for which a report is due together, and begin to save each."""
        if not due:
            return {}
        began = time.perf_counter()
        evaluations = self._evaluate(due, dict.fromkeys(due, "validation"))
        ending = {n: o for n, o in due.items() if o.seat.step == o.job.report_steps[-1]}
        by_name = self._evaluate(ending, {n: o.job.last_split for n, o in ending.items()})
        self._charge(due.values(), began)
        reports = {n: self._capture(o, evaluations[n], by_name.get(n)) for n, o in due.items()}
        # Each write waits for the disk, so they run beside each other and beside the next passes.
        # None begins before all seats are copied, because it would take Python's global lock.
        return {n: r if isinstance(r, Report) else self._files.write(r) for n, r in reports.items()}

    def _evaluate(
        self, occupants: Mapping[str, Occupant], splits: Mapping[str, str]
    ) -> dict[str, Evaluation]:
        """Evaluate trials on a split each ("": none), those with the same blocks together."""
        groups: dict[str, list[str]] = defaultdict(list)
        for name, occupant in occupants.items():
            if splits[name]:
                groups[split_for(splits[name], occupant.job.training)].append(name)
        by_name: dict[str, Evaluation] = {}
        for blocks, names in groups.items():
            adapters = [occupants[n].seat.adapter for n in names]
            evaluations = self._lanes.evaluate(adapters, self.blocks[blocks])
            by_name |= zip(names, evaluations, strict=True)
        return by_name

    def _capture(
        self, occupant: Occupant, evaluation: Evaluation, last: Evaluation | None
    ) -> Report | Unwritten:
        """Return a trial's report, with a copy of its seat unless the trial has diverged."""
        seat, job = occupant.seat, occupant.job
        if not np.isfinite(evaluation.nll):
            return self._diverged(occupant, Diverged("validation loss", seat.step))
        metrics = {
            "train/nll": float(np.mean(occupant.losses)) if occupant.losses else float("nan")
        }
        metrics |= {f"eval/{k}": v for k, v in evaluation.metrics().items()}
        files: dict[Path, bytes] = {}
        if last is not None:
            metrics |= {f"{job.last_split}/{k}": v for k, v in last.metrics().items()}
            files[Path(job.folder) / block_file(job.last_split)] = _array_file(last.block_bins)
        report = Report(
            **_described(seat),
            step=seat.step,
            metrics=metrics,
            seconds=occupant.seconds,
            done=seat.step == job.report_steps[-1],
            block_nll=next(map(str, files), None),
            digests={path.name: digest(content) for path, content in files.items()},
        )
        occupant.losses = []
        occupant.last = report
        return Unwritten(job, copy_seat(seat), report, files)

    @staticmethod
    def _diverged(occupant: Occupant, error: Diverged) -> Report:
        return Report(
            **_described(occupant.seat),
            step=error.step,
            seconds=occupant.seconds,
            done=True,
            diverged=str(error),
        )

    @staticmethod
    def _charge(occupants: Any, began: float) -> None:
        """Add an equal share of the time since ``began`` to the seconds of each trial."""
        sharing = list(occupants)
        share = (time.perf_counter() - began) / max(1, len(sharing))
        for occupant in sharing:
            occupant.seconds += share


def _described(seat: Seat) -> dict[str, Any]:
    """Return the fields of a report that describe the adapter."""
    now, start = seat.adapter.learned_boundaries(), seat.adapter.start_boundaries()
    return {
        "boundaries": () if now is None else tuple(now.tolist()),
        "start_boundaries": () if start is None else tuple(start.tolist()),
        "parameters": seat.adapter.num_parameters(),
        "applied": seat.applied(),
    }


def _array_file(values: Any) -> bytes:
    """Return the content of a ``.npy`` file with this array."""
    file = io.BytesIO()
    np.save(file, values, allow_pickle=False)
    return file.getvalue()
