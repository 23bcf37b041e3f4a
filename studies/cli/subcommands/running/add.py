"""``hylorada add``: a trial of one's own in a study that is running or has been run."""

import argparse
from typing import TYPE_CHECKING

from hylorada import InputError
from studies.cli.command import Command
from studies.cli.options import add_json, add_storage, add_study_name
from studies.cli.stored_studies import run_command

if TYPE_CHECKING:
    from rich.console import Console

_DESCRIPTION = """\
Add a trial of your own to a study: the defaults of an arm, or the configuration of one of its
trials (also one that is still running), with some fields changed.

Use it to try an idea beside the search without starting another study. A running study trains the
trial as soon as a place is free, without interrupting others; otherwise the next `hylorada run`
trains it.

The new trial has the seeds of the trial that it changes (with --arm, those of the arm's first
trial), so the difference between the two comes from your change. It runs to its last step; ASHA
does not stop it. It appears in `status`, in the report, in MLflow (tag hylorada.stage = added) and
in optuna.db (study NAME / ARM / added), but it takes no part in the choice of winners or in the
verdict: every arm has the same number of tries there, and yours would be one more for its arm. To
let a value compete, put it into the search space of a new study.
"""
_EXAMPLES = """\
  hylorada add learnable_bucketing --arm learnable --set learning_rate=3e-3 --set num_buckets=8
  hylorada add learnable_bucketing --clone learnable-0002 --set temperature=0.02
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study_name(parser)
    parser.add_argument("--arm", metavar="ARM", help="change the defaults of this arm")
    parser.add_argument("--clone", metavar="TRIAL", help="change the configuration of this trial")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="set one field of the adapter or of its training, such as learning_rate=3e-3; may be "
        "repeated",
    )
    add_storage(parser)
    add_json(parser)


def _run(args: argparse.Namespace, _console: "Console") -> int:
    from studies.api.running import add_trial
    from studies.reporting.printed import print_json
    from studies.spec.overrides import read_fields
    from studies.trials.study_folders import find_study, is_running

    changes, problems = read_fields(args.set)
    if problems:
        raise InputError(problems)
    name = add_trial(args.study, changes, arm=args.arm, clone=args.clone, storage=args.storage)
    running = is_running(find_study(args.storage, args.study))
    if args.json:
        print_json({"trial": name, "running": running})
        return 0
    command = run_command(args)
    when = "the running study trains it next" if running else f"train it with: {command}"
    print(f"added {name}; {when}")
    return 0


COMMAND = Command(
    name="add",
    summary="add a trial of your own to a study, also a changed clone of another trial",
    description=_DESCRIPTION,
    examples=_EXAMPLES,
    add_arguments=_add_arguments,
    run=_run,
)
