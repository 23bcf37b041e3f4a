"""``hylorada extend``: enlarge a study that has been run."""

import argparse
from typing import TYPE_CHECKING

from hylorada import InputError
from studies.cli.command import Command
from studies.cli.options import (
    add_json,
    add_larger_counts,
    add_limits,
    add_place,
    add_storage,
    add_study_name,
)
from studies.cli.stored_studies import open_study
from studies.cli.study_runs import train_and_print
from studies.files.folder_files import stored_study
from studies.spec.study import GROWING, Study

if TYPE_CHECKING:
    from rich.console import Console

_DESCRIPTION = """\
Enlarge a study that has been run: more searches, more trials in each, or more paired seeds.

Use it when the intervals of a finished study are too wide. Finished trials are kept; only new ones
are trained, and the verdict is computed again. A grid is enlarged in every cell.
"""
_EXAMPLES = """\
  hylorada extend learnable_bucketing --searches 8
      8 searches in all
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study_name(parser)
    add_larger_counts(parser)
    add_place(parser)
    add_limits(parser)
    add_storage(parser)
    add_json(parser)


def _run(args: argparse.Namespace, console: "Console") -> int:
    stored = stored_study(open_study(args, grids=True) / "study.json")
    counts = {name: getattr(args, name) for name in GROWING}
    given = {name: count for name, count in counts.items() if count is not None}
    if not given:
        *others, last = [f"--{name} (now {stored[name]})" for name in GROWING]
        raise InputError(f"extend {args.study!r} by what? give {', '.join(others)} or {last}")
    if "seeds" in given and (named := stored["seed_list"]):
        raise InputError(
            f"study {args.study!r} names its seeds ({', '.join(map(str, named))}): extend it by "
            "--searches or --trials, or run a study of another --name with a longer --seed-list"
        )
    return train_and_print(Study.from_dict({**stored, **given}), args, console)


COMMAND = Command(
    name="extend",
    summary="enlarge a study that has been run: more searches, trials or seeds",
    description=_DESCRIPTION,
    examples=_EXAMPLES,
    add_arguments=_add_arguments,
    run=_run,
    heeds_environment=True,
)
