"""``hylorada resolve``: add searches to a study until every comparison is decided."""

import argparse
from typing import TYPE_CHECKING

from studies.cli.command import Command
from studies.cli.options import add_json, add_place, add_storage, add_study_name, seconds
from studies.cli.stored_studies import open_study
from studies.cli.study_runs import run_and_print
from studies.files.folder_files import stored_study
from studies.spec.study import Study

if TYPE_CHECKING:
    from rich.console import Console

_DESCRIPTION = """\
Add searches to a study that has been run until every comparison is decided, or the time is up.

Use it instead of `extend` when you want an answer and don't know how many searches it takes. A
comparison is decided when its verdict is better, worse, or no difference beyond the margin. It
looks at the test split up to three times: at the searches that the study has, at twice and at four
times as many, or at the looks that the study declares. The probability of a false verdict stays at
5 % over the looks of this command. The cells of a grid are resolved one after another and share the
time.
"""
_EXAMPLES = """\
  hylorada resolve learnable_bucketing --margin 0.2 --time-limit 2h
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study_name(parser)
    parser.add_argument(
        "--margin",
        type=float,
        default=0.1,
        metavar="PERCENT",
        help="largest difference in PPL that does not matter; default: %(default)s",
    )
    parser.add_argument(
        "--time-limit",
        dest="seconds",
        type=seconds,
        metavar="TIME",
        help="start no further searches that would end after this time, such as 90s, 30m or 2h; "
        "default: none",
    )
    add_place(parser)
    add_storage(parser)
    add_json(parser)


def _run(args: argparse.Namespace, console: "Console") -> int:
    study = Study.from_dict(stored_study(open_study(args, grids=True) / "study.json"))
    from studies.runner.resolve import Budget, resolve
    from studies.runner.run import run_study

    budget = Budget(args.margin, args.seconds)
    if study.grid:
        from studies.cli.grids import run_grid_and_print
        from studies.runner.grid import resolve_grid

        return run_grid_and_print(
            study, args, lambda options: resolve_grid(study, options, console, budget)
        )
    return run_and_print(
        study, args, lambda options: resolve(study, options, console, budget, run_study)
    )


COMMAND = Command(
    name="resolve",
    summary="add searches to a study until every comparison is decided",
    description=_DESCRIPTION,
    examples=_EXAMPLES,
    add_arguments=_add_arguments,
    run=_run,
    heeds_environment=True,
)
