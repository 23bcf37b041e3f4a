"""The texts that every CPython has."""

import sysconfig
from pathlib import Path
from textwrap import dedent

import pytest

from hylorada.data import builtin_texts
from hylorada.data.builtin_texts import builtin_documents
from hylorada.data.text import load_text
from hylorada.errors import InputError

_SOURCE = dedent(
    '''
    """About the module."""
    import os


    class One:
        """About the class.

        More of it.
        """

        def go(self):
            """About the method."""
            return os.name  # kept
    '''
)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    (tmp_path / "argparse.py").write_text(_SOURCE)
    return tmp_path


@pytest.mark.usefixtures("library")
def test_docstrings_and_source_hold_every_line_once() -> None:
    (docstrings,) = builtin_documents("pydocstrings")
    (source,) = builtin_documents("pysource")
    about = "About the module.\n\nAbout the class.\n\nMore of it.\n\nAbout the method."
    assert docstrings == about
    kept = [line for line in _SOURCE.splitlines() if line.strip()]
    kept = [line for line in kept if not any(x in line for x in ("About", "More", '    """'))]
    assert [line for line in source.splitlines() if line.strip()] == kept


def test_python_without_sources_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(InputError, match="data 'pysource': this Python has no sources"):
        builtin_documents("pysource")


@pytest.mark.parametrize("name", ["pydocstrings", "pysource"])
def test_texts_are_large_and_always_the_same(name: str) -> None:
    text = load_text(name)
    assert sum(map(len, text.splits["test"])) > 40_000
    assert (text.separator, text.fingerprint) == ("eos", load_text(name).fingerprint)
    assert len(builtin_documents(name)) > 0.8 * len(builtin_texts._MODULES)
