"""Stop a running study or one of its trials, or add trials to it.

All of this goes through files in the study's folder, so it works from another terminal or notebook
that sees this folder. No server is needed, also for a study on a cluster.

Example:
    >>> from studies import add_trial, stop_study
    >>> add_trial("mine", {"learning_rate": 3e-4}, clone="learnable-0003")  # doctest: +SKIP
    'learnable-added-0001'
    >>> stop_study("mine")  # doctest: +SKIP
    True
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hylorada import InputError, nearest
from studies.files.folder_files import stored_study, study_command
from studies.spec.grid import cells
from studies.spec.study import Study
from studies.trials.study_folders import (
    find_study,
    has_finished,
    is_running,
    require_no_grid,
    stored_grid,
)

_PAUSE_S = 0.5


def stop_study(name: str, *, storage: str | Path = "mlruns", wait: float = 60.0) -> bool:
    """Ask a running study to end as on Ctrl-C, and wait for its end; its state is saved.

    Args:
        name: Name of the study, or of a grid whose cells are running.
        storage: Folder of the studies.
        wait: Longest time to wait, in seconds.

    Returns:
        Whether it has ended.

    Raises:
        InputError: No such study has been run, it is not running, or ``wait`` is negative.
    """
    from studies.trials.by_hand.requests import drop_stop, request_stop  # slow to import

    if not wait >= 0:
        raise InputError(f"wait must be at least 0 seconds, got {wait:g}")
    folder = find_study(Path(storage).expanduser().absolute(), name)
    if not is_running(folder):
        if has_finished(folder):
            raise InputError(f"study {name!r} is not running: it has finished")
        raise InputError(f"study {name!r} is not running")
    grid = stored_grid(folder)
    places = [folder.parent / c.study.name for c in cells(grid)] if grid else [folder]
    end = time.monotonic() + wait
    while is_running(folder):
        for place in places:  # of a grid, the cell that runs now
            if (place / "study.json").exists() and is_running(place):
                request_stop(place)
        if time.monotonic() >= end:
            return False
        time.sleep(min(_PAUSE_S, wait))
    for place in places:  # it may have ended by itself
        drop_stop(place)
    return True


def stop_trial(name: str, trial: str, *, storage: str | Path = "mlruns") -> bool:
    """Ask that a trial end at its next report; it keeps its reports and doesn't start again.

    It ends as a trial that ASHA stops: it can't become a winner.

    Args:
        name: Name of the study.
        trial: Name of the trial.
        storage: Folder of the studies.

    Returns:
        Whether the study is running; otherwise the trial ends once the study runs again.

    Raises:
        InputError: There is no such study or trial, the trial has ended, or it may not be stopped.
    """
    from studies.trials.by_hand.requests import STOPPABLE, request_trial_stop
    from studies.trials.loading import load_records

    folder = _folder(name, storage)
    records = load_records(folder)
    record = records.get(trial)
    if record is None:
        known = [r.name for r in records.values() if r.stage in STOPPABLE]
        hint = nearest(trial, known) if known else "it has none yet"
        raise InputError(f"study {name!r} has no trial {trial!r}; {hint}")
    if record.stage not in STOPPABLE:
        raise InputError(
            f"{trial} is a {record.stage} run and can't be stopped alone: the comparison needs "
            f"all of them; `{study_command(folder, 'stop')}` stops the study"
        )
    if record.state != "running":
        raise InputError(f"{trial} has ended already ({record.state})")
    request_trial_stop(folder, trial)
    return is_running(folder)


def add_trial(
    name: str,
    changes: Mapping[str, Any],
    *,
    arm: str | None = None,
    clone: str | None = None,
    storage: str | Path = "mlruns",
) -> str:
    """Add a trial of your own to a study, and return its name.

    It trains beside the study's own trials, or once the study runs again. It has the seeds of the
    trial that it changes, is never stopped early, and takes no part in the choice of winners or in
    the verdict, which would otherwise favour its arm by one more try.

    Args:
        name: Name of the study.
        changes: Adapter and training fields to set, such as ``{"learning_rate": 3e-4}``.
        arm: The arm whose defaults are changed; its first trial has the same seeds.
        clone: The trial whose configuration is changed, instead of ``arm``; it may still be
            running.
        storage: Folder of the studies.

    Raises:
        InputError: There is no such study, arm or trial, or the fields don't fit; all problems are
            listed.
    """
    from studies.trials.by_hand.added import plan_addition
    from studies.trials.by_hand.requests import request_addition
    from studies.trials.loading import load_records

    folder = _folder(name, storage)
    study = Study.from_dict(stored_study(folder / "study.json"))
    addition = plan_addition(study, load_records(folder), changes, arm=arm, clone=clone)
    if targets := changes.get("target_modules"):
        from hylorada.base_models.loading import target_problems  # slow to import

        names = [targets] if isinstance(targets, str) else targets
        if problems := target_problems(study.model, names):
            raise InputError([f"set.target_modules: {problem}" for problem in problems])
    return request_addition(folder, addition)


def _folder(name: str, storage: str | Path) -> Path:
    folder = find_study(Path(storage).expanduser().absolute(), name)
    require_no_grid(folder, name)
    return folder
