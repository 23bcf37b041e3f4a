"""What ``hylorada explain`` reads before it starts, and what it prints at its end."""

import argparse
from pathlib import Path
from typing import Any

from studies.analysis.results import load_records
from studies.files.folder_files import stored_study
from studies.reporting.explanation_tables import neighbours_sheet, path_sheet, sentences
from studies.reporting.terminal import Drawing, Terminal
from studies.search.explain import Request, make_plan
from studies.spec.study import Study
from studies.trials.explanations import Explanation


def asked(folder: Path, args: argparse.Namespace) -> tuple[Study, Request]:
    """Return the stored study and what is asked of it.

    Raises:
        InputError: it can't be explained; nothing has been written or started.
    """
    study = Study.from_dict(stored_study(folder / "study.json"))
    request = Request(args.arm, args.search, args.seeds)
    make_plan(study, load_records(folder), request)
    return study, request


def explanation_values(found: Explanation) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    return {**found.to_dict(), "said": sentences(found)}


def print_explanation(found: Explanation, folder: Path) -> None:
    """Print both tables and the sentences that they support."""
    for title, sheet in (
        (
            f"From the defaults to {found.trial}, each step on top of those above:",
            path_sheet(found),
        ),
        (f"From {found.trial} one step away:", neighbours_sheet(found)),
    ):
        if sheet.rows:
            print(title)
            Terminal().print(Drawing(sheet))
            print()
    for line in sentences(found):
        print(line)
    print(f"report: {folder / 'report.html'}")
