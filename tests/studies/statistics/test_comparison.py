import math

import numpy as np
import pytest

from studies.statistics.comparison import compare, percent
from studies.statistics.decision import holm
from studies.statistics.differences import Differences

RNG = np.random.default_rng(0)


def noisy(shift: float, searches: int = 3, seeds: int = 4) -> Differences:
    return Differences("a", "b", tuple(shift + 1e-3 * RNG.normal(size=(searches, seeds, 40))))


def test_change_is_the_mean_of_the_searches() -> None:
    d = Differences("a", "b", (np.full((3, 30), 0.01), np.full((1, 30), 0.03)))
    result = compare([d])[0]
    assert result.change == pytest.approx(100 * np.expm1(0.02))
    assert result.by_search == pytest.approx((100 * np.expm1(0.01), 100 * np.expm1(0.03)))
    assert [len(s) for s in result.by_seed] == [3, 1]
    assert result.replicate_sd == pytest.approx(100 * np.std([0.01, 0.03], ddof=1))
    assert (result.searches, result.seeds, result.blocks) == (2, (3, 1), 30)


@pytest.mark.parametrize(
    ("searches", "seeds", "scope"),
    [(2, 1, "method"), (1, 2, "configurations"), (1, 1, "runs"), (5, 3, "method")],
)
def test_scope_says_what_was_replicated(searches: int, seeds: int, scope: str) -> None:
    assert compare([noisy(0, searches, seeds)])[0].scope == scope


def test_family_is_adjusted_by_holm() -> None:
    results = compare([noisy(0.0002), noisy(0), noisy(-0.0005)])
    assert [r.p_holm for r in results] == pytest.approx(holm([r.p for r in results]))
    assert max(r.p_holm - r.p for r in results) > 0


def test_decisions_and_margin() -> None:
    better, worse, same = compare([noisy(-0.01), noisy(0.01), noisy(0.0)], margin=0.2)
    assert (better.decision, worse.decision, same.decision) == ("better", "worse", "equivalent")
    assert (better.scale, worse.scale) == ("minimal to moderate", "worse")
    assert [r.within_margin for r in (better, worse, same)] == [False, False, True]


def test_a_small_certain_difference_is_better_and_within_the_margin() -> None:
    result = compare([noisy(-0.002)])[0]
    assert (result.decision, result.within_margin, result.scale) == ("better", True, "none")


def test_a_look_widens_the_interval() -> None:
    d = noisy(0.001)
    once, look = compare([d])[0], compare([d], level=0.02)[0]
    assert look.high - look.low > 1.3 * (once.high - once.low)
    assert (look.p, look.level) == (once.p, 0.02)
    assert look.smallest_visible > once.smallest_visible


def test_arms_change_places() -> None:
    d = noisy(0.003)
    mirrored = Differences("b", "a", tuple(-s for s in d.by_search))
    ours, theirs = compare([d])[0], compare([mirrored])[0]
    assert np.log1p(ours.low / 100) == pytest.approx(-np.log1p(theirs.high / 100))
    assert ours.p == pytest.approx(theirs.p)


def test_robust_centre_is_in_percent() -> None:
    result = compare(
        [Differences("a", "b", tuple(np.full((1, 30), v) for v in (0, 0, 0, 0, 0, 0, 0.02)))]
    )[0]
    assert result.hodges_lehmann.value == 0
    assert result.hodges_lehmann.high == pytest.approx(100 * np.expm1(0.01))


def test_identical_arms_are_equivalent() -> None:
    result = compare([Differences("a", "b", (np.zeros((3, 30)),) * 3)])[0]
    assert (result.change, result.low, result.high, result.p, result.decision) == (
        0,
        0,
        0,
        1,
        "equivalent",
    )


def test_level_must_be_a_probability() -> None:
    with pytest.raises(ValueError, match="`level` must lie between 0 and 1, got 95"):
        compare([noisy(0)], level=95)


def test_change_of_a_run_that_blew_up_is_infinite() -> None:
    assert percent(800.0) == math.inf
    assert percent(-800.0) == -100.0
    assert percent(math.log(1.5)) == pytest.approx(50.0)
