"""``hylorada export``: the winner of a finished study as an adapter, and its files for a paper."""

import argparse
from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from hylorada import InputError
from studies.cli.command import Command
from studies.cli.options import add_json, add_storage, add_study_name, folder
from studies.cli.stored_studies import open_finished_study

if TYPE_CHECKING:
    from rich.console import Console

_DESCRIPTION = """\
Write the winner of a finished study as an adapter (--output), or all that a paper about the study
needs (--figures), or both.

Use it to keep or publish the best adapter, and to write about a study.

  --output   the adapter in PEFT's format, which stock PEFT loads too, and its model card;
             `hylorada evaluate --adapter DIR` measures it again
  --figures  figures/   each figure of the report as SVG and PDF; figures.tex includes them
             tables/    each table of the report as CSV and LaTeX (booktabs)
             data/      arms, comparisons, all changes and all trials as CSV, at full precision;
                        components and published claims too, where the study measures them
             verdict    the verdict, recommendations and notes in Markdown
             methods    what was done, with settings and versions, in Markdown and LaTeX;
                        references.bib has the works that it cites

Equal studies give equal figures and tables. An earlier folder of --figures is replaced as a whole,
unless it holds files that were changed or added.
"""
_EXAMPLES = """\
  hylorada export learnable_bucketing --output winner
  hylorada export learnable_bucketing --arm fixed --output fixed-winner
  hylorada export learnable_bucketing --figures paper
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
        help="paired seed whose run to write, by its name if the study names its seeds "
        "(--seed-list), or by its number from 0; default: the first",
    )
    parser.add_argument(
        "--output", type=folder, metavar="DIR", help="folder to write the adapter to"
    )
    parser.add_argument(
        "--figures",
        type=folder,
        metavar="DIR",
        help="folder to write figures, tables, numbers, verdict and methods to",
    )
    add_storage(parser)
    add_json(parser)


def _run(args: argparse.Namespace, _console: "Console") -> int:
    from studies.reporting.printed import print_json

    _check(args)
    study = open_finished_study(args)
    values: dict[str, Any] = {}
    if args.figures is not None:
        from studies.reporting.paper.kit import write_kit

        files = write_kit(study, args.figures)
        values |= {"study": study.name, "figures": str(args.figures), "files": files}
        if not args.json:
            print("\n".join(_summary(args.figures, files)))
    if args.output is not None:
        from studies.reporting.export import export_winner

        record = export_winner(study, args.output, arm=args.arm, seed=args.seed)
        values |= {**record, "output": str(args.output)}
        if not args.json:
            on = " on padded rows" if record["padded_rows"] else ""
            ppl = f"test PPL {record['test_ppl']:.4f}{on}"
            print(f"{args.output}: {record['run']} of study {record['study']!r}, {ppl}")
    if args.json:
        print_json(values, indent=1)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Refuse a command without an output folder, or with options that have no effect.

    Raises:
        InputError: It lists all problems.
    """
    if args.output is None and args.figures is None:
        raise InputError("name a folder with --output (the adapter) or --figures (for a paper)")
    if args.output is not None and args.figures is not None:
        output, figures = args.output.resolve(), args.figures.resolve()
        if output.is_relative_to(figures) or figures.is_relative_to(output):
            raise InputError(
                "--output and --figures must name different folders, neither inside the other"
            )
    unheeded = [name for name in ("arm", "seed") if getattr(args, name) is not None]
    if unheeded and args.output is None:
        raise InputError([f"--{name} chooses an adapter; it needs --output" for name in unheeded])


def _summary(output: Path, files: Iterable[str]) -> list[str]:
    """Return one line per folder: how many files of each kind it holds, or their names."""
    paths = [PurePosixPath(name) for name in files]
    lines = []
    for place in dict.fromkeys(p.parent for p in paths):
        names = [p.name for p in paths if p.parent == place]
        kinds = Counter(p.suffix for p in paths if p.parent == place)
        many = len(names) > len(kinds) and place.name in ("figures", "tables")
        each = [f"{count} {kind}" for kind, count in kinds.items()] if many else names
        lines.append(f"{output / place}: {', '.join(each)}")
    return lines


COMMAND = Command(
    name="export",
    summary="write the winner of a finished study as an adapter, or its files for a paper",
    description=_DESCRIPTION,
    examples=_EXAMPLES,
    add_arguments=_add_arguments,
    run=_run,
)
