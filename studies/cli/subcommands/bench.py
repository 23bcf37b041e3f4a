"""``hylorada bench``: speed and memory on this machine."""

import argparse
import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hylorada import InputError
from studies.cli.command import Command
from studies.files.paths import file_problem

if TYPE_CHECKING:
    from rich.console import Console

_DESCRIPTION = """\
Measure speed and memory of packs on this machine, compared with plain training loops and with one
process per trial.

Use it to see what a study will cost here, and which pack size is fastest. Close other programs
first.
"""
_EXAMPLES = """\
  hylorada bench --rows plain,packs
      only the plain loop and the packs; needs no Ray
  hylorada bench --shape smollm2 --block-size 512
      random weights in SmolLM2-135M's shape
  hylorada bench --start
      where the time of a small study goes before its first report and after its last
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_setting(parser)
    _add_rows(parser)
    parser.add_argument(
        "--search",
        action="store_true",
        help="also time whole searches, including the start of their processes",
    )
    parser.add_argument(
        "--trials",
        type=int,
        default=24,
        metavar="N",
        help="trials of each search that --search times; default: %(default)s",
    )
    parser.add_argument(
        "--search-steps",
        type=int,
        default=48,
        metavar="N",
        help="optimizer steps of each of these trials; default: %(default)s",
    )
    parser.add_argument(
        "--start",
        action="store_true",
        help="instead of all that, run a small study and show where its time goes; of the other "
        "options only --json counts",
    )
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="write a profile of one step of the last pack",
    )
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="print JSON for programs, or write it to a file",
    )


def _add_setting(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what a trial trains."""
    parser.add_argument("--model", metavar="MODEL", help="base model; default: tiny")
    parser.add_argument(
        "--shape",
        metavar="SHAPE",
        help="random weights in the shape of gpt2 or smollm2, instead of a model",
    )
    parser.add_argument(
        "--data", metavar="DATA", help="text; default: pydocs, or random tokens with --shape"
    )
    parser.add_argument(
        "--block-size",
        type=int,
        metavar="T",
        help="tokens in a block; default: 128, or 512 on a GPU",
    )
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help="blocks in a step; default: 2, or 4 on a GPU"
    )
    parser.add_argument(
        "--r", type=int, default=8, metavar="R", help="LoRA rank; default: %(default)s"
    )
    parser.add_argument(
        "--ranks",
        metavar="R,R",
        help="also compare the largest pack with these ranks mixed, and with each of them alone",
    )
    parser.add_argument(
        "--dtype", metavar="DTYPE", help="dtype of the base; default: float32, or bfloat16 on a GPU"
    )
    parser.add_argument(
        "--gradient-checkpointing",
        action="store_true",
        help="recompute the base's layers in the backward passes of packs",
    )


def _add_rows(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is measured, and how often."""
    parser.add_argument(
        "--packs",
        metavar="K,K",
        help="pack sizes to measure; default: 1,2,4,... up to --max-pack",
    )
    parser.add_argument(
        "--max-pack",
        type=int,
        metavar="K",
        help="largest pack size; default: 8, or 64 on a GPU, as memory allows",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=20,
        metavar="N",
        help="optimizer steps of each trial in a measurement; default: %(default)s",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=5,
        metavar="N",
        help="repetitions of each measurement; default: %(default)s",
    )
    parser.add_argument(
        "--rows",
        metavar="A,B",
        help="what to measure, out of plain,processes,packs,designs,memory,report,driver; "
        "default: all",
    )
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="processes that share the device; default: the number of cores, or 8 on a GPU",
    )
    parser.add_argument(
        "--no-processes",
        action="store_true",
        help="leave out the rows that need Ray: processes and report",
    )


def _run(args: argparse.Namespace, console: "Console") -> int:
    from studies.bench.options import BenchOptions, check
    from studies.bench.run import run_bench
    from studies.bench.table import print_bench
    from studies.reporting.terminal import Terminal, say

    if args.json not in (None, "-") and (problem := file_problem("json", Path(args.json))):
        raise InputError(problem)
    if args.start:
        from studies.bench.start.run import print_timeline, run_start

        say(console, "a small study on the built-in base and text")
        measured = run_start()
        _show(args.json, measured.to_dict(), lambda: print_timeline(measured, Terminal()))
        return 0
    values = {**vars(args), "parts": args.rows, "ray": not args.no_processes}
    plan = check(BenchOptions(**{f.name: values[f.name] for f in dataclasses.fields(BenchOptions)}))
    bench = run_bench(plan, lambda line: say(console, line))
    _show(args.json, bench.to_dict(), lambda: print_bench(bench, Terminal()))
    return 0


def _show(place: str | None, values: Mapping[str, Any], show: Callable[[], None]) -> None:
    """Print a result as JSON or as text, the latter also if the JSON goes to a file."""
    from studies.reporting.printed import print_json

    if place == "-":
        print_json(values)
        return
    if place is not None:
        Path(place).write_text(json.dumps(values, indent=1))
    show()


COMMAND = Command(
    name="bench",
    summary="measure speed and memory of packs on this machine",
    description=_DESCRIPTION,
    examples=_EXAMPLES,
    add_arguments=_add_arguments,
    run=_run,
)
