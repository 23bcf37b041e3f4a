"""Running a grid: each cell as a study of its own, then one report over all cells."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from hylorada import InputError
from studies.analysis.cells.across import Across
from studies.analysis.results import Results
from studies.files.folder_files import STUDY, hold_study, require_not_run, stored_study, write_json
from studies.files.paths import without_folder
from studies.process.environment import study_environment
from studies.process.options import Options
from studies.reporting.terminal import say
from studies.runner.cell_reports import report_grid
from studies.runner.resolve import Budget, check_budget, resolve, with_looks
from studies.runner.run import check_inputs, run_study
from studies.spec.changes import as_requested, changes, fewer
from studies.spec.grid import Cell, cells
from studies.spec.study import Study
from studies.trials.records import check_kinds
from studies.trials.study_folders import as_begun, study_folder

_LEAST_SECONDS = 1e-3  # for a cell whose share of the time is used up: it adds no search
RunCell = Callable[[Study, Options, Console], Results]


def run_grid(study: Study, options: Options, console: Console, run: RunCell = run_study) -> Across:
    """Run every cell of a grid, one after another, and report all of them together.

    Each cell is an ordinary study with a folder, an MLflow experiment and a report of its own, so
    a grid that was interrupted resumes where it was.

    Args:
        study: checked study with a grid.
        options: where to run.
        console: console for progress.
        run: function that runs or resumes a cell.

    Returns:
        The comparison over cells, which is also in the grid's folder as ``report.html``.

    Raises:
        InputError: bad input of any cell, before anything is trained; it names the cell.
        StudyStopped: storage, processes or machines keep a cell from continuing; all state is
            saved.
        KeyboardInterrupt: the user or the system has ended the process; the state is saved.
    """
    folder = options.study_folder(study.name)
    check_kinds(folder)
    require_not_run(folder, study.name)
    _refuse_another(study, folder)
    planned, ends = [_as_begun(cell, options) for cell in cells(study)], _end(options)
    _check_cells(planned, options)
    with _locked(study, folder):
        write_json(folder / "study.json", study.to_dict(), STUDY)
        for number, cell in enumerate(planned, 1):
            place = f"cell {number} of {len(planned)}: {cell.label}"
            say(console, f"{place} (study {cell.study.name})")
            with _naming(cell):
                run(cell.study, _share_of_time(options, ends, len(planned) - number + 1), console)
        return report_grid(study, options, write=True)


def _end(options: Options) -> float:
    return math.inf if options.time_limit is None else time.monotonic() + options.time_limit


def _share_of_time(options: Options, ends: float, cells_left: int) -> Options:
    """Return the options of a cell, which gets an even share of the time that is left."""
    if options.time_limit is None:
        return options
    share = (ends - time.monotonic()) / cells_left
    return replace(options, time_limit=max(share, _LEAST_SECONDS))


def resolve_grid(study: Study, options: Options, console: Console, budget: Budget) -> Across:
    """Add searches to every cell of a grid until each of its comparisons is decided.

    Args:
        study: the grid as it was run.
        options: where to run.
        console: console for progress.
        budget: when to stop without a decision; cells share its time evenly.

    Raises:
        InputError: the margin or the time is not above 0.
    """
    check_budget(budget)
    study, began = with_looks(replace(study, margin=budget.margin)), time.monotonic()
    cells_left = iter(range(len(cells(study)), 0, -1))

    def run(cell: Study, options: Options, console: Console) -> Results:
        share = None
        if budget.seconds is not None:
            left = budget.seconds - (time.monotonic() - began)
            share = max(left / next(cells_left), _LEAST_SECONDS)
        if not (options.study_folder(cell.name) / "study.json").exists():
            run_study(cell, options, console)
        return resolve(cell, options, console, Budget(budget.margin, share), run_study)

    return run_grid(study, options, console, run)


def _refuse_another(study: Study, folder: Path) -> None:
    """Raise if the folder holds something that this grid can't continue.

    A grid may gain values. Losing some would hide cells that have been run.

    Raises:
        InputError: the folder holds an ordinary study, another grid, or a larger one.
    """
    path, name = folder / "study.json", study.name
    if not path.exists():
        return
    before = stored_study(path)
    if not before["grid"]:
        raise InputError(f"study {name!r} exists and is not a grid; choose another name (--name)")
    whole = {**before, "grid": {}}
    problems = [
        f"study {name!r} exists with other settings: {change}"
        for change in changes(whole, replace(study, grid={}))
    ]
    problems += [f"study {name!r}: {problem}" for problem in fewer(before, study)]
    if list(before["grid"]) != list(study.grid):
        problems.append(
            f"study {name!r}: grid spanned {', '.join(before['grid'])}, now {', '.join(study.grid)}"
        )
    for axis, values in study.grid.items():
        kept = {without_folder(str(v)) for v in values}
        lost = [v for v in before["grid"].get(axis, ()) if without_folder(str(v)) not in kept]
        if lost:
            problems.append(f"study {name!r}: grid.{axis} has lost {lost}; a grid can't shrink")
    if problems:
        raise InputError(
            [*problems, "restore the former settings, or choose another name (--name)"]
        )


def _as_begun(cell: Cell, options: Options) -> Cell:
    """Return a cell with its stored counts and looks where they are larger.

    A user can extend a single cell by its own name.
    """
    folder = study_folder(options.storage, cell.study.name)
    values = as_begun(cell.study.to_dict(), folder, asked_for=True)
    return Cell(cell.values, Study.from_dict(values))


def _check_cells(planned: Sequence[Cell], options: Options) -> None:
    """Check the inputs of all cells, and that their folders hold nothing else.

    Raises:
        InputError: there are problems; each names its cell, unless all cells have it.
    """
    # The second check tokenises the texts and keeps that in a cache, so the first comes first.
    for check in (_check_quickly, check_inputs):
        by_problem: dict[str, list[str]] = {}
        for cell in planned:
            for problem in _problems(check, cell.study, options):
                by_problem.setdefault(problem, []).append(cell.label)
        problems = [
            problem if len(labels) == len(planned) else f"cell with {'; '.join(labels)}: {problem}"
            for problem, labels in by_problem.items()
        ]
        if problems:
            raise InputError(problems)


def _problems(
    check: Callable[[Study, Options], object], study: Study, options: Options
) -> list[str]:
    try:
        check(study, options)
    except InputError as error:
        return error.problems
    return []


def _check_quickly(study: Study, options: Options) -> None:
    """Raise if the study's folder, base, text or output locations can't be used.

    Raises:
        InputError: there are problems; all are listed.
    """
    from studies.runner.inputs import input_problems

    _refuse_changed(study, options)
    with study_environment():
        if problems := input_problems(study.to_dict(), options):
            raise InputError(problems)


def _refuse_changed(study: Study, options: Options) -> None:
    """Raise if the folder of a cell holds a study with other settings.

    Raises:
        InputError: it names each setting.
    """
    path = options.study_folder(study.name) / "study.json"
    if not path.exists():
        return
    if differing := changes(as_requested(stored_study(path), study), study):
        raise InputError(
            [f"study {study.name!r} exists with other settings: {c}" for c in differing]
        )


@contextmanager
def _naming(cell: Cell) -> Iterator[None]:
    """Name the cell in each problem that is raised inside this context."""
    try:
        yield
    except InputError as error:
        raise InputError([f"cell with {cell.label}: {p}" for p in error.problems]) from error


@contextmanager
def _locked(study: Study, folder: Path) -> Iterator[None]:
    """Keep other processes from running this grid inside this context.

    Raises:
        InputError: another process runs it.
    """
    lock = hold_study(folder, study.name)
    try:
        yield
    finally:
        lock.release()
