"""Wheel and sdist, built from a copy of the tracked files, hold what the documents name."""

import email
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from email.message import Message
from pathlib import Path, PurePosixPath

import pytest

pytest.importorskip("setuptools", minversion="77")  # as the build needs

ROOT = Path(__file__).parents[1]
READMES = (
    *("README.md", "CHANGELOG.md", "hylorada/README.md", "hylorada/tiny/README.md"),
    *("studies/README.md", ".github/CONTRIBUTING.md", "tests/HAZARDS.md"),
)
_BUILD = """
import sys
place = sys.argv[1]  # setuptools puts arguments of its own there
from setuptools import build_meta
build_meta.build_wheel(place)
build_meta.build_sdist(place)
"""


@dataclass(frozen=True)
class Built:
    """The files inside a wheel and an sdist, and the wheel's metadata."""

    wheel: set[str]
    sdist: set[str]
    metadata: Message


def tracked() -> list[str]:
    """Return the files of the repository; those of an unpacked sdist are all its files."""
    if not (ROOT / ".git").exists():
        skipped = {".venv", "build", "dist", "__pycache__", "hylorada.egg-info", "mlruns"}
        files = [p.relative_to(ROOT) for p in ROOT.rglob("*") if p.is_file()]
        return [str(p) for p in files if not skipped & set(p.parts)]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [name for name in listed.stdout.decode().split("\0") if (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    clone, out = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("dist")
    for name in tracked():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, str(out)], cwd=clone, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (path,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(path))
    with tarfile.open(sdist) as tar:
        inside = {PurePosixPath(*PurePosixPath(m.name).parts[1:]) for m in tar if m.isfile()}
    return Built(names, {str(path) for path in inside}, metadata)


def test_sdist_holds_every_tracked_file(built: Built) -> None:
    assert set(tracked()) - built.sdist == set()


@pytest.mark.parametrize("readme", READMES)
def test_links_lead_to_files_of_the_sdist(readme: str, built: Built) -> None:
    text = (ROOT / readme).read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", text)
    targets = [(ROOT / readme).parent / link for link in links]
    found = [str(t.resolve().relative_to(ROOT)) for t in targets]
    files = built.sdist | {str(p) for name in built.sdist for p in PurePosixPath(name).parents}
    assert [name for name in found if name not in files] == []


def test_wheel_holds_both_packages_with_their_data_and_no_tests(built: Built) -> None:
    packages = [name for name in tracked() if name.startswith(("hylorada/", "studies/"))]
    assert set(packages) - built.wheel == set()
    tops = {name.split("/")[0] for name in built.wheel if ".dist-info/" not in name}
    assert tops == {"hylorada", "studies", "hylorada_command.py"}


def test_metadata_is_complete(built: Built) -> None:
    about = built.metadata
    assert about["Name"] == "hylorada"
    assert len(about["Summary"]) <= 512
    assert about["Description-Content-Type"] == "text/markdown"
    assert len(about["Keywords"].split(",")) == 8
    classifiers = about.get_all("Classifier", [])
    assert f"Programming Language :: Python :: {about['Requires-Python'][2:]}" in classifiers
    assert not [c for c in classifiers if c.startswith("License")]  # the owner chooses one
