import numpy as np
import pytest

from studies.statistics.comparison import compare
from studies.statistics.positions import by_position, lim_ppl_losses

RNG = np.random.default_rng(0)
TOKENS = np.array([12] + [13] * 9)


def test_lim_ppl_is_the_mean_of_the_bins_perplexities() -> None:
    bins = 3 + RNG.normal(size=(2, 40, 10))
    values = lim_ppl_losses(bins)
    expected = np.exp(bins.mean(axis=1)).mean(axis=-1)
    assert np.exp(values.mean(axis=-1)) == pytest.approx(expected)


def test_lim_ppl_influence_equals_the_change_without_a_block() -> None:
    bins = 3 + 0.1 * RNG.normal(size=(400, 10))
    values = lim_ppl_losses(bins)
    without = lim_ppl_losses(bins[1:]).mean()
    assert values.mean() - without == pytest.approx((values[0] - values.mean()) / 399, rel=0.01)


def test_lim_ppl_of_one_bin_is_its_perplexity() -> None:
    bins = RNG.normal(size=(3, 20, 1))
    assert lim_ppl_losses(bins) == pytest.approx(bins[..., 0])


def test_by_position_compares_each_tenth_and_lim_ppl() -> None:
    reference = 3 * TOKENS + RNG.normal(size=(2, 2, 30, 10))
    arm = reference + 0.01 * TOKENS * (np.arange(10) == 9)
    differences = by_position(("a", "b"), list(arm), list(reference), TOKENS)
    assert list(differences) == ["lim_ppl", *(f"ppl_bin_{i}" for i in range(10))]
    results = dict(zip(differences, compare(list(differences.values())), strict=True))
    assert results["ppl_bin_9"].change == pytest.approx(100 * np.expm1(0.01))
    assert results["ppl_bin_3"].change == 0
    lim = [np.exp((x / TOKENS).mean(axis=2)).mean(axis=-1) for x in (arm, reference)]
    assert results["lim_ppl"].change == pytest.approx(
        100 * np.expm1(np.log(lim[0] / lim[1]).mean())
    )


def test_tenths_without_tokens_are_left_out() -> None:
    tokens = np.array([0, 2, 0, 2, 2, 0, 2, 2, 0, 2])
    bins = [RNG.normal(size=(1, 30, 10))]
    names = list(by_position(("a", "b"), bins, bins, tokens))
    assert names == [
        "lim_ppl",
        "ppl_bin_1",
        "ppl_bin_3",
        "ppl_bin_4",
        "ppl_bin_6",
        "ppl_bin_7",
        "ppl_bin_9",
    ]


def test_by_position_refuses_other_shapes() -> None:
    bins = [np.ones((1, 30, 10))]
    with pytest.raises(
        ValueError,
        match=r"losses must be \[seeds, blocks, 10\] in every search, got \[\[1, 30, 9\]",
    ):
        by_position(("a", "b"), [np.ones((1, 30, 9))], bins, TOKENS)
    with pytest.raises(
        ValueError, match=r"`tokens_per_bin` must be 10 numbers of tokens, got \[0, 0"
    ):
        by_position(("a", "b"), bins, bins, np.zeros(10, dtype=np.int64))
