"""The study definitions that come with the package."""

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Definition:
    """One study definition.

    Attributes:
        description: one line for `hylorada list`.
        values: the study as plain values, see :meth:`studies.spec.study.Study.to_dict`.
    """

    description: str
    values: Mapping[str, Any]


def definitions() -> dict[str, Definition]:
    """Return the study definitions by name.

    A definition is a public module at the top of ``studies`` with a ``STUDY`` and a
    ``DESCRIPTION``. Other modules, and folders, are skipped.
    """
    import studies

    known = {}
    for info in pkgutil.iter_modules(studies.__path__):
        if info.name.startswith("_") or info.ispkg:
            continue
        module = importlib.import_module(f"studies.{info.name}")
        if isinstance(values := getattr(module, "STUDY", None), Mapping):
            known[info.name] = Definition(getattr(module, "DESCRIPTION", ""), values)
    return known
