from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies._statistics import ArmScores, Comparison, compare, decide, holm, verdict

Floats = npt.NDArray[np.float64]
TOKENS = 100
BLOCKS = 60


def scores(arm: str, nll_per_token: Floats, tokens: int = TOKENS) -> ArmScores:
    return ArmScores(arm, tuple(range(len(nll_per_token))), nll_per_token * tokens, tokens)


def versus(difference: Floats, *, resamples: int = 1000, seed: int = 0) -> Comparison:
    """Compare two arms whose NLL per token differs by `difference` [S, N]."""
    base = np.random.default_rng(7).normal(3, 0.5, size=(1, difference.shape[1])) + np.zeros_like(difference)
    pair = [scores("learnable", base + difference), scores("fixed", base)]
    return compare(pair, [("learnable", "fixed")], resamples=resamples, seed=seed)[0]


def noise(rng: np.random.Generator, count: int, seed_sd: float, block_sd: float, rest_sd: float) -> Floats:
    by_seed = seed_sd * rng.normal(size=(count, 1))
    by_block = block_sd * rng.normal(size=(1, BLOCKS))
    return np.asarray(1e-3 * (by_seed + by_block + rest_sd * rng.normal(size=(count, BLOCKS))))


def test_arm_scores_weight_every_token_alike() -> None:
    arm = ArmScores("fixed", (3, 5), np.array([[10.0, 50.0], [20.0, 80.0]]), 20)
    assert arm.ppl_by_seed == pytest.approx([np.exp(60 / 40), np.exp(100 / 40)])
    assert arm.ppl_mean == pytest.approx(np.exp((60 + 100) / 80))
    assert arm.ppl_median == pytest.approx((np.exp(1.5) + np.exp(2.5)) / 2)


def test_change_is_exp_of_mean_difference_per_token() -> None:
    learnable = ArmScores("learnable", (0, 1), np.array([[99.0, 200.0], [101.0, 203.0]]), 50)
    fixed = ArmScores("fixed", (0, 1), np.array([[100.0, 201.0], [102.0, 203.0]]), 50)
    result = compare([fixed, learnable], [("learnable", "fixed")])[0]
    assert result.change == pytest.approx(100 * (np.exp(-3 / 200) - 1))
    assert result.by_seed == pytest.approx([100 * (np.exp(-2 / 100) - 1), 100 * (np.exp(-1 / 100) - 1)])


def test_change_counts_tokens_not_blocks() -> None:
    short = versus(np.full((2, 4), 0.01))
    pair = [scores("learnable", np.full((2, 4), 2.01), tokens=7), scores("fixed", np.full((2, 4), 2.0), tokens=7)]
    assert compare(pair, [("learnable", "fixed")])[0].change == pytest.approx(short.change)


@pytest.mark.parametrize("count", [1, 3])
def test_identical_arms_do_not_differ(count: int) -> None:
    result = versus(np.zeros((count, BLOCKS)))
    assert (result.change, result.median, result.p_value, result.decision) == (0, 0, 1, "none")
    assert result.low <= 0 <= result.high


def test_constant_shift_is_found_exactly() -> None:
    result = versus(np.full((3, BLOCKS), np.log(1.01)))
    assert (result.change, result.low, result.high) == pytest.approx((1.0, 1.0, 1.0), abs=1e-9)
    assert result.p_value == pytest.approx(2 / 1001)
    assert result.decision == "worse"


@pytest.mark.parametrize("count", [3, 5, 8])
@pytest.mark.parametrize("sds", [(1, 0.5, 0.5), (0.02, 2, 0.3), (0, 0, 1)], ids=["seeds", "blocks", "rest"])
def test_interval_covers_the_truth_and_p_agrees(count: int, sds: tuple[float, float, float]) -> None:
    rng = np.random.default_rng(11)
    results = [versus(noise(rng, count, *sds), resamples=500, seed=i) for i in range(300)]
    covered = np.mean([r.low <= 0 <= r.high for r in results])
    # 300 repetitions know the coverage to about 0.013, so the target of 0.93-0.985 is widened by one such error
    assert 0.917 <= covered <= 0.998
    # p counts one draw more in each tail: with 500 draws 0.004 of conservatism
    assert np.mean([r.p_value >= 0.05 for r in results]) == pytest.approx(covered, abs=0.015)


