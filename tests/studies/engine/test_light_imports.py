"""Processes of a study import only what they need: each import costs every one of them seconds."""

import subprocess
import sys
from pathlib import Path

import pytest

_HEAVY = ("datasets", "matplotlib", "mlflow", "optuna", "scipy", "torch", "transformers")
_CHECKS = """
from pathlib import Path
from studies import get_study
from studies.process.options import Options
from studies.runner.run import check_inputs
check_inputs(get_study("learnable_bucketing"), Options(storage=Path("runs")))
"""


def _imported(program: str, names: tuple[str, ...], folder: Path | None = None) -> str:
    """Return which of these modules a program imports, in a process of its own."""
    shown = f"{program}\nimport sys\nprint(*sorted({set(names)} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", shown], capture_output=True, text=True, timeout=110, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["trainable", "host"])
def test_processes_of_trials_and_registry_import_neither_models_nor_reports(module: str) -> None:
    assert _imported(f"import studies.engine.{module}", _HEAVY) == ""


def test_checks_of_a_study_on_the_builtin_base_build_no_model(tmp_path: Path) -> None:
    assert _imported(_CHECKS, ("datasets", "transformers.modeling_utils"), tmp_path) == ""
