"""What commands print of a study's results, and of its trials that have failed."""

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from studies.process.terminal_text import silence
from studies.reporting.terminal import Terminal
from studies.trials.messages import ERROR_LOG


def printing(show: Callable[[], None]) -> None:
    """Print; where nobody reads it, what has failed is told all the same."""
    try:
        show()
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)


def tell_failures(folder: Path) -> bool:
    """Each distinct error once, with its count and a log; whether there is any."""
    from studies.analysis.results import failures, load_records

    records = load_records(folder)
    found = failures(records)
    if found:
        states = Counter(r.state for r in records.values())
        print(
            "hylorada: " + ", ".join(f"{n} {state}" for state, n in sorted(states.items())),
            file=sys.stderr,
        )
    for reason, names in found.items():
        log = folder / "trials" / names[0] / ERROR_LOG
        print(
            f"hylorada: {len(names)} failed: {reason} (first {names[0]}, log: {log})",
            file=sys.stderr,
        )
    return bool(found)


def print_json(values: Any, **options: Any) -> None:
    """Print JSON of ASCII alone, without the one control character that ``json`` leaves raw."""
    print(json.dumps(values, **options).replace("\x7f", "\\u007f"))


def print_results(results: Any, as_json: bool) -> None:
    from studies.reporting.html_report import table, verdict_lines

    if as_json:
        print_json(results.to_dict(), indent=1)
        return
    Terminal().print(table(results))
    for line in (*verdict_lines(results), *(f"note: {note}" for note in results.notes)):
        print(line)
