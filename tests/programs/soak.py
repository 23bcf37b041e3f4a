"""Thousands of short trials in one study: memory, handles, processes and time must stay flat.

``python tests/programs/soak.py --trials 2000`` samples every process of the study and prints a
table; it fails if the memory of the driver or of a host grows by more than a tenth after the first
tenth of the trials.
"""

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from study_runs import Command

_ARMS = 3
_SAMPLES = 20


@dataclass(frozen=True)
class Sample:
    """The study's processes at one moment.

    Attributes:
        ended: number of trials that have ended.
        at: seconds since the first trial ended.
        driver: private written memory of the driver in MiB.
        host: private written memory of the host in MiB.
        handles: open files of both.
        processes: number of all processes of the study.
    """

    ended: int
    at: float
    driver: float
    host: float
    handles: int
    processes: int


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=2000, help="in all; default: %(default)s")
    parser.add_argument("--model", default="tiny", help="base; default: %(default)s")
    args = parser.parse_args()
    samples: list[Sample] = []
    print(
        f"{'trials':>7} {'s':>7} {'s/trial':>8} {'driver MiB':>11} {'host MiB':>9} {'handles':>8} "
        f"{'processes':>10}"
    )
    with tempfile.TemporaryDirectory() as storage:
        for s in _soak(args.model, args.trials, Path(storage)):
            before = samples[-1] if samples else s
            rate = (s.at - before.at) / max(1, s.ended - before.ended)
            memory = f"{s.driver:11.1f} {s.host:9.1f}"
            row = f"{s.ended:7} {s.at:7.0f} {rate:8.3f} {memory} {s.handles:8} {s.processes:10}"
            print(row, flush=True)
            samples.append(s)
    problems = _growth([s for s in samples if s.ended >= args.trials // 10])
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def _soak(model: str, trials: int, storage: Path) -> Iterator[Sample]:
    process = Command(
        "run",
        "learnable_bucketing",
        f"--model={model}",
        f"--storage={storage}",
        "--name=soak",
        *_options(trials),
    )
    folder = storage / "studies" / "soak" / "trials"
    began, due = 0.0, 1
    while process.poll() is None:
        time.sleep(0.2)
        # Without the 4 trials in the pack, which have a folder too.
        ended = max(0, len(os.listdir(folder)) - 4) if folder.exists() else 0
        if ended >= due:
            began = began or time.monotonic()
            due = ended + trials // _SAMPLES
            yield _sample(process, ended, time.monotonic() - began)
        if ended >= trials - 4:
            break
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    if process.returncode not in (0, 130):
        raise RuntimeError(err)


def _options(trials: int) -> Sequence[str]:
    return (
        "--block-size=16",
        f"--trials={-(-trials // _ARMS)}",
        "--set=defaults.max_steps=2",
        "--set=defaults.batch_size=1",
        "--set=defaults.num_buckets=4",
        "--set=arms.fixed.space.num_buckets=4",
        "--set=arms.learnable.space.num_buckets=4",
        "--set=eval_every=1",
        "--set=eval_blocks=2",
        "--set=grace_steps=1",
    )


def _sample(process: Command, ended: int, at: float) -> Sample:
    driver, hosts = process.pid, process.pids("ray::Host")
    handles = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in [driver, *hosts])
    return Sample(
        ended, at, _unshared(driver), sum(map(_unshared, hosts)), handles, len(process.pids())
    )


def _unshared(pid: int) -> float:
    """Return the MiB that only this process holds and that it has written.

    Pages of libraries that it only reads don't count: they are shared once others read them.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) / 1024


def _growth(samples: Sequence[Sample]) -> list[str]:
    """Return what has grown by more than a tenth from the first few samples to the last few."""
    problems = []
    for field in ("driver", "host", "handles", "processes"):
        series = [float(getattr(s, field)) for s in samples]
        early, late = statistics.median(series[:3]), statistics.median(series[-3:])
        if late > 1.1 * early:
            problems.append(f"{field} grew from {early:.1f} to {late:.1f}")
    return problems


if __name__ == "__main__":
    sys.exit(main())
