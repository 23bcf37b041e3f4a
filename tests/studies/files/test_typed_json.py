"""Values of JSON become what annotations say, or an error names the field."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from studies.files.typed_json import typed


@dataclass(frozen=True)
class Inner:
    share: float


@dataclass(frozen=True)
class Outer:
    name: str
    state: Literal["open", "ended"]
    edges: tuple[float, ...] = ()
    inner: Inner | None = None
    parts: tuple[Inner, ...] = ()
    figures: Mapping[str, float] | None = None
    rest: Any = None


def test_values_become_what_the_fields_say() -> None:
    values = {"name": "a", "state": "ended", "edges": [1, 2.5], "inner": {"share": 1}}
    values |= {"parts": [{"share": 0.5}], "figures": {"x": 1.0}, "rest": [{"any": None}]}
    assert typed(Outer, values) == Outer(
        "a", "ended", (1, 2.5), Inner(1), (Inner(0.5),), {"x": 1.0}, [{"any": None}]
    )
    assert typed(Outer, {"name": "a", "state": "open", "inner": None}) == Outer("a", "open")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": 1}, "name can't be 1"),
        ({"name": None}, "name can't be None"),
        ({"state": "shut"}, "state can't be 'shut'"),
        ({"state": ["open"]}, r"state can't be \['open'\]"),
        ({"edges": 1.0}, "edges can't be 1.0"),
        ({"edges": [1.0, True]}, "edges can't be True"),
        ({"inner": 3}, "inner can't be 3"),
        ({"inner": {"share": "x"}}, "share can't be 'x'"),
        ({"inner": {}}, "no field 'share'"),
        ({"parts": [{"share": 1, "more": 2}]}, "unknown field 'more'"),
        ({"figures": {"x": "1"}}, "figures.x can't be '1'"),
        ({"figures": []}, r"figures can't be \[\]"),
        ({"other": 1}, "unknown field 'other'"),
    ],
)
def test_wrong_value_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        typed(Outer, {"name": "a", "state": "open", **changes})


def test_name_of_the_whole_is_in_the_message() -> None:
    with pytest.raises(ValueError, match=r"^plan can't be 5$"):
        typed(Mapping[str, int], 5, "plan")
    with pytest.raises(ValueError, match=r"^all of it can't be \[\]$"):
        typed(Outer, [])
