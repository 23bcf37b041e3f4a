"""Running a study to its end or to its interruption, for the commands that train."""

import argparse
import os
import shlex
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hylorada import InputError
from studies.cli.options import run_options
from studies.cli.stored_studies import place_words
from studies.process.errors import StudyStopped, uncoloured
from studies.process.mlflow_address import is_server, shown
from studies.process.options import WANDB, Options
from studies.process.provenance import command_line
from studies.spec.study import Study

if TYPE_CHECKING:
    from rich.console import Console

    from studies.analysis.results import Results

T = TypeVar("T")


def run_and_print(
    study: Study, args: argparse.Namespace, run: "Callable[[Options], Results]"
) -> int:
    """Run a study and print its results.

    Args:
        study: the study to run.
        args: arguments of the command.
        run: trains the study.

    Returns:
        The exit code.
    """
    from studies.reporting.printed import print_results, printing, tell_failures

    options = run_options(args)
    results = run_or_say_why(study, options, run)
    if isinstance(results, int):
        return results
    folder = options.study_folder(study.name)

    def show() -> None:
        print_results(results, args.json)
        print_places(folder, args)

    printing(show)
    crashed = tell_failures(folder)
    return 3 if crashed or not results.arms else 0


def print_places(folder: Path, args: argparse.Namespace) -> None:
    """Print where the report of a study or grid is and how to see its runs, unless as JSON."""
    if not args.json:
        print(f"report: {folder / 'report.html'}   {_page_hint(args)}")


def _page_hint(args: argparse.Namespace) -> str:
    """Return where the runs of a study are shown."""
    uri = args.tracking_uri or ""
    if uri.startswith(WANDB):
        return f"W&B: {uri}"
    if is_server(uri):
        return f"MLflow: {shown(uri)}"
    return f"MLflow: {shlex.join(['hylorada', 'ui', *place_words(args)])}"


def train_and_print(study: Study, args: argparse.Namespace, console: "Console") -> int:
    """Run or resume a study, or every cell of a grid, and print the results.

    Returns:
        The exit code.
    """
    if study.grid:
        from studies.cli.grids import run_grid_and_print
        from studies.runner.grid import run_grid

        return run_grid_and_print(study, args, lambda options: run_grid(study, options, console))
    from studies.runner.run import run_study

    return run_and_print(study, args, lambda options: run_study(study, options, console))


def run_or_say_why(study: Study, options: Options, run: Callable[[Options], T]) -> T | int:
    """Run something that trains; if it breaks off, print why and how to resume.

    Args:
        study: the study that is run.
        options: where it runs.
        run: what trains, given the options.

    Returns:
        What ``run`` returns, or the exit code if it broke off.

    Raises:
        InputError: The input can't be used.
    """
    resume = f"Resume with: {command_line()}"
    try:
        return run(options)
    except (KeyboardInterrupt, SystemExit):  # Ray may turn SIGTERM into a SystemExit
        has_state = os.path.isdir(options.study_folder(study.name))
        saved = "state saved" if has_state else "nothing to save yet"
        print(f"interrupted; {saved}. {resume}", file=sys.stderr)
        return 130
    except InputError:
        raise
    except StudyStopped as error:
        print(f"hylorada: {error}\nthe study stopped; state saved. {resume}", file=sys.stderr)
        return 3
    except Exception:
        print(uncoloured(traceback.format_exc()), end="", file=sys.stderr)
        print(f"hylorada: the study failed; state saved. {resume}", file=sys.stderr)
        return 3
