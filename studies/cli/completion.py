"""What the shell offers after Tab: commands, options, and the values that they take.

A shell calls ``hylorada`` for it, after ``eval "$(register-python-argcomplete hylorada)"``.
"""

import argparse
import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import argcomplete
from argcomplete.completers import DirectoriesCompleter, FilesCompleter, SuppressCompleter

from hylorada import InputError
from hylorada.base_models.builtin_names import SMOLLM2, TEXTS, TINY
from studies.api.definitions import definitions
from studies.cli.options import folder, path
from studies.files.folder_files import stored_study
from studies.spec.arms import ADAPTER_FIELDS, SET_BY_STUDY, TRAINING_FIELDS
from studies.spec.budgets import BUDGETS
from studies.spec.fields import field_infos
from studies.spec.study import Study
from studies.trials.study_folders import stored_names, study_folder

_TAKE_DEFINITIONS = ("run", "estimate", "show")
_SPLITS = ("train", "validation", "test")


def complete(
    parser: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser]
) -> None:
    """Answer the shell, if it asks what the command line may continue with, and end the process.

    Args:
        parser: of the whole command line.
        commands: the parsers of its commands by name.
    """
    for name, command in commands.items():
        for action in command._actions:
            if (completer := _completer(name, action)) is not None:
                action.completer = completer  # type: ignore[attr-defined]
    argcomplete.autocomplete(
        parser, always_complete_options=False, default_completer=SuppressCompleter()
    )


def _completer(command: str, action: argparse.Action) -> Callable[..., Iterable[str]] | None:
    """Return what lists the values of an option or argument; None for values that are typed."""
    if action.dest == "study":
        return _definitions_and_studies if command in _TAKE_DEFINITIONS else _studies
    by_name: Mapping[str, Callable[..., Iterable[str]]] = {
        "arm": _arms,
        "model": _models,
        "data": _texts,
        "set": _own_fields if command == "add" else _fields,
        "start_from": _studies,
        "config": FilesCompleter(("yaml", "yml")),
    }
    if action.dest in by_name:
        return by_name[action.dest]
    if names := _fixed(action.dest):
        return _one_of(names)
    if action.type is folder:
        return DirectoriesCompleter()
    return FilesCompleter() if action.type is path else None


def _fixed(option: str) -> Iterable[str]:
    """Return the names that an option takes; none if it takes other values too."""
    names: Mapping[str, Iterable[str]] = {
        "budget": BUDGETS,
        "split": _SPLITS,
    }
    infos = field_infos(Study)
    return names.get(option) or (infos[option].one_of if option in infos else ())


def _one_of(names: Iterable[str]) -> Callable[..., Iterable[str]]:
    return lambda **_: list(names)


def _models(prefix: str, **rest: Any) -> Iterable[str]:
    return [TINY, SMOLLM2, *DirectoriesCompleter()(prefix, **rest)]


def _texts(prefix: str, **rest: Any) -> Iterable[str]:
    return [*TEXTS, *FilesCompleter()(prefix, **rest)]


def _definitions_and_studies(parsed_args: argparse.Namespace, **_: Any) -> Iterable[str]:
    return [*definitions(), *_studies(parsed_args)]


def _studies(parsed_args: argparse.Namespace, **_: Any) -> Iterable[str]:
    """Return the names of the studies in the storage folder that the command line names."""
    try:
        return stored_names(_storage(parsed_args))
    except OSError:
        return []


def _arms(parsed_args: argparse.Namespace, **_: Any) -> Iterable[str]:
    """Return the arms of the study that the command line names."""
    with contextlib.suppress(InputError, OSError, TypeError):
        place = study_folder(_storage(parsed_args), parsed_args.study)
        if place is not None:
            return list(stored_study(place / "study.json")["arms"])
    return []


def _fields(**_: Any) -> Iterable[str]:
    """Return the fields that ``--set`` changes in every study, each with its ``=``."""
    settable = (ADAPTER_FIELDS | TRAINING_FIELDS) - SET_BY_STUDY.keys()
    shared = (f"defaults.{name}" for name in sorted(settable))
    return [f"{name}=" for name in (*field_infos(Study), *shared)]


def _own_fields(**_: Any) -> Iterable[str]:
    """Return the fields that an added trial may change, each with its ``=``."""
    return [f"{name}=" for name in sorted((ADAPTER_FIELDS | TRAINING_FIELDS) - SET_BY_STUDY.keys())]


def _storage(parsed_args: argparse.Namespace) -> Path:
    return getattr(parsed_args, "storage", None) or Path("mlruns")
