"""A small study in a process of its own, and the timeline of its run."""

import os
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from studies.bench.search.timing import run_driver
from studies.bench.start.timeline import AROUND, Interval, Row, Timeline, read_intervals, timeline
from studies.process.phases import PHASES
from studies.reporting.tables import Sheet
from studies.reporting.terminal import Drawing, say
from studies.trials.records import read_records

_NAME = "start"
_STUDY = (  # small: every stage once, on the built-in base and text
    "run",
    "learnable_bucketing",
    f"--name={_NAME}",
    "--block-size=64",
    "--searches=2",
    "--trials=1",
    "--seeds=1",
    "--set=finalists=1",
    "--set=profile=[1.0]",
    "--set=defaults.max_steps=4",
    "--set=eval_every=2",
    "--set=grace_steps=2",
    "--set=eval_blocks=4",
    "--set=test_blocks=8",
    "--json",
)


def run_start() -> Timeline:
    """Run a small study and return where its time went.

    Raises:
        RuntimeError: the study has failed.
    """
    with tempfile.TemporaryDirectory(prefix="hylorada-bench-") as folder:
        storage, phases = Path(folder) / "storage", Path(folder) / "phases"
        began = time.time()
        code, errors = run_driver(
            [sys.executable, "-m", "studies.bench.start.driver", *_STUDY, f"--storage={storage}"],
            {**os.environ, PHASES: str(phases)},
        )
        whole = Interval(name=AROUND, began=began, ended=time.time())
        if code:
            why = errors.strip().splitlines()[-1:] or ["no message"]
            raise RuntimeError(f"the study that measures the start failed: {why[0]}")
        records = read_records(storage / "studies" / _NAME)
        reports = [r.time / 1000 for record in records.values() for r in record.reports]
        return timeline(read_intervals(phases), whole, reports)


def print_timeline(measured: Timeline, out: Console) -> None:
    """Print the phases of the driver, and what ran beside it."""
    say(out, f"a small study from its command to its end: {measured.wall:.1f} s")
    out.print(Drawing(_sheet("phase of the driver", measured.driver)))
    out.print(Drawing(_sheet("beside it", measured.beside)))


def _sheet(title: str, rows: tuple[Row, ...]) -> Sheet:
    cells = tuple((row.phase, f"{row.begins:.2f}", f"{row.seconds:.2f}") for row in rows)
    return Sheet((title, "begins at s", "seconds"), cells)
