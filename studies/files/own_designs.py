"""Landmark designs of the user's own: the source of their files is part of the study.

``landmark_design: folder/my_design.py:MyLandmark`` names a class in a file. The file is read when
the study is made, and every process takes the source from the study. A study therefore resumes
with the code that it began with, on every node and after a move; a changed file is another study.
"""

import ast
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from hylorada import InputError, nearest
from hylorada.runtime.checksums import digest

_FIELD = "landmark_design"
_IN_FILE = re.compile(r"(?P<path>.*\.py):(?P<name>[^\W\d]\w*)", re.DOTALL)
_PLACES = ("defaults", "common", "arms")
_LONGEST = 10**6  # bytes


def with_sources(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a study's plain values with the source of each design in a file, and all problems.

    A design loses its folder, so that its name is the same everywhere. A file without a folder is
    read from the working folder, unless the study has its source already.
    """
    known = values.get("designs", {})
    if not isinstance(known, Mapping) or not all(
        isinstance(text, str) for pair in known.items() for text in pair
    ):
        return dict(values), [f"designs must map file names to their source, got {known!r}"]
    sources: dict[str, str] = {}
    problems: list[str] = []

    def read(design: str) -> str:
        if not (parts := _IN_FILE.fullmatch(design)):
            return design
        path, name = os.path.expanduser(parts["path"]), parts["name"]
        file = os.path.basename(path)
        try:
            source = known[file] if path == file and file in known else _read(path)
            problems.extend(_source_problems(design, name, source))
            if sources.setdefault(file, source) != source:
                problems.append(f"{_FIELD} {design!r}: another file has the same name; rename one")
        except InputError as error:
            problems.extend(f"{_FIELD} {design!r} {problem}" for problem in error.problems)
        return f"{file}:{name}"

    renamed = {place: _renamed(values[place], read) for place in _PLACES if place in values}
    if not sources and "designs" not in values:
        return {**values, **renamed}, list(dict.fromkeys(problems))
    return {**values, **renamed, "designs": sources}, list(dict.fromkeys(problems))


def _renamed(values: Any, read: Callable[[str], str], inside: bool = False) -> Any:
    """Return plain values in which every text below a ``landmark_design`` is replaced."""
    if isinstance(values, str):
        return read(values) if inside else values
    if isinstance(values, list | tuple):
        return [_renamed(value, read, inside) for value in values] if inside else values
    if isinstance(values, Mapping):
        return {k: _renamed(v, read, inside or k == _FIELD) for k, v in values.items()}
    return values


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read(_LONGEST + 1)
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror}") from error
    except ValueError as error:  # a null byte in the path
        raise InputError(f"can't be read: {error}") from error
    if len(content) > _LONGEST:
        raise InputError(f"has more than {_LONGEST:,} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InputError("is not UTF-8") from error


def _source_problems(design: str, name: str, source: str) -> list[str]:
    """Return what can be seen to be wrong with a design without running its file."""
    try:
        classes = [x.name for x in ast.parse(source).body if isinstance(x, ast.ClassDef)]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [f"{_FIELD} {design!r} is not Python: {error}"]
    if name not in classes:
        return [f"{_FIELD} {design!r} has no class {name!r}; {nearest(name, classes)}"]
    return []


def own_designs(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the source of each design of the user's own that a study's plain values name."""
    return {d: values["designs"][d.rpartition(":")[0]] for d in named_designs(values)}


def named_designs(values: Mapping[str, Any]) -> list[str]:
    """Return the designs of the user's own that plain values name, as they name them."""
    found: list[str] = []

    def note(design: str) -> str:
        if _IN_FILE.fullmatch(design):
            found.append(design)
        return design

    for place in _PLACES:
        _renamed(values.get(place), note)
    return list(dict.fromkeys(found))


def source_digests(designs: Mapping[str, str]) -> dict[str, str]:
    """Return a checksum of the source of each file."""
    return {file: digest(source.encode()) for file, source in designs.items()}
