"""``hylorada run``: search, confirm and report."""

import argparse
from typing import TYPE_CHECKING

from studies.cli.command import Command
from studies.cli.options import (
    add_json,
    add_limits,
    add_place,
    add_storage,
    add_study,
    run_options,
)
from studies.cli.requested_study import checked_study
from studies.cli.study_runs import train_and_print

if TYPE_CHECKING:
    from rich.console import Console

_DESCRIPTION = """\
Run a study from start to end: search every arm, train the best configurations again on fresh seeds,
compare the arms on the test split, and write a report.

Use it to start a study, and again to resume one that was interrupted: the same command continues
where it stopped. All input is checked before anything is trained or written.

A study with a grid (`grid: {block_size: [128, 256], data: [...], model: [...]}`) runs every
combination as a study of its own, and reports all of them together.
"""
_EXAMPLES = """\
  hylorada run learnable_bucketing
  hylorada run learnable_bucketing --name mine --data notes.txt --set defaults.max_steps=200
  hylorada run --config study.yaml
  hylorada run learnable_bucketing --time-limit 1h30m
  hylorada run context_length --set 'grid.block_size=[64, 128]'
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study(parser)
    add_place(parser)
    add_limits(parser)
    add_storage(parser)
    add_json(parser)


def _run(args: argparse.Namespace, console: "Console") -> int:
    return train_and_print(checked_study(args, run_options(args)), args, console)


COMMAND = Command(
    name="run",
    summary="run a study: search, confirm and report; the same command resumes",
    description=_DESCRIPTION,
    examples=_EXAMPLES,
    add_arguments=_add_arguments,
    run=_run,
    heeds_environment=True,
)
