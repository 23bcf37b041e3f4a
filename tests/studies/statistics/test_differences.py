import numpy as np
import pytest

from studies.statistics.differences import Differences, paired


def test_paired_counts_tokens() -> None:
    d = paired(
        "a", "b", [np.array([[99.0, 200.0]])], [np.array([[100.0, 201.0]])], tokens_per_block=50
    )
    assert d.by_search[0] == pytest.approx(np.array([[-0.02, -0.02]]))


def test_units_are_searches_or_the_seeds_of_one_search() -> None:
    first, second = np.array([[1.0, 3.0], [3.0, 5.0]]), np.array([[7.0, 9.0]])
    ragged = Differences("a", "b", (first, second))
    assert ragged.by_unit.tolist() == [[2.0, 4.0], [7.0, 9.0]]
    assert (ragged.searches, ragged.seeds, ragged.blocks) == (2, (2, 1), 2)
    assert Differences("a", "b", (first,)).by_unit.tolist() == first.tolist()


@pytest.mark.parametrize(
    ("searches", "message"),
    [
        ((), "'a' against 'b': `by_search` must hold at least one search"),
        ((np.ones((1, 1)),), r"the same 2 or more blocks, got \[\[1, 1\]\]"),
        ((np.ones((0, 3)),), r"got \[\[0, 3\]\]"),
        ((np.ones(3),), r"got \[\[3\]\]"),
        ((np.ones((1, 3)), np.ones((1, 4))), r"got \[\[1, 3\], \[1, 4\]\]"),
        (
            (np.ones((1, 3)), np.array([[1.0, np.nan, 1.0]])),
            "losses must be finite, but those of search 1 are not",
        ),
    ],
)
def test_differences_refuse_broken_input(searches: tuple[np.ndarray, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Differences("a", "b", searches)


def test_documents_must_fit_the_blocks() -> None:
    with pytest.raises(ValueError, match=r"`documents` must be \[3\], got \[2\]"):
        Differences("a", "b", (np.ones((1, 3)),), np.array([0, 1]))


def test_paired_refuses_arms_with_other_seeds() -> None:
    with pytest.raises(
        ValueError,
        match=r"arm 'a' has searches of shapes \[\(2, 3\)\], but its reference 'b' has \[\(1",
    ):
        paired("a", "b", [np.ones((2, 3))], [np.ones((1, 3))], 5)
    with pytest.raises(ValueError, match="`tokens_per_block` must be at least 1, got 0"):
        paired("a", "b", [np.ones((2, 3))], [np.ones((2, 3))], 0)
