"""The examples of the README and of docstrings run as written."""

import doctest
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[1]
_MODULES = sorted(
    ".".join(path.relative_to(_ROOT).with_suffix("").parts)
    for package in ("hylorada", "studies")
    for path in (_ROOT / package).rglob("*.py")
    if ">>>" in path.read_text(encoding="utf-8")
)


def _examples(name: str) -> list[doctest.DocTest]:
    tests = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name))
    return [test for test in tests if test.examples]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # examples write into the working folder
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.parametrize("name", _MODULES)
def test_docstrings_of(name: str) -> None:
    tests = _examples(name)
    assert tests
    for test in tests:
        ran = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test)
        assert ran.failed == 0, test.name


def test_there_are_examples() -> None:
    assert len(_MODULES) == 27


def _run_python_of(readme: str, count: int) -> dict[str, Any]:
    """Run a document's Python blocks in order, as a reader would, and return their names."""
    text = (_ROOT / readme).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == count
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    return names


def test_python_of_the_readme(tmp_path: Path) -> None:
    _run_python_of("README.md", count=1)
    assert [path.name for path in tmp_path.iterdir()] == ["my-adapter"]


def test_python_of_the_readme_of_studies() -> None:
    names = _run_python_of("studies/README.md", count=1)
    assert (names["study"].searches, names["study"].max_steps) == (2, 8)


@pytest.mark.filterwarnings(
    "ignore:'pin_memory' argument is set as true"
)  # Trainer pins memory by default, even without a GPU
@pytest.mark.timeout(300)  # it trains with Trainer, which a loaded machine slows down
def test_python_of_the_adapters_readme(tmp_path: Path) -> None:
    names = _run_python_of("hylorada/README.md", count=2)
    assert {"my-adapter", "trainer-runs"} <= {path.name for path in tmp_path.iterdir()}
    assert names["model"].get_learned_boundaries().shape == (31,)
