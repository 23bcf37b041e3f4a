"""The study that a command asks for: a definition or one that has been run, changed by a file and by options."""

import argparse
import importlib
import os
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hylorada import InputError, nearest
from studies.files.folder_files import require_readable, stored_study
from studies.files.paths import anywhere


def definitions() -> dict[str, Any]:
    """The study definitions: every public module of this package that has a STUDY."""
    import studies

    found = {}
    for module in pkgutil.iter_modules(studies.__path__):
        if not module.name.startswith("_") and not module.ispkg:
            found[module.name] = importlib.import_module(f"studies.{module.name}")
    return found


def _study_values(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """The definition, then the file, then the options, then ``--set``; and the problems with the last."""
    from studies.spec.overrides import override

    values = dict(_base_values(args))
    options = {
        "name": args.name,
        "model": args.model,
        "data": args.data,
        "text_column": args.text_column,
        "document_separator": args.document_separator,
        "block_size": args.block_size,
        "trials": args.trials,
        "searches": args.searches,
        "seeds": args.seeds,
        "seed": args.seed,
    }
    values |= {k: v for k, v in options.items() if v is not None}
    return override(values, args.set)


def checked_study(args: argparse.Namespace, options: Any = None) -> Any:
    """The study asked for; where it is wrong, all that is wrong with the other inputs is told too."""
    from studies.spec.study import Study

    values: dict[str, Any] = {}
    try:
        values, problems = _study_values(args)
        for name in ("model", "data"):
            if isinstance(values.get(name), str):
                values[name] = anywhere(values[name], folder=name == "model")
        study = Study.from_dict(values)
        problems += _new_start_problems(study, args.storage)
    except InputError as error:
        problems = [*(problems if values else []), *error.problems]
    if problems and options is not None:
        from studies.runner.inputs import input_problems

        problems += input_problems(values, options)
    if problems:
        raise InputError(problems)
    return study


def _new_start_problems(study: Any, storage: Path) -> list[str]:
    """Return the problems with start values but for those of the stored study, which was once begun with them."""
    from studies.spec.points import start_problems
    from studies.spec.study import Study

    problems = start_problems(study)
    folder = study_folder(storage, study.name) if problems else None
    if folder is None:
        return problems
    accepted = start_problems(Study.from_dict(stored_study(folder / "study.json")))
    return [problem for problem in problems if problem not in accepted]


def _base_values(args: argparse.Namespace) -> Mapping[str, Any]:
    from studies.spec.overrides import merge, read_file

    file: dict[str, Any] = read_file(args.config) if args.config else {}
    known = definitions()
    name = str(args.study or file.get("definition") or "")
    if not name:
        raise InputError(
            f"name a study: {', '.join(known)}; or give --config FILE with a definition"
        )
    stored = study_folder(args.storage, name)
    if name in known:
        begun = _begun(known[name].STUDY, study_folder(args.storage, args.name or name))
        return merge(_matching(begun, file, args.config), file)
    if stored is None and not args.study and "arms" in file:
        return file  # a definition of the user's own
    if stored is None:
        run = [p.parent.name for p in (args.storage / "studies").glob("*/study.json")]
        raise InputError(f"unknown study {name!r}; {nearest(name, [*known, *run])}")
    return merge(_matching(stored_study(stored / "study.json"), file, args.config), file)


def _begun(definition: Mapping[str, Any], folder: Path | None) -> Mapping[str, Any]:
    """Return a definition as the study in a folder has it, so that the same command resumes it.

    What may grow stays as large as it is. A study that was begun before arms shared a space stays as it was.
    """
    from studies.spec.changes import FREE

    if folder is None:
        return definition
    stored = stored_study(folder / "study.json")
    if stored["definition"] != definition["definition"]:
        return definition
    if not stored["common"]["space"] and definition["common"]["space"]:
        return stored
    return {**definition, **{k: stored[k] for k in FREE if k != "subject"}}


def _matching(values: Mapping[str, Any], file: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """``values``, if the file is not of another definition."""
    asked, given = values["definition"], file.get("definition", values["definition"])
    if asked != given:
        raise InputError(f"{path} is of definition {given!r}, the study asked for is of {asked!r}")
    return values


def study_folder(storage: Path, name: str) -> Path | None:
    """Where a study of this name has been run; None if none has."""
    folder = storage / "studies" / name
    require_readable(storage, folder.parent, folder)
    inside = name not in ("", ".", "..") and Path(name).name == name
    return folder if inside and os.path.exists(folder / "study.json") else None