@pytest.mark.parametrize(("count", "sds"), [(3, (1, 1, 1)), (5, (1, 1, 1)), (3, (0.02, 2, 0.3))])
def test_smallest_visible_is_seen_four_times_in_five(count: int, sds: tuple[float, float, float]) -> None:
    rng = np.random.default_rng(13)
    typical = np.mean([versus(noise(rng, count, *sds), resamples=500).smallest_visible for _ in range(100)])
    effect = np.log1p(-typical / 100)
    seen = [versus(effect + noise(rng, count, *sds), resamples=500, seed=i).high < 0 for i in range(300)]
    assert 0.70 <= np.mean(seen) <= 0.90


def test_one_seed_covers_blocks_only_and_says_so() -> None:
    difference = noise(np.random.default_rng(1), 1, 0, 1, 0)
    result = versus(difference, resamples=10_000)
    half = 2.0 * difference.std(ddof=1) / np.sqrt(BLOCKS)
    assert result.high - result.low == pytest.approx(200 * half, rel=0.05)
    assert result.seeds == 1
    assert "one seed: seed noise not included" in verdict([result])


def test_more_seed_noise_widens_the_interval() -> None:
    spread = np.array([[-1.0], [0.0], [1.0]]) * 1e-3 + np.zeros((3, BLOCKS))
    result = versus(spread, resamples=10_000)
    half = 100 * 4.303 * 1e-3 / np.sqrt(3)  # Student's t with 2 degrees of freedom
    assert (result.low, result.high) == pytest.approx((-half, half), rel=0.02)


def test_order_of_blocks_does_not_matter() -> None:
    difference = noise(np.random.default_rng(2), 4, 1, 1, 1)
    shuffled = difference[:, np.random.default_rng(3).permutation(BLOCKS)]
    a, b = versus(difference), versus(shuffled)
    assert (a.change, a.low, a.high) == pytest.approx((b.change, b.low, b.high), rel=1e-6)


def test_same_seed_gives_same_result_whatever_the_order_of_pairs() -> None:
    rng = np.random.default_rng(4)
    arms = [scores(name, 3 + noise(rng, 3, 1, 1, 1)) for name in ("learnable", "fixed", "baseline")]
    pairs = [("learnable", "fixed"), ("learnable", "baseline")]
    assert compare(arms, pairs) == compare(arms[::-1], pairs[::-1])[::-1]


def test_resampling_in_chunks_keeps_every_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    difference = noise(np.random.default_rng(5), 3, 0, 1, 0)
    whole = versus(difference)
    monkeypatch.setattr("studies._statistics._CHUNK", 7 * BLOCKS)
    assert versus(difference) == whole


def test_median_does_not_follow_an_outlier_seed() -> None:
    difference = np.zeros((5, BLOCKS)) + np.array([[0.0], [0.0], [0.0], [0.0], [np.log(1.02)]])
    result = versus(difference)
    assert result.median == pytest.approx(0, abs=1e-9)
    assert result.change == pytest.approx(100 * (1.02**0.2 - 1))
    assert max(result.by_seed) == pytest.approx(2)


def test_holm_gives_hand_values() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx((0.03, 0.06, 0.06))
    assert holm([0.6, 0.9]) == pytest.approx((1.0, 1.0))
    assert holm([]) == ()


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_equals_its_definition(p_values: list[float]) -> None:
    m, ranked = len(p_values), sorted(p_values)
    expected = [max(min(1.0, (m - j) * q) for j, q in enumerate(ranked) if q <= p) for p in p_values]
    assert holm(p_values) == pytest.approx(expected)


def test_compare_adjusts_over_its_pairs() -> None:
    rng = np.random.default_rng(6)
    arms = [scores(name, 3 + noise(rng, 3, 1, 1, 1)) for name in ("learnable", "fixed", "baseline")]
    results = compare(arms, [("learnable", "fixed"), ("learnable", "baseline"), ("fixed", "baseline")])
    assert [r.p_holm for r in results] == list(holm([r.p_value for r in results]))


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
        (-0.2, 0.49, "none"),
    ],
)
def test_decide_reads_the_whole_interval(low: float, high: float, expected: str) -> None:
    assert decide(low, high) == expected


RESULT = Comparison("learnable", "fixed", 3, 0.08, -0.02, 0.18, (0.08,) * 3, 0.08, 0.105, 0.21, 0.12, "none")


def test_verdict_answers_the_question_in_two_sentences() -> None:
    other = replace(RESULT, reference="baseline", change=0.22, low=0.1, high=0.3, p_holm=0.0004, decision="worse")
    assert verdict([RESULT, other], subject="Learning the boundaries") == (
        "Learning the boundaries did not help: learnable did not beat fixed, "
        "+0.08 % PPL [\N{MINUS SIGN}0.02, +0.18] (95 %, 3 paired seeds, Holm p = 0.21, effect: none); "
        "learnable was worse than baseline, +0.22 % PPL [+0.10, +0.30] (95 %, 3 paired seeds, Holm p = 0.0004, "
        "effect: worse). Each interval stands alone, but what is called better or worse is so after Holm's correction. "
        "The smallest effect this study could have seen (power 80 %, before Holm's correction) is "
        "0.12 % for learnable vs fixed, 0.12 % for learnable vs baseline."
    )


