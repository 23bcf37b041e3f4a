"""Thousands of short trials in one study: memory, file handles, processes and time per trial must stay flat.

``python tests/programs/soak.py --trials 2000`` samples every process of the study and prints a table; it fails where
the driver's or a host's memory grows by more than a tenth after the first tenth of the trials.
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
        ended: trials so far.
        at: seconds since the first trial ended.
        driver: memory that it alone holds and has written, MiB.
        host: the same of the host.
        handles: open files of both.
        processes: of the study in all.
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
        f"{'trials':>7} {'s':>7} {'s/trial':>8} {'driver MiB':>11} {'host MiB':>9} {'handles':>8} {'processes':>10}"
    )
    with tempfile.TemporaryDirectory() as storage:
        for s in _soak(args.model, args.trials, Path(storage)):
            before = samples[-1] if samples else s
            rate = (s.at - before.at) / max(1, s.ended - before.ended)
            row = f"{s.ended:7} {s.at:7.0f} {rate:8.3f} {s.driver:11.1f} {s.host:9.1f} {s.handles:8} {s.processes:10}"
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
        ended = (
            max(0, len(os.listdir(folder)) - 4) if folder.exists() else 0
        )  # those in the pack have a folder too
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
    """MiB that the process alone holds and has written; libraries that it reads are its own until others read them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) / 1024


def _growth(samples: Sequence[Sample]) -> list[str]:
    """What has grown by more than a tenth, from the first few samples to the last few."""
    found = []
    for field in ("driver", "host", "handles", "processes"):
        series = [float(getattr(s, field)) for s in samples]
        early, late = statistics.median(series[:3]), statistics.median(series[-3:])
        if late > 1.1 * early:
            found.append(f"{field} grew from {early:.1f} to {late:.1f}")
    return found


if __name__ == "__main__":
    sys.exit(main())
