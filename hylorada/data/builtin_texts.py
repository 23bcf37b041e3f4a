"""Texts that every CPython has: its language reference, and its standard library.

No two of them share text. They differ between versions of Python; their fingerprint tells.
"""

import ast
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path

from hylorada.base_models.builtin_names import PYDOCS, PYDOCSTRINGS, PYSOURCE
from hylorada.errors import InputError

# Long modules with much documentation, in every CPython from 3.11 on.
_MODULES = (
    *("_pydecimal", "argparse", "ast", "bdb", "calendar", "cmd", "configparser", "csv"),
    *("dataclasses", "difflib", "doctest", "enum", "fractions", "ftplib", "functools", "heapq"),
    *("imaplib", "inspect", "ipaddress", "mailbox", "optparse", "pdb", "pickle", "pickletools"),
    *("pprint", "random", "shutil", "smtplib", "statistics", "subprocess", "tarfile", "tempfile"),
    *("textwrap", "threading", "trace", "traceback", "turtle", "typing", "uuid", "zipfile"),
)
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def builtin_documents(name: str) -> tuple[str, ...]:
    """Return the documents of a built-in text.

    Args:
        name: ``pydocs``, the language reference, a document a topic; ``pydocstrings``, the
            docstrings of forty modules of the standard library, a document a module; or
            ``pysource``, the source of the same modules without their docstrings.

    Raises:
        InputError: this Python comes without the text.
    """
    if name == PYDOCS:
        from pydoc_data.topics import topics

        return tuple(topics[topic] for topic in sorted(topics))
    assert name in (PYDOCSTRINGS, PYSOURCE)
    read = _docstrings if name == PYDOCSTRINGS else _without_docstrings
    documents = tuple(read(path) for path in _sources())
    if not documents:
        folder = sysconfig.get_path("stdlib")
        raise InputError(f"data {name!r}: this Python has no sources of its library in {folder}")
    return documents


def _sources() -> Iterator[Path]:
    """Yield the modules' files; a module that has become a package is left out."""
    folder = Path(sysconfig.get_path("stdlib"))
    yield from (path for m in _MODULES if (path := folder / f"{m}.py").is_file())


def _docstrings(path: Path) -> str:
    nodes = _documented(_source(path))
    return "\n\n".join(text for node in nodes if (text := ast.get_docstring(node)))


def _without_docstrings(path: Path) -> str:
    source = _source(path)
    documented = set()
    for node in _documented(source):
        if ast.get_docstring(node) is not None:
            first = node.body[0]
            documented |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = enumerate(source.splitlines(keepends=True), 1)
    return "".join(line for number, line in lines if number not in documented)


def _source(path: Path) -> str:
    with tokenize.open(path) as file:  # decodes as the file itself declares
        return file.read()


def _documented(source: str) -> list[_DOCUMENTED]:
    """Return the module, its classes and its functions in the order of the text."""
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, _DOCUMENTED)]
    return sorted(nodes, key=lambda node: getattr(node, "lineno", 0))
