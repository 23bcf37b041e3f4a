import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from studies.statistics.decision import (
    LEVELS,
    decide,
    holm,
    level_per_look,
    parameters_per_percent,
    published_scale,
    simulate_level,
    within_margin,
)


def test_holm_gives_hand_values() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx((0.03, 0.06, 0.06))
    assert holm([0.6, 0.9]) == pytest.approx((1.0, 1.0))
    assert holm([]) == ()


@pytest.mark.parametrize("count", [2, 9])
def test_holm_equals_statsmodels(count: int) -> None:
    p_values = (
        np.random.default_rng(count).uniform(0, 0.2, size=count).round(2)
    )  # rounded: some are equal
    assert holm(p_values.tolist()) == pytest.approx(multipletests(p_values, method="holm")[1])


def test_holm_refuses_what_is_no_probability() -> None:
    with pytest.raises(ValueError, match=r"p-values must lie in \[0, 1\], got \[2\]"):
        holm([2])


@pytest.mark.parametrize(
    ("low", "high", "p_holm", "expected"),
    [
        (-0.4, -0.2, 0.001, "better"),
        (0.2, 0.9, 0.049, "worse"),
        (0.2, 0.9, 0.05, "undecided"),
        (-0.4, -0.2, 0.2, "equivalent"),
        (-0.49, 0.49, 0.8, "equivalent"),
        (-0.5, 0.3, 0.8, "undecided"),
        (-0.3, 0.5, 0.8, "undecided"),
        (0.0, 0.0, 1.0, "equivalent"),
    ],
)
def test_decide_needs_interval_and_holm(
    low: float, high: float, p_holm: float, expected: str
) -> None:
    assert decide(low, high, p_holm) == expected


def test_decide_takes_the_level_of_its_look_and_the_margin() -> None:
    assert decide(-0.4, -0.2, 0.03) == "better"
    assert decide(-0.4, -0.2, 0.03, level=0.02) == "equivalent"
    assert decide(-0.4, -0.2, 0.03, level=0.02, margin=0.1) == "undecided"
    assert within_margin(-0.05, 0.09, 0.1)
    assert not within_margin(-0.05, 0.1, 0.1)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-3, -2, "strong"),
        (-1.99, -1, "moderate"),
        (-0.99, -0.5, "minimal"),
        (-0.49, 0.2, "none"),
        (0, 0, "none"),
        (0.01, 5, "worse"),
        (-1, -0.99, "minimal to moderate"),
        (-1.5, 0.2, "none to moderate"),
        (-9, 9, "worse to strong"),
        (-9, 0.49, "none to strong"),
        (-0.2, 0.5, "worse to none"),
    ],
)
def test_published_scale_reads_the_whole_interval(low: float, high: float, expected: str) -> None:
    assert published_scale(low, high) == expected


def test_parameters_per_percent_needs_a_certain_gain() -> None:
    assert parameters_per_percent(12_576, -0.5, "better") == pytest.approx(25_152)
    assert parameters_per_percent(12_576, -0.5, "undecided") is None
    assert parameters_per_percent(12_576, -0.5, "equivalent") is None
    assert parameters_per_percent(12_576, 0.5, "worse") is None


def test_broken_intervals_are_refused() -> None:
    with pytest.raises(ValueError, match="`low` must not exceed `high`, got 1 and 0"):
        decide(1, 0, 0.5)
    with pytest.raises(ValueError, match="`low` must not exceed `high`, got nan and 0"):
        published_scale(np.nan, 0)
    with pytest.raises(ValueError, match="`margin` must be above 0, got 0"):
        within_margin(0, 1, 0)


def test_one_look_has_the_whole_level() -> None:
    assert level_per_look([3]) == 0.05
    assert level_per_look([5], overall=0.01) == 0.01


def test_three_looks_have_two_percent_each() -> None:
    assert level_per_look((3, 5, 8)) == pytest.approx(0.02, abs=2e-4)


def test_stored_levels_are_those_of_the_simulation() -> None:
    for looks in [(3, 5, 8), (4, 8)]:
        assert simulate_level(looks, draws=200_000, seed=5) == pytest.approx(
            LEVELS[looks], rel=0.03
        )


def test_many_replicates_give_pococks_constants() -> None:
    # Pocock (1977): 0.0294 for two equally spaced looks at a normal mean, 0.0221 for three
    assert simulate_level((60, 120), draws=40_000) == pytest.approx(0.0294, rel=0.06)
    assert simulate_level((40, 80, 120), draws=40_000) == pytest.approx(0.0221, rel=0.06)


def test_looks_not_stored_are_simulated() -> None:
    level = level_per_look((3, 7))
    assert LEVELS[3, 6] > 0.02
    assert level == pytest.approx(LEVELS[3, 6], rel=0.05)
    assert level_per_look((3, 7)) == level


def test_levels_fall_with_more_looks() -> None:
    assert LEVELS[3, 5] > LEVELS[3, 5, 8] > LEVELS[3, 5, 8, 12] > LEVELS[3, 5, 8, 12, 18]


@pytest.mark.parametrize("looks", [(), (1, 3), (3, 3), (5, 3)])
def test_looks_must_ascend(looks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="`replicates` must ascend from at least 2"):
        level_per_look(looks)
