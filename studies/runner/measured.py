"""The speed and memory of a study's trials, from a few steps of full packs in a process of its own.

The process is like a host of `hylorada run`: the same engine, the same arms and sizes.
"""

import dataclasses
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hylorada.runtime.cores import available_cores
from studies.files.own_designs import own_designs
from studies.files.typed_json import typed
from studies.process.environment import ALLOCATOR
from studies.process.errors import StudyStopped
from studies.spec.points import first_points
from studies.spec.study import Study
from studies.trials.messages import Job

if TYPE_CHECKING:
    from studies.engine.packs import Engine

_SEATS = 4  # of a pack on CPUs, as in `studies.engine.cluster`
_WARM, _STEPS, _ENOUGH_S = 2, 3, 10.0  # steps before and during a measurement; a slow one has fewer
_MOST_STEPS = 100  # of the schedule, so that no learning rate is 0 while it is measured
_EVALUATED = 16  # blocks of each split; more take proportionally longer
_TRAINED = 64  # blocks of the training split


@dataclass(frozen=True)
class Measured:
    """What a few steps of full packs have shown.

    Attributes:
        device: ``cuda`` or ``cpu``.
        devices: Number of GPUs of this machine, or 1.
        seats: Number of trials in a pack.
        block_seconds: Seconds to train one trial on one block: its share of the pack's time.
        evaluation_share: Time of an evaluated block as a share of that.
        report_seconds: Seconds that a report of one trial takes beyond its evaluation.
        load_seconds: Seconds to load the base and, on a GPU, to compile its layers.
        parameters: Number of trained parameters of the largest adapter.
        peak_bytes: Peak memory: of the GPU's tensors, or of the whole process.
        limit_bytes: Memory of the GPU (of all, if the base lies on all), or of this machine.
    """

    device: str
    devices: int
    seats: int
    block_seconds: float
    evaluation_share: float
    report_seconds: float
    load_seconds: float
    parameters: int
    peak_bytes: int
    limit_bytes: int


