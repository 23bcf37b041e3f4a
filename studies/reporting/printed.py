"""Printed output of commands: a study's results, its failed trials, and JSON."""

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from studies.process.terminal_text import silence
from studies.reporting.terminal import Drawing, Terminal
from studies.trials.messages import ERROR_LOG


def printing(show: Callable[[], None]) -> None:
    """Call ``show`` to print; if the reader has closed the pipe, continue silently."""
    try:
        show()
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)


def tell_failures(folder: Path) -> bool:
    """Print each distinct error once, with its count and a log.

    Returns:
        Whether a trial of the study itself has failed; trials that users have added don't count.
    """
    from studies.trials.loading import failures, trial_ends

    ends = trial_ends(folder)
    failed = failures(ends)
    if failed:
        states = Counter(end.state for end in ends.values())
        print(
            "hylorada: " + ", ".join(f"{n} {state}" for state, n in sorted(states.items())),
            file=sys.stderr,
        )
    for reason, names in failed.items():
        log = folder / "trials" / names[0] / ERROR_LOG
        print(
            f"hylorada: {len(names)} failed: {reason} (first {names[0]}, log: {log})",
            file=sys.stderr,
        )
    return any(end.state == "failed" and end.stage != "added" for end in ends.values())


def print_json(values: Any, **options: Any) -> None:
    """Print JSON in ASCII, with DEL escaped: ``json`` leaves that one control character raw."""
    print(json.dumps(values, **options).replace("\x7f", "\\u007f"))


def print_results(results: Any, as_json: bool, *, running_again: bool = False) -> None:
    """Print a study's table, verdict and notes, or all of its results as JSON."""
    from studies.reporting.html_report import comparison_tables, table, verdict_lines
    from studies.reporting.replication_table import replication_sheet, replication_title

    if as_json:
        print_json({**results.to_dict(), "partial": running_again}, indent=1)
        return
    terminal = Terminal()
    for drawn in (table(results), *comparison_tables(results)):
        terminal.print(drawn)
    for claim in results.replication:
        print(replication_title(claim))
        terminal.print(Drawing(replication_sheet(claim)))
    step = results.next_step.lines() if results.next_step else []
    notes = (f"note: {note}" for note in results.notes)
    for line in (*verdict_lines(results), *results.recommendations, *step, *notes):
        print(line)
