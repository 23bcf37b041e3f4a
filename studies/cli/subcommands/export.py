"""``hylorada export``: the winner of a finished study as an adapter."""

import argparse
from typing import TYPE_CHECKING

from studies.cli.command import Command
from studies.cli.options import add_json, add_storage, add_study_name, folder
from studies.cli.stored_studies import open_finished_study

if TYPE_CHECKING:
    from rich.console import Console

_DESCRIPTION = """\
Write the winner of a finished study: an adapter in PEFT's format, which stock PEFT loads too, and
its model card.

Use it to keep or publish the best adapter. `hylorada evaluate --adapter DIR` measures it again.
"""
_EXAMPLES = """\
  hylorada export learnable_bucketing --output winner
  hylorada export learnable_bucketing --arm fixed --output fixed-winner
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study_name(parser)
    parser.add_argument(
        "--arm",
        metavar="ARM",
        help="arm whose winner to write; default: the arm with the lowest mean validation loss "
        "over its seeds",
    )
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="paired seed whose run to write; default: the first",
    )
    parser.add_argument(
        "--output", type=folder, required=True, metavar="DIR", help="folder to write"
    )
    add_storage(parser)
    add_json(parser)


def _run(args: argparse.Namespace, _console: "Console") -> int:
    from studies.reporting.export import export_winner
    from studies.reporting.printed import print_json

    record = export_winner(open_finished_study(args), args.output, arm=args.arm, seed=args.seed)
    if args.json:
        print_json({**record, "output": str(args.output)}, indent=1)
    else:
        ppl = f"test PPL {record['test_ppl']:.4f}"
        print(f"{args.output}: {record['run']} of study {record['study']!r}, {ppl}")
    return 0


COMMAND = Command(
    name="export",
    summary="write the winner of a finished study as an adapter, with its model card",
    description=_DESCRIPTION,
    examples=_EXAMPLES,
    add_arguments=_add_arguments,
    run=_run,
)
