"""Large packages' imports as phases of a run."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

from studies.process.phases import phase

LARGE = (
    "datasets",
    "matplotlib",
    "mlflow",
    "optuna",
    "pandas",
    "peft",
    "ray",
    "ray.tune",
    "scipy",
    "sqlalchemy",
    "torch",
    "transformers",
)


class ImportPhases(MetaPathFinder):
    """A finder that notes each of these modules' import as a phase, and finds nothing itself."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = set(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders return, with a loader that notes its work."""
        if fullname not in self._names:
            return None
        self._names.remove(fullname)  # the other finders are asked through this one, too
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader = spec.loader
            noted = phase(f"import {fullname}")(loader.exec_module)
            loader.exec_module = noted  # type: ignore[method-assign]
        return spec


def note_imports(names: Sequence[str] = LARGE) -> None:
    """Record the first import of each of these modules in this process as a phase."""
    sys.meta_path.insert(0, ImportPhases(names))
