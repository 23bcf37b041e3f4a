from dataclasses import replace

import numpy as np
import pytest

from studies.statistics.comparison import Comparison, compare
from studies.statistics.differences import Differences, Floats
from studies.statistics.profile import ArmProfile, at_point, best_point, depends_on_rate, own_best

RATES = np.log([0.001, 0.002, 0.004])
RNG = np.random.default_rng(0)


def profile(arm: str, best: float, lowest: float, noise: Floats | float = 0.0) -> ArmProfile:
    """Return an arm with loss lowest + 0.1 (log rate - best)^2 in each of 2 searches."""
    curve = lowest + 0.1 * (RATES - best) ** 2
    losses = curve[:, None] + np.zeros((3, 3, 30)) + noise
    return ArmProfile(arm, (losses, losses + 0.5), (RATES, RATES))


def test_best_point_of_a_parabola_is_its_vertex() -> None:
    best = best_point(np.array([0.0, 1.0, 2.0]), np.array([3.0, 1.0, 2.0]))
    # through (0, 3), (1, 1), (2, 2): 1.5 x^2 - 3.5 x + 3, lowest at 7/6 with 23/24
    assert best.log_rate == pytest.approx(7 / 6)
    assert best.weights @ [3, 1, 2] == pytest.approx(23 / 24)
    assert best.weights.sum() == pytest.approx(1)
    assert not best.at_edge


@pytest.mark.parametrize("curve", [[1.0, 2.0, 3.1], [3.0, 2.0, 1.5], [1.0, 2.0, 1.5]])
def test_without_a_minimum_inside_the_best_point_stands_in(curve: list[float]) -> None:
    best = best_point(RATES, np.array(curve))
    assert best.at_edge
    assert best.weights @ curve == min(curve)


def test_two_points_take_the_better_one() -> None:
    best = best_point(RATES[:2], np.array([2.0, 1.0]))
    assert (best.log_rate, best.weights.tolist(), best.at_edge) == (RATES[1], [0, 1], True)


def test_five_points_are_fitted_by_least_squares() -> None:
    rates, curve = np.linspace(-2, 2, 5), RNG.normal(size=5) * 0.01 + np.linspace(-2, 2, 5) ** 2
    best = best_point(rates, curve)
    a, b, c = np.polyfit(rates, curve, 2)
    assert best.log_rate == pytest.approx(-b / (2 * a))
    assert best.weights @ curve == pytest.approx(c - b**2 / (4 * a))


def test_shifted_arms_are_compared_each_at_its_own_best() -> None:
    arm, reference = profile("a", RATES[1] - 0.3, 2.01), profile("b", RATES[1] + 0.2, 2.0)
    result = own_best(arm, reference, point=1)
    assert compare([result.differences])[0].change == pytest.approx(100 * np.expm1(0.01))
    assert [b.log_rate for b in result.arm] == pytest.approx([RATES[1] - 0.3] * 2)
    matched = 0.01 + 0.1 * (0.3**2 - 0.2**2)
    assert compare([at_point(arm, reference, 1)])[0].change == pytest.approx(
        100 * np.expm1(matched)
    )
    assert result.gap.by_unit.mean() == pytest.approx(0.01 - matched)


def test_own_best_keeps_seeds_and_blocks_paired() -> None:
    shared = RNG.normal(size=(3, 3, 30)).mean(axis=1, keepdims=True)
    result = own_best(
        profile("a", RATES[1] - 0.1, 2.0, shared),
        profile("b", RATES[1] + 0.1, 2.0, shared),
        point=1,
    )
    assert np.abs(result.differences.by_unit).max() < 1e-12


def comparison(decision: str) -> Comparison:
    base = compare([Differences("a", "b", tuple(1e-3 * RNG.normal(size=(3, 2, 30))))])[0]
    return replace(base, decision=decision)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("matched", "own", "gap", "expected"),
    [
        ("better", "better", 0.01, False),
        ("better", "worse", 0.0, True),
        ("better", "equivalent", 0.01, True),
        ("better", "undecided", 0.0, False),
    ],
)
def test_answer_depends_on_the_rate_where_a_certain_gap_changes_it(
    matched: str, own: str, gap: float, expected: bool
) -> None:
    noise = np.linspace(-1, 1, 30) * 1e-4
    gaps = Differences(
        "a", "b", tuple(gap + noise + s for s in np.array([-1e-5, 0, 1e-5])[:, None, None])
    )
    assert depends_on_rate(comparison(matched), comparison(own), gaps) is expected


def test_profiles_refuse_what_does_not_fit() -> None:
    with pytest.raises(
        ValueError, match=r"losses must be \[seeds, 3 points, blocks\].*got \[1, 2, 5\]"
    ):
        ArmProfile("a", (np.ones((1, 2, 5)),), (RATES,))
    with pytest.raises(ValueError, match="at ascending rates"):
        ArmProfile("a", (np.ones((1, 3, 5)),), (RATES[::-1],))
    with pytest.raises(ValueError, match="arm 'a': 1 searches of losses, 2 of rates"):
        ArmProfile("a", (np.ones((1, 3, 5)),), (RATES, RATES))
    other = ArmProfile("b", (np.ones((1, 3, 5)),), (RATES + 1,))
    with pytest.raises(
        ValueError, match="arms 'a' and 'b' must be measured at the same learning rates"
    ):
        own_best(ArmProfile("a", (np.ones((1, 3, 5)),), (RATES,)), other, 1)
