import pytest

from studies.statistics.looks import STORED, level_per_look, simulate_level


def test_one_look_has_the_whole_level() -> None:
    assert level_per_look([3]) == 0.05
    assert level_per_look([5], overall=0.01) == 0.01


def test_three_looks_have_two_percent_each() -> None:
    assert level_per_look((3, 5, 8)) == pytest.approx(0.02, abs=2e-4)


def test_stored_levels_are_those_of_the_simulation() -> None:
    for looks in [(3, 5, 8), (4, 8)]:
        assert simulate_level(looks, draws=200_000, seed=5) == pytest.approx(
            STORED[looks], rel=0.03
        )


def test_many_replicates_give_pococks_constants() -> None:
    # Pocock (1977): 0.0294 for two equally spaced looks at a normal mean, 0.0221 for three
    assert simulate_level((60, 120), draws=40_000) == pytest.approx(0.0294, rel=0.06)
    assert simulate_level((40, 80, 120), draws=40_000) == pytest.approx(0.0221, rel=0.06)


def test_looks_not_stored_are_simulated() -> None:
    level = level_per_look((3, 7))
    assert STORED[3, 6] > 0.02
    assert level == pytest.approx(STORED[3, 6], rel=0.05)
    assert level_per_look((3, 7)) == level


def test_levels_fall_with_more_looks() -> None:
    assert STORED[3, 5] > STORED[3, 5, 8] > STORED[3, 5, 8, 12] > STORED[3, 5, 8, 12, 18]


@pytest.mark.parametrize("looks", [(), (1, 3), (3, 3), (5, 3)])
def test_looks_must_ascend(looks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="`replicates` must ascend from at least 2"):
        level_per_look(looks)
