"""Long lists are cut in messages, and the number of names left out is given."""

import pytest

from studies.process.listing import first_names


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b", "c"], "a, b, c"),
        (["a", "b", "c", "d"], "a, b, c and 1 more"),
        ([*"abcdefgh"], "a, b, c and 5 more"),
    ],
)
def test_first_names_counts_those_it_leaves_out(names: list[str], expected: str) -> None:
    assert first_names(names, 3) == expected
