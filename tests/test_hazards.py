"""tests/HAZARDS.md names existing tests, and for each kind of fault the test that covers it."""

import ast
import re
from pathlib import Path

_HERE = Path(__file__).parent
_ROWS = [
    line.strip("| ").split(" | ")
    for line in (_HERE / "HAZARDS.md").read_text().splitlines()
    if "| H" in line
]


def _functions(path: Path) -> set[str]:
    return {
        node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
    }


def test_every_row_is_covered_open_or_impossible() -> None:
    assert len(_ROWS) == 63
    assert [row[0] for row in _ROWS] == sorted({row[0] for row in _ROWS})
    for number, _, cover in _ROWS:
        assert "::test_" in cover or "open: " in cover or "cannot happen: " in cover, number


def test_every_test_named_exists() -> None:
    named = [
        tuple(reference.split("::"))
        for row in _ROWS
        for reference in re.findall(r"`(tests/\S+::\w+)`", row[2])
    ]
    assert len(named) > 100
    there = {path: _functions(_HERE.parent / path) for path, _ in named}
    assert [f"{path}::{name}" for path, name in named if name not in there[path]] == []