def measure(study: Study, blocks: Mapping[str, Any], seats: int | None) -> Measured:
    """Train a few steps of every arm in full packs, and measure their time and memory.

    Args:
        study: Study with known steps.
        blocks: Blocks of each split.
        seats: Number of trials in a pack; None takes as many as `hylorada run` would.

    Raises:
        StudyStopped: The process has died, for example because memory was short.
    """
    few = {
        split: b.head(min(_EVALUATED if _is_evaluated(split) else _TRAINED, b.num_blocks))
        for split, b in blocks.items()
    }
    with tempfile.TemporaryDirectory(prefix="hylorada-estimate-") as folder:
        task = {
            "engine": {
                "model": study.model,
                "dtype": study.dtype,
                "gradient_checkpointing": study.gradient_checkpointing,
                "device_map": study.device_map,
                "quantization": study.quantization,
                "blocks": few,
                "designs": own_designs(study.to_dict()),
            },
            "jobs": _jobs(study, Path(folder)),
            "seats": seats,
            "batch_size": study.fields(next(iter(study.arms)))["batch_size"],
        }
        (Path(folder) / "task").write_bytes(pickle.dumps(task))
        # -P: a folder of the user's that is named `studies` must not come before the package.
        command = [sys.executable, "-P", "-m", __name__, folder]
        environment = {**ALLOCATOR, **os.environ, "OMP_NUM_THREADS": str(available_cores())}
        done = subprocess.run(command, env=environment, check=False, text=True, capture_output=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise StudyStopped(f"a few steps could not be measured: {lines[-1]}")
        values = pickle.loads((Path(folder) / "measured").read_bytes())
    measured: Measured = typed(Measured, values)
    return measured


def _is_evaluated(split: str) -> bool:
    return not split.startswith("train")


def _jobs(study: Study, folder: Path) -> list[Job]:
    """Return a job of each arm at its first point."""
    jobs = []
    for arm in study.arms:
        adapter, training = study.configs(arm, next(iter(first_points(study, arm))))
        jobs.append(
            Job(
                name=arm,
                adapter=adapter.to_dict(),
                training={**training.to_dict(), "max_steps": _MOST_STEPS},
                seed=study.seed,
                data_seed=study.seed,
                report_steps=(),
                folder=str(folder / arm),
                last_split="test",
            )
        )
    return jobs


def _measure(task: Mapping[str, Any]) -> Measured:
    """Measure in this process; see :func:`measure`."""
    import torch

    from studies.engine.packs import Engine

    began = time.perf_counter()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    engine = Engine(**task["engine"], device=device)
    on_gpu = device == "cuda"
    seats = task["seats"] or (engine.find_seats(task["batch_size"]) if on_gpu else _SEATS)
    loaded = time.perf_counter() - began
    packs = [_time_pack(engine, pack) for pack in _packs(task["jobs"], seats)]
    block_seconds = sum(pack.trained for pack in packs) / len(packs)
    return Measured(
        device=device,
        devices=torch.cuda.device_count() if on_gpu else 1,
        seats=seats,
        block_seconds=block_seconds,
        evaluation_share=sum(pack.evaluated for pack in packs) / len(packs) / block_seconds,
        report_seconds=sum(pack.reported for pack in packs) / len(packs),
        load_seconds=loaded,
        parameters=max(pack.parameters for pack in packs),
        peak_bytes=engine.peak_memory(),
        limit_bytes=_memory_limit(on_gpu, torch.cuda.device_count() if engine.spread else 1),
    )


def _packs(jobs: Sequence[Job], seats: int) -> list[list[Job]]:
    """Return full packs in which each job takes part, some of them several times."""
    count = -(-len(jobs) // seats) * seats
    filled = []
    for i in range(count):
        job = jobs[i % len(jobs)]
        name, folder = f"{job.name}-{i}", f"{job.folder}-{i}"
        filled.append(dataclasses.replace(job, name=name, folder=folder))
    return [filled[start : start + seats] for start in range(0, count, seats)]


@dataclass(frozen=True)
class _Pack:
    """Seconds of one trial in a full pack, and the parameters of the largest adapter.

    Attributes:
        trained: Seconds to train on a block.
        evaluated: Seconds to evaluate a block.
        reported: Seconds of a report beyond its evaluation.
        parameters: Number of trained parameters.
    """

    trained: float
    evaluated: float
    reported: float
    parameters: int


def _time_pack(engine: "Engine", jobs: Sequence[Job]) -> _Pack:
    """Train a full pack for a few steps and three reports, the last of which reads the test split.

    The first report is not measured: it also allocates memory.
    """
    names = [job.name for job in jobs]
    for job in jobs:
        engine.attach(engine.build(job))
    warm = [_advance(engine, names) for _ in range(_WARM)]
    steps = _STEPS if _STEPS * warm[-1] < _ENOUGH_S else 1
    step = sum(_advance(engine, names) for _ in range(steps)) / steps
    reached = _WARM + steps
    reports = tuple(range(reached + 1, reached + 4))
    for name in names:
        occupant = engine.occupants[name]
        occupant.job = dataclasses.replace(occupant.job, report_steps=reports)
    _, report, last = (_advance(engine, names) for _ in reports)
    parameters = max(engine.occupants[n].seat.adapter.num_parameters() for n in names)
    for name in names:
        engine.detach(name)
    batch = sum(int(job.training["batch_size"]) for job in jobs)
    evaluated = max(0.0, last - report) / (len(jobs) * engine.blocks["test"].num_blocks)
    reported = (report - step) / len(jobs) - evaluated * engine.blocks["validation"].num_blocks
    return _Pack(step / batch, evaluated, max(0.0, reported), parameters)


def _advance(engine: "Engine", names: Sequence[str]) -> float:
    """Take a step with all trials, and return its seconds.

    They include the writing of files, which a study does beside its next steps.

    Raises:
        Exception: The error of a trial that can't be trained, such as one that does not fit.
    """
    began = time.perf_counter()
    results = engine.advance(names)
    if errors := [r for r in results.values() if isinstance(r, Exception)]:
        raise errors[0]
    for writing in (r for r in results.values() if isinstance(r, Future)):
        writing.result()
    engine.synchronize()
    return time.perf_counter() - began


def _memory_limit(on_gpu: bool, gpus: int) -> int:
    """Return the memory of so many GPUs, or what this machine or its container allows."""
    import psutil
    import torch

    if on_gpu:
        return sum(int(torch.cuda.get_device_properties(k).total_memory) for k in range(gpus))
    total = int(psutil.virtual_memory().total)
    quota = Path("/sys/fs/cgroup/memory.max")
    try:
        return min(total, int(quota.read_text()))
    except (OSError, ValueError):  # there is no quota, or it is "max"
        return total


if __name__ == "__main__":
    place = Path(sys.argv[1])
    result = _measure(pickle.loads((place / "task").read_bytes()))
    (place / "measured").write_bytes(pickle.dumps(dataclasses.asdict(result)))
