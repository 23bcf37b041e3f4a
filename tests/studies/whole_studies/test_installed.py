"""Commands and Ray's workers import installed packages, not those of the current folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from study_runs import SMALL

SCRIPT = Path(sys.executable).with_name("hylorada")
NAMES = ("studies", "hylorada", "numpy", "ray", "torch", "optuna", "yaml", "mlflow")
_LOOK = """
import subprocess, sys
from hylorada_command import prefer_installed
prefer_installed()
import mine, yaml
print(mine.__file__, yaml.__file__)
command = [sys.executable, "-c", "import mine, yaml; print(mine.__file__, yaml.__file__)"]
print(subprocess.check_output(command, text=True))
"""


@pytest.fixture
def shadow(tmp_path: Path) -> Path:
    """Return a folder whose modules and packages exit when they are imported."""
    folder = tmp_path / "mine"
    for name in NAMES:
        (folder / name).mkdir(parents=True)
        for path in (folder / name / "__init__.py", folder / f"{name}.py"):
            path.write_text(f"raise SystemExit('the user has a {name} too')\n")
    return folder


def run(
    command: list[str], folder: Path, path: str | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {} if path is None else {"PYTHONPATH": path}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )


@pytest.mark.parametrize("path", [None, ".", "{folder}", "{folder}/none:.:", "../mine"])
def test_command_imports_what_is_installed(path: str | None, shadow: Path) -> None:
    done = run(
        [str(SCRIPT), "show", "learnable_bucketing"], shadow, path and path.format(folder=shadow)
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("definition: learnable_bucketing\n")


def test_pythonpath_adds_modules_and_replaces_none(shadow: Path) -> None:
    (shadow / "mine.py").touch()
    done = run([sys.executable, "-P", "-c", _LOOK], shadow, ".")
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines()[:2]:
        mine, yaml = line.split()
        assert (mine, Path(yaml).parts[-3:-1]) == (
            str(shadow / "mine.py"),
            ("site-packages", "yaml"),
        )


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", [None, "."])
def test_study_runs_beside_a_folder_named_studies(
    path: str | None, shadow: Path, toy_model: str
) -> None:
    place = [
        f"--model={toy_model}",
        "--storage=runs",
        "--set=defaults.max_steps=4",
        "--trials=1",
        "--seeds=1",
    ]
    small = [
        option
        for option in SMALL
        if not option.startswith(("--trials", "--seeds", "--set=defaults.max_steps"))
    ]
    done = run([str(SCRIPT), "run", "learnable_bucketing", *place, *small], shadow, path)
    assert done.returncode == 0, done.stderr
    assert "too" not in done.stderr
