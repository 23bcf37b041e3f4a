"""``hylorada estimate``: what a run would take."""

import argparse
from typing import TYPE_CHECKING

from studies.cli.command import Command
from studies.cli.options import add_json, add_place, add_storage, add_study, run_options
from studies.cli.requested_study import checked_study

if TYPE_CHECKING:
    from rich.console import Console

    from studies.process.options import Options
    from studies.runner.estimate import Estimate
    from studies.spec.study import Study

_DESCRIPTION = """\
Estimate the time, the GPU-hours (or core-hours), the memory and the disk space of a study, and the
smallest effect that it is expected to see. Trains a few steps of every arm in full packs on this
machine, in a process of its own, and writes nothing but the cache of a long text's tokens.

Use it before a long run, with the same options as `hylorada run`. Of a study that has begun, it
estimates what is left. The smallest visible effect comes from an earlier study of the same base,
text and block size in the storage folder; without one, it is given in standard deviations.
"""
_EXAMPLES = """\
  hylorada estimate learnable_bucketing
  hylorada estimate learnable_bucketing --model gpt2 --data notes.txt --block-size 512 --searches 8
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study(parser)
    add_place(parser)
    add_storage(parser)
    add_json(parser)


def _run(args: argparse.Namespace, console: "Console") -> int:
    from studies.reporting.printed import print_json, printing
    from studies.spec.grid import cells

    options = run_options(args)
    study = checked_study(args, options)
    studies = [cell.study for cell in cells(study)] if study.grid else [study]
    estimates = [_estimate(one, options, console) for one in studies]

    def show() -> None:
        if args.json:
            values = [e.to_dict() for e in estimates]
            print_json(values if study.grid else values[0], indent=1)
            return
        for e in estimates:
            print(e)
        if study.grid:
            from studies.runner.estimate import total_line

            print(total_line(estimates))

    printing(show)
    return 0


def _estimate(study: "Study", options: "Options", console: "Console") -> "Estimate":
    """Say what takes minutes, and return the estimate of a study."""
    from studies.reporting.terminal import say

    if options.progress != "none":
        say(console, f"{study.name}: measuring a few steps of each arm")
    from studies.runner.estimate import estimate_study  # loads torch, so it comes after the line

    return estimate_study(study, options)


COMMAND = Command(
    name="estimate",
    summary="estimate time, memory, disk and resolution of a run, from a few measured steps",
    description=_DESCRIPTION,
    examples=_EXAMPLES,
    add_arguments=_add_arguments,
    run=_run,
    heeds_environment=True,
)
