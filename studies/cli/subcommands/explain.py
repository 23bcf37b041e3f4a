"""``hylorada explain``: measure which parameters make a winner what it is."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studies.cli.command import Command
from studies.cli.options import add_json, add_place, add_storage, run_options
from studies.cli.stored_studies import open_study
from studies.cli.study_runs import run_or_say_why
from studies.files.folder_files import stored_study
from studies.spec.study import Study
from studies.trials.study_folders import require_results

if TYPE_CHECKING:
    from rich.console import Console

    from studies.search.explain import Request
    from studies.trials.explanations import Explanation

_DESCRIPTION = """\
Measure which parameters make a winner of a finished study what it is, and which don't matter.

Use it to learn why an arm's winner beats the defaults, and how close its neighbours come:

  path        from the study's defaults to the winner, changing one of the arm's own parameters at
              a time, in the order of `hylorada show`, each step on top of those before it. A
              parameter with a condition (when) changes together with the one it depends on.
  neighbours  the winner with one parameter one step away: the next smaller and larger number of a
              choice, every other value of a choice without an order, and a third of a range up and
              down (on its own scale, or to its end).

All configurations are trained in full on the same fresh seeds, at the winner's common values (such
as the learning rate). The intervals are of paired differences in validation PPL, on validation
blocks that the search has not seen if there are at least 20 of these. The test split is not read,
and the study's verdict does not change.

Prints two tables, and writes explain.json and a section of report.html. The same command resumes.
"""
_EXAMPLES = """\
  hylorada explain learnable_bucketing
      the winner of the first comparison's arm
  hylorada explain learnable_bucketing --arm fixed --seeds 6
      the winner of another arm, with narrower intervals
  hylorada explain learnable_bucketing --search 2
      the winner of another search
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", metavar="STUDY", help="name of a study that has finished")
    parser.add_argument(
        "--arm",
        metavar="ARM",
        help="arm whose winner to explain; default: the arm of the study's first comparison",
    )
    parser.add_argument(
        "--search",
        type=int,
        default=0,
        metavar="N",
        help="search whose winner to explain, from 0; default: %(default)s",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        metavar="S",
        help="fresh paired seeds; default: as many as the study has, at least 3",
    )
    add_place(parser)
    add_storage(parser)
    add_json(parser)


def _run(args: argparse.Namespace, console: "Console") -> int:
    from studies.reporting.printed import print_json, printing, tell_failures

    folder = open_study(args)
    require_results(folder, args.study)
    study, request = _checked_request(folder, args)
    from studies.runner.run import explain_study

    explanation = run_or_say_why(
        study, run_options(args), lambda options: explain_study(study, options, console, request)
    )
    if isinstance(explanation, int):
        return explanation

    def show() -> None:
        if args.json:
            print_json(_json_values(explanation), indent=1)
        else:
            _print_explanation(explanation, folder)

    printing(show)
    return 3 if tell_failures(folder) else 0


def _checked_request(folder: Path, args: argparse.Namespace) -> tuple[Study, "Request"]:
    """Return the stored study and which of its winners to explain.

    Raises:
        InputError: The winner can't be explained; nothing has been written or started.
    """
    from studies.search.explain import Request, make_plan
    from studies.trials.loading import load_records

    study = Study.from_dict(stored_study(folder / "study.json"))
    request = Request(args.arm, args.search, args.seeds)
    make_plan(study, load_records(folder), request)
    return study, request


def _json_values(explanation: "Explanation") -> dict[str, Any]:
    from studies.reporting.explanation_tables import sentences

    return {**explanation.to_dict(), "said": sentences(explanation)}


def _print_explanation(explanation: "Explanation", folder: Path) -> None:
    """Print both tables and the sentences that they support."""
    from studies.reporting.explanation_tables import neighbours_sheet, path_sheet, sentences
    from studies.reporting.terminal import Drawing, Terminal

    trial = explanation.trial
    sheets = {
        f"From the defaults to {trial}, each step on top of those above:": path_sheet(explanation),
        f"From {trial} one step away:": neighbours_sheet(explanation),
    }
    for title, sheet in sheets.items():
        if sheet.rows:
            print(title)
            Terminal().print(Drawing(sheet))
            print()
    for line in sentences(explanation):
        print(line)
    print(f"report: {folder / 'report.html'}")


COMMAND = Command(
    name="explain",
    summary="measure which parameters of a winner matter",
    description=_DESCRIPTION,
    examples=_EXAMPLES,
    add_arguments=_add_arguments,
    run=_run,
    heeds_environment=True,
)
