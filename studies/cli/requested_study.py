"""The study that a command requests.

It is a definition or a study that has been run, changed by a file and by options.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hylorada import InputError, nearest
from studies.api.definitions import Definition, definitions
from studies.cli.options import study_options
from studies.files.folder_files import planned_study
from studies.files.own_designs import named_designs
from studies.files.paths import with_absolute_paths
from studies.process.options import Options
from studies.spec.changes import as_requested, differing
from studies.spec.fields import GRID_AXES
from studies.spec.grid import cells
from studies.spec.proposals.start_entries import FROM, is_reference
from studies.spec.study import Study
from studies.trials.study_folders import as_begun, stored_names, study_folder


def checked_study(args: argparse.Namespace, options: Options | None = None) -> Study:
    """Return the requested study.

    Args:
        args: arguments of the command.
        options: where the study will run; None if it will not.

    Raises:
        InputError: All problems with the study and, if there are some and ``options`` are given,
            those with its other inputs too.
    """
    from studies.spec.points import new_start_problems

    values: dict[str, Any] = {}
    try:
        values, problems = _study_values(args)
        values = with_absolute_paths(values)
        study = _with_winners(Study.from_dict(values), args.storage)
        problems += new_start_problems(study, study_folder(args.storage, study.name))
        if study.grid:
            cells(study)  # raises if values of a cell don't fit the study
    except InputError as error:
        problems = [*(problems if values else []), *error.problems]
    if problems and options is not None:
        from studies.runner.inputs import input_problems

        problems += input_problems(values, options)
    if problems:
        raise InputError(problems)
    return study


def _with_winners(study: Study, storage: Path) -> Study:
    """Return the study with the winners of the studies that it starts from, and print notes."""
    if not any(map(is_reference, study.start)):
        return study
    from studies.trials.warm_start import with_winners

    study, notes = with_winners(study, storage)
    for note in notes:
        print(f"hylorada: note: {note}", file=sys.stderr)
    return study


def _study_values(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Return the plain values of the requested study, and the problems with ``--set``.

    The definition comes first, then the file, the budget, the options, and ``--set``. What a user
    changes may replace a part of the definition, so the values are put together twice.
    """
    from studies.spec.budgets import budget_problems, giving_way
    from studies.spec.overrides import read_file

    file: dict[str, Any] = read_file(args.config) if args.config else {}
    if file.get("designs"):
        raise InputError(
            f"{args.config}: designs holds code, which a study file can't bring; save it as .py "
            "files and name them in landmark_design"
        )
    base = _reading_again(_base_values(args, file), file, args.set)
    values, _ = _changed(base, file, args)
    values, problems = _changed(giving_way(base, values), file, args)
    if _seeds_follow(base, file, values, args):
        values.pop("seeds", None)
    return values, budget_problems(args.budget) + problems


def _reading_again(
    base: Mapping[str, Any], file: Mapping[str, Any], assignments: Sequence[str]
) -> Mapping[str, Any]:
    """Return a begun study without the code of designs that the user names again.

    That code is read again, so that a study is not resumed in silence with an earlier version.
    """
    sources = base.get("designs", {})
    named = {os.path.basename(design.rpartition(":")[0]) for design in named_designs(file)}
    named |= {name for name in sources if any(f"{name}:" in a for a in assignments)}
    if not named & {*sources}:
        return base
    return {**base, "designs": {f: s for f, s in sources.items() if f not in named}}


def _changed(
    base: Mapping[str, Any], file: Mapping[str, Any], args: argparse.Namespace
) -> tuple[dict[str, Any], list[str]]:
    """Return the base with all that the user has changed, and the problems with ``--set``."""
    from studies.spec.budgets import BUDGETS
    from studies.spec.overrides import merge, override

    values = {**merge(base, file), **BUDGETS.get(args.budget, {})}
    given = {name: getattr(args, name) for name in study_options()}
    values |= {name: value for name, value in given.items() if value is not None}
    values, problems = override(values, args.set)
    if isinstance(start := values.get("start", []), list):  # otherwise it is a problem itself
        held = {e.get(FROM) for e in start if isinstance(e, Mapping)}  # by the begun study
        names = [name for name in args.start_from or () if name not in held]
        values["start"] = [*start, *({FROM: name} for name in names)]
    assigned = _assigned(args)
    grid = values.get("grid")
    spanned = [a for a in GRID_AXES if isinstance(grid, Mapping) and a in grid]
    problems += [
        f"{axis} {values[axis]!r}: the study's grid spans {axis}; write "
        f"--set 'grid.{axis}=[{values[axis]}]'"
        for axis in spanned
        if given.get(axis) is not None or (axis in assigned and axis in values)
    ]
    return values, problems


def _assigned(args: argparse.Namespace) -> set[str]:
    """Return the dotted names that ``--set`` assigns."""
    return {assignment.partition("=")[0].strip() for assignment in args.set}


def _seeds_follow(
    base: Mapping[str, Any],
    file: Mapping[str, Any],
    values: Mapping[str, Any],
    args: argparse.Namespace,
) -> bool:
    """Return whether the number of seeds follows from seeds that the user has named.

    A number that is given too, on the command line or beside the names in the file, is checked
    against them, even if it is that of the base.
    """
    named = values.get("seed_list")
    if not named or named == base.get("seed_list"):
        return False
    in_file = "seeds" in file and file.get("seed_list") == named
    given = args.seeds is not None or "seeds" in _assigned(args) or in_file
    return not given and values.get("seeds") == base.get("seeds")


def _base_values(args: argparse.Namespace, file: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of the definition or the stored study that the file changes."""
    known = definitions()
    name = str(args.study or file.get("definition") or "")
    if not name:
        raise InputError(
            f"name a study: {', '.join(known)}; or give --config FILE with a definition"
        )
    stored = study_folder(args.storage, name)
    if stored is not None and _asks_for_no_change(args):
        return _as_it_was_begun(stored, known.get(name))
    if name in known:
        folder = study_folder(args.storage, args.name or name)
        begun = as_begun(known[name].values, folder, asked_for=False)
        return _matching(begun, file, args.config)
    if stored is None and not args.study and "arms" in file:
        return file  # the file is a definition of its own
    if stored is None:
        hint = nearest(name, [*known, *stored_names(args.storage)])
        raise InputError(f"unknown study {name!r}; {hint}")
    return _matching(planned_study(stored / "study.json"), file, args.config)


def _asks_for_no_change(args: argparse.Namespace) -> bool:
    """Return whether the command names a study and nothing that changes it."""
    given = [args.name, args.config, args.budget, args.start_from, *args.set]
    given += [getattr(args, name) for name in study_options()]
    return all(value is None for value in given)


def _as_it_was_begun(folder: Path, definition: Definition | None) -> Mapping[str, Any]:
    """Return the values of a stored study; say how they differ from the definition of its name."""
    values = planned_study(folder / "study.json")
    if definition is None:
        return values
    study = Study.from_dict(definition.values)
    if names := differing(as_requested(values, study), study):
        print(
            f"hylorada: note: study {folder.name!r} keeps the settings that it was begun with, "
            f"which differ from its definition's in {', '.join(names)}",
            file=sys.stderr,
        )
    return values


def _matching(values: Mapping[str, Any], file: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Return ``values``; raise if the file is of another definition."""
    expected = values["definition"]
    if (given := file.get("definition", expected)) != expected:
        raise InputError(
            f"{path} is of definition {given!r}, the requested study is of {expected!r}"
        )
    return values
