"""The exceptions of the package: one module defines them all, and its drawing shows them."""

import ast
import pickle
import re
from pathlib import Path

import pytest

from hylorada import errors
from hylorada.errors import Diverged, DoesNotFit, InputError, UnreadableCheckpoint, nearest

_PACKAGE = Path(errors.__file__).parent
_BUILT_IN = {"Exception", "ValueError"}


def _own_exceptions() -> dict[str, str]:
    """Return the exceptions that errors.py defines, with their base classes."""
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    own = [c for c in classes if issubclass(c, Exception) and c.__module__ == errors.__name__]
    return {c.__name__: c.__bases__[0].__name__ for c in own}


def test_drawing_shows_every_exception() -> None:
    drawing = (errors.__doc__ or "").split("\n\n")[2]
    drawn = re.findall(r"^ +[│├└─ ]*([A-Z]\w+)", drawing, re.MULTILINE)
    assert len(drawn) == 6
    assert set(drawn) == {*_own_exceptions(), *_BUILT_IN}


def test_exceptions_are_defined_in_one_module() -> None:
    names = {*_own_exceptions(), *_BUILT_IN, "RuntimeError"}
    elsewhere = []
    paths = [path for path in _PACKAGE.rglob("*.py") if path.name != "errors.py"]
    assert len(paths) > 40
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and names & set(map(ast.unparse, node.bases)):
                elsewhere.append(f"{path.name}: {node.name}")
    assert elsewhere == []


@pytest.mark.parametrize("kind", [InputError, UnreadableCheckpoint])
def test_every_problem_survives_pickling(kind: type[InputError]) -> None:
    error = pickle.loads(pickle.dumps(kind(["one", "two\nlines"])))
    assert type(error) is kind
    assert error.problems == ["one", r"two\nlines"]
    assert str(error) == "one\ntwo\\nlines"


def test_seat_without_memory_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(DoesNotFit("it needs more than 1.5 GiB")))
    assert isinstance(error, DoesNotFit)
    assert str(error) == "it needs more than 1.5 GiB"


def test_diverged_seat_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(Diverged("gradient", 7)))
    assert isinstance(error, Diverged)
    assert (str(error), error.step) == ("non-finite gradient at step 7", 7)


def test_nearest_names_one_or_all() -> None:
    assert nearest("lerning_rate", ["r", "learning_rate"]) == "did you mean 'learning_rate'?"
    assert nearest("x", ["b", "a"]) == "one of: a, b"
    assert nearest("x", [f"n{i:02}" for i in range(30)]).endswith("n19, … (30 in all)")