def test_undecided_comparison_has_no_effect_size() -> None:
    result = replace(RESULT, low=-80.0, high=-20.0, p_holm=0.2, decision="strong")
    assert "is undecided" in verdict([result])
    assert "effect: undecided)" in verdict([result])


def test_smallest_visible_effect_is_a_fall_and_at_most_100_percent() -> None:
    rng = np.random.default_rng(0)
    noisy = rng.normal(3.0, 2.0, size=(2, 4)) * 100
    arms = [ArmScores("a", (0, 1), noisy, 50), ArmScores("b", (0, 1), noisy[::-1] + rng.normal(size=(2, 4)), 50)]
    (result,) = compare(arms, [("a", "b")])
    assert 50 < result.smallest_visible <= 100


@pytest.mark.parametrize(
    ("low", "high", "p_holm", "opening"),
    [
        (-1.4, -1.1, 0.001, "It helped: learnable beat fixed"),
        (-0.3, -0.1, 0.2, "It may or may not help: whether learnable beats fixed is undecided"),
        (-1.5, 0.2, 0.2, "It may or may not help: whether learnable beats fixed is undecided"),
        (-0.2, 0.7, 0.2, "It did not help: learnable did not beat fixed"),
        (0.1, 0.3, 0.001, "It made it worse: learnable was worse than fixed"),
        (0.1, 0.3, 0.07, "It did not help: learnable did not beat fixed"),
    ],
)
def test_verdict_is_sure_only_where_interval_and_holm_agree(
    low: float, high: float, p_holm: float, opening: str
) -> None:
    result = replace(RESULT, low=low, high=high, p_holm=p_holm, decision=decide(low, high))
    assert verdict([result], subject="It").startswith(opening)


def test_verdict_tells_the_range_of_effects_once() -> None:
    assert "is undecided, +0.08 % PPL" in verdict([replace(RESULT, decision="none to moderate")])
    assert "effect: none to moderate)" in verdict([replace(RESULT, decision="none to moderate")])


@pytest.mark.parametrize(
    ("nll", "seeds", "message"),
    [
        (np.array([[1.0, np.nan]]), (4,), r"arm 'fixed': `block_nll` must be finite, but is not for seeds \[4\]"),
        (np.ones((2, 3)), (1,), r"arm 'fixed': `block_nll` must be \[1 seeds.*got \[2, 3\]"),
        (np.ones((1, 1)), (1,), "at least 2 blocks"),
        (np.ones((2, 3)), (1, 1), "arm 'fixed': `seeds` must be distinct"),
    ],
)
def test_arm_scores_refuse_broken_input(nll: Floats, seeds: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ArmScores("fixed", seeds, nll, TOKENS)


def test_arm_scores_refuse_blocks_without_tokens() -> None:
    with pytest.raises(ValueError, match="arm 'fixed': `tokens_per_block` must be at least 1, got 0"):
        ArmScores("fixed", (0,), np.ones((1, 2)), 0)


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        (ArmScores("learnable", (0, 2), np.ones((2, 3)), 9), r"'learnable' has seeds \(0, 2\).*'fixed' has \(0, 1\)"),
        (ArmScores("learnable", (0, 1), np.ones((2, 4)), 9), "'learnable' has blocks 4"),
        (ArmScores("learnable", (0, 1), np.ones((2, 3)), 8), "'learnable' has tokens a block 8"),
        (ArmScores("other", (0, 1), np.ones((2, 3)), 9), r"no scores for arm 'learnable'.*\['fixed', 'other'\]"),
        (ArmScores("fixed", (0, 1), np.ones((2, 3)), 9), "distinct names"),
    ],
)
def test_compare_refuses_unpaired_arms(arm: ArmScores, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare([ArmScores("fixed", (0, 1), np.ones((2, 3)), 9), arm], [("learnable", "fixed")])


def test_other_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="`resamples` must be at least 100, got 5"):
        compare([], [], resamples=5)
    with pytest.raises(ValueError, match=r"p-values must lie in \[0, 1\], got \[2\]"):
        holm([2])
    with pytest.raises(ValueError, match="`low` must not exceed `high`, got 1 and 0"):
        decide(1, 0)
    with pytest.raises(ValueError, match="at least one comparison"):
        verdict([])
