"""Resolving a study: more searches until every comparison is decided or the time is up."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from hylorada import InputError
from studies.files.folder_files import stored_study, study_command
from studies.process.options import Options
from studies.reporting.terminal import say
from studies.spec.study import Study

if TYPE_CHECKING:
    from studies.analysis.results import Results

_GROWTH, _LOOKS = 2, 3  # undeclared looks: at R, 2 R and 4 R searches
_MOST_SEARCHES = 100


@dataclass(frozen=True)
class Budget:
    """The limits of a `resolve` command.

    Attributes:
        margin: comparisons whose whole interval lies within this many % are decided as equivalent.
        seconds: wall time; None for as long as the declared looks take.
    """

    margin: float
    seconds: float | None = None


def with_looks(study: Study) -> Study:
    """Return the study with looks declared, unless it has declared looks that are still ahead."""
    if any(n >= study.searches for n in study.looks):
        return study
    first = max(2, study.searches)
    ahead = [first * _GROWTH**k for k in range(_LOOKS) if first * _GROWTH**k <= _MOST_SEARCHES]
    return replace(study, looks=tuple(sorted({*study.looks, *ahead})[-_LOOKS:]))


def resolve(
    study: Study,
    options: Options,
    console: Console,
    budget: Budget,
    run: Callable[[Study, Options, Console], "Results"],
) -> "Results":
    """Run a study, then with more searches, look by look, until every comparison is decided.

    Args:
        study: the study as it was run.
        options: where to run.
        console: console for progress.
        budget: when to stop without a decision.
        run: function that runs or resumes a study (:func:`studies.runner.run.run_study`).

    Returns:
        The results of the last look.

    Raises:
        InputError: the margin or the time is not above 0.
    """
    check_budget(budget)
    began = time.monotonic()
    study = with_looks(replace(study, margin=budget.margin))
    _say(
        console,
        f"looks at {', '.join(map(str, study.looks))} searches; "
        "the looks of this command together keep the probability of a false verdict at 5 %",
    )
    cost = None
    while True:
        before, started = _searches_stored(options.study_folder(study.name)), time.monotonic()
        results = run(study, options, console)
        if study.searches > before > 0:
            cost = (time.monotonic() - started) / (study.searches - before)
        undecided = [
            f"{c.arm} vs {c.reference}" for c in results.comparisons if c.outcome == "undecided"
        ]
        ahead = [n for n in study.looks if n > study.searches]
        count = len(results.comparisons) - len(undecided)
        decided = f"{count} of {len(study.comparisons)} comparisons are decided"
        _say(console, f"{study.searches} searches, {time.monotonic() - began:.0f} s: {decided}")
        if undecided and not ahead:
            _say(console, _no_look_left(options.study_folder(study.name), study, undecided))
        if not undecided or not ahead:
            break
        more = (ahead[0] - study.searches) * (
            cost or _seconds_a_search(options.study_folder(study.name), study)
        )
        if budget.seconds is not None and time.monotonic() - began + more > budget.seconds:
            _say(
                console,
                f"{ahead[0]} searches would take about {more:.0f} s more, past the time limit",
            )
            break
        _say(
            console,
            f"undecided: {', '.join(undecided)}; continuing to {ahead[0]} searches, "
            f"about {more:.0f} s",
        )
        study = replace(study, searches=ahead[0])
    return results


def _no_look_left(folder: Path, study: Study, undecided: list[str]) -> str:
    """Say why resolving ends without a decision, and which command goes on."""
    ends = f"undecided: {', '.join(undecided)}; all looks are taken"
    more = min(_MOST_SEARCHES, study.searches * _GROWTH)
    if more <= study.searches:
        return f"{ends}, and a study has at most {_MOST_SEARCHES} searches"
    command = study_command(folder, "extend", "--searches", str(more))
    return f"{ends}. To add searches beyond them: {command}"


def check_budget(budget: Budget) -> None:
    """Raise if a limit is not above 0.

    Raises:
        InputError: it names each such limit.
    """
    problems = []
    if not 0 < budget.margin < math.inf:
        problems.append(f"margin must be a number of percent above 0, got {budget.margin:g}")
    if budget.seconds is not None and not budget.seconds > 0:
        problems.append(f"time-limit must be above 0 s, got {budget.seconds:g}")
    if problems:
        raise InputError(problems)


def _searches_stored(folder: Path) -> int:
    return int(stored_study(folder / "study.json")["searches"])


def _seconds_a_search(folder: Path, study: Study) -> float:
    """Estimate the wall time of one more search from the host time of all trials so far."""
    from studies.trials.records import read_records

    records = read_records(folder).values()
    counted = [r for r in records if r.reports and r.stage not in ("explain", "added")]
    spent = sum(r.reports[-1].seconds for r in counted)
    return spent / max(1, study.searches)


def _say(console: Console, text: str) -> None:
    say(console, f"resolve: {text}")
