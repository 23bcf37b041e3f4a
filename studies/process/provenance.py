"""Provenance of a result: commit, package versions, command."""

import hashlib
import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from studies.process.mlflow_address import shown

_PACKAGES = ("hylorada", "torch", "transformers", "peft", "ray", "optuna", "mlflow", "numpy")


def code_version() -> dict[str, str]:
    """Return commit and dirty flag of this package's source tree; empty for an installed wheel."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return {}
    commit = _git(root, "rev-parse", "HEAD")
    dirty = _git(root, "status", "--porcelain", "--untracked-files=no")
    return {"git_commit": commit or "unknown", "git_dirty": str(bool(dirty)).lower()}


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def code_digest() -> str:
    """Return a checksum of the source files of both packages, whatever their version is called."""
    root = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    for package in ("hylorada", "studies"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def command_line() -> str:
    """Return the command line of this process, without the passwords in its addresses."""
    return shlex.join(["hylorada", *map(shown, sys.argv[1:])])
