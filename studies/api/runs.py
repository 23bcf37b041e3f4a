"""Studies from Python: what ``hylorada run`` and ``hylorada extend`` do, from a script or notebook.

Example:
    >>> from studies import get_study, run_study
    >>> study = get_study("learnable_bucketing", name="short", searches=2, trials=2)
    >>> results = run_study(study)  # doctest: +SKIP
    >>> results.comparisons[["change", "low", "high"]]  # doctest: +SKIP
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from hylorada import InputError, nearest
from studies.analysis.cells.across import Across
from studies.api.definitions import definitions
from studies.api.study_results import StudyResults, load_results
from studies.files.folder_files import stored_study
from studies.files.paths import with_absolute_paths
from studies.process.options import Options
from studies.progress.display import in_notebook
from studies.reporting.terminal import Terminal, say
from studies.spec.budgets import giving_way
from studies.spec.changes import fewer
from studies.spec.overrides import merge
from studies.spec.points import new_start_problems
from studies.spec.proposals.start_entries import is_reference
from studies.spec.study import GROWING, Study
from studies.trials.study_folders import as_begun, find_study, named_studies, study_folder

if TYPE_CHECKING:
    from studies.runner.estimate import Estimate
    from studies.search.ledger import Callbacks


def get_study(definition: str, /, **changes: Any) -> Study:
    """Return a study that comes with the package, with some of its fields changed.

    Args:
        definition: Name of the study, as ``hylorada list`` shows it.
        changes: Fields of :class:`Study`. Mappings are merged with the study's, as with
            ``--config``: ``defaults={"max_steps": 500}`` leaves the other defaults as they are.

    Raises:
        InputError: There is no such study, or the changes don't fit; all problems are listed.
    """
    known = definitions()
    if definition not in known:
        raise InputError(f"unknown study {definition!r}; {nearest(definition, known)}")
    values = known[definition].values
    # Steps and epochs, and seeds and a list of them, exclude each other: what is asked for wins.
    values = merge(giving_way(values, merge(values, changes)), changes)
    if changes.get("seed_list") and "seeds" not in changes:
        del values["seeds"]
    if "grid" in changes:
        values["grid"] = changes["grid"]
    return Study.from_dict(values)


def run_study(
    study: Study, *, options: Options | None = None, callbacks: "Callbacks | None" = None
) -> StudyResults:
    """Search, confirm and report a study; resume one that was interrupted.

    In a program that has called ``ray.init()``, the study runs on that Ray and leaves it running.
    Progress appears in a terminal or below a notebook's cell.

    Args:
        study: The study, from :func:`get_study` or built by yourself.
        options: Where to run and what to write to; by default this machine and ``mlruns``.
        callbacks: Functions that are called after each report and each end of a trial.

    Raises:
        InputError: Bad input, before anything is trained; all problems are listed.
        StudyStopped: Storage, processes or machines keep the study from continuing; its state is
            saved, and the same call resumes it.
        KeyboardInterrupt: The user has ended the call; the state is saved.
    """
    options = _settled(options or Options())
    study = _checked(study, options)
    from studies.runner.run import run_study as run  # loads torch

    run(study, options, _console(), callbacks)
    return load_results(study.name, options.storage)


def extend_study(
    name: str,
    *,
    options: Options | None = None,
    callbacks: "Callbacks | None" = None,
    **counts: int,
) -> StudyResults:
    """Enlarge a study that has been run, and compute its verdict again.

    Args:
        name: Its name.
        options: Where to run and what to write to; by default this machine and ``mlruns``.
        callbacks: Functions that are called after each report and each end of a trial.
        counts: New totals of ``trials``, ``searches`` or ``seeds``.

    Raises:
        InputError: No such study has been run, or a count is smaller than before.
    """
    if not counts or counts.keys() - set(GROWING):
        raise InputError(
            f"extend {name!r} by one or more of {', '.join(GROWING)}, "
            f"got {', '.join(counts) or 'nothing'}"
        )
    options = options or Options()
    stored = stored_study(find_study(options.storage.expanduser().absolute(), name) / "study.json")
    study = Study.from_dict({**stored, **counts})
    if smaller := fewer(stored, study):
        raise InputError([f"study {name!r}: {problem}" for problem in smaller])
    return run_study(study, options=options, callbacks=callbacks)


def estimate(study: Study, *, options: Options | None = None) -> "Estimate":
    """Estimate what a run of a study takes on this machine, from a few measured steps.

    Nothing of the study is trained or written. Of a study that has begun, what is left is
    estimated.

    Args:
        study: The study, from :func:`get_study` or built by yourself.
        options: Where to run and what to write to; by default this machine and ``mlruns``.

    Raises:
        InputError: Bad input; all problems are listed.
        StudyStopped: A trial can't be trained here, for example because memory is short.

    Example:
        >>> from studies import estimate, get_study
        >>> print(estimate(get_study("learnable_bucketing")))  # doctest: +SKIP
    """
    options = _settled(options or Options())
    study = _checked(study, options)
    from studies.runner.estimate import estimate_study  # loads torch

    return estimate_study(study, options)


def compare_studies(*names: str, storage: str | Path = "mlruns") -> Across:
    """Compare the same arms over studies that have been run, and pool their changes.

    Args:
        names: Names or folders of two or more studies; a grid stands for its cells.
        storage: Folder of the studies.

    Raises:
        InputError: The studies can't be compared; it says why.
    """
    from studies.runner.cell_reports import compare_studies as compare

    folders = named_studies(names, Path(storage).expanduser().absolute())
    result, _ = compare(folders)
    return result


def _settled(options: Options) -> Options:
    """Return options with an absolute storage folder and the address of MLflow from its variable.

    An address in the options wins.
    """
    from studies.process.mlflow_address import heed_environment

    return replace(
        options,
        storage=Path(options.storage).expanduser().absolute(),
        tracking_uri=heed_environment(options.tracking_uri),
        quiet=True,
    )


def _checked(study: Study, options: Options) -> Study:
    """Return a study whose values have been checked, with paths that hold from any folder.

    A study that has been run keeps its looks, and its counts where they are larger.

    Raises:
        InputError: It lists all problems.
    """
    folder = study_folder(options.storage, study.name)
    values = as_begun(with_absolute_paths(study.to_dict()), folder, asked_for=True)
    checked = Study.from_dict(values)
    if any(map(is_reference, checked.start)):
        from studies.trials.warm_start import with_winners

        checked, notes = with_winners(checked, options.storage)
        for note in notes:
            say(_console(), f"hylorada: note: {note}")
    problems = new_start_problems(checked, folder)
    if checked.grid:
        problems.append(
            f"study {checked.name!r} spans a grid; use `hylorada run {checked.definition}`, or run "
            "one study for each of its values (grid={}) and pool them with compare_studies"
        )
    if problems:
        raise InputError(problems)
    return checked


def _console() -> Console:
    """Return the console for progress: standard error, or a notebook's cell."""
    if in_notebook():
        return Console(file=sys.stdout, force_jupyter=False, markup=False, emoji=False)
    return Terminal(stderr=True)
