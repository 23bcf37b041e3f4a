"""Perplexity and related figures, compared with sums by hand."""

import math

import numpy as np
import pytest

from hylorada.data.perplexity import Evaluation, perplexity, position_bins, summarize


def test_perplexity_weighs_tokens_not_batches() -> None:
    """Perplexity is neither a mean of means nor a mean of PPLs.

    A mean NLL of 2.0 over 10 tokens and of 4.0 over 2 would give 20.0855 and 30.9936.
    """
    bins = np.zeros((2, 10))
    bins[:, 3] = [20.0, 8.0]
    evaluation = Evaluation(bins, np.array([12] + [0] * 9), 1)
    assert evaluation.nll == pytest.approx(28 / 12)
    assert evaluation.ppl == pytest.approx(10.3123, abs=5e-5)


def test_block_bins_are_the_sums_of_each_block_and_tenth() -> None:
    token_nll = np.random.default_rng(0).random((3, 24))
    evaluation = summarize(token_nll, 1)
    for block in range(3):
        for tenth in range(10):
            inside = [token_nll[block, p - 1] for p in range(1, 25) if p * 10 // 25 == tenth]
            assert evaluation.block_bins[block, tenth] == pytest.approx(sum(inside))
    assert evaluation.block_nll == pytest.approx(token_nll.sum(axis=1))


def test_eight_tokens_in_two_bins_are_three_and_four_targets() -> None:
    assert position_bins(8, 2).tolist() == [0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("block_size", [2, 3, 8, 11, 16, 64, 100, 512])
def test_bins_are_tenths_of_the_positions(block_size: int) -> None:
    expected = [math.floor(10 * p / block_size) for p in range(1, block_size)]
    assert position_bins(block_size).tolist() == expected
    if block_size >= 20:
        assert np.bincount(position_bins(block_size), minlength=10).min() >= block_size // 10 - 1


def test_summary_equals_a_loop() -> None:
    token_nll = np.random.default_rng(0).gamma(2.0, size=(5, 31))
    evaluation = summarize(token_nll, num_bytes=77)
    sums, counts = [0.0] * 10, [0] * 10
    for row in token_nll:
        for target, value in enumerate(row, start=1):
            sums[10 * target // 32] += value
            counts[10 * target // 32] += 1
    assert evaluation.block_nll.tolist() == pytest.approx(token_nll.sum(axis=1).tolist())
    assert evaluation.bin_nll.tolist() == pytest.approx(sums)
    assert evaluation.bin_tokens.tolist() == counts
    assert (evaluation.tokens, evaluation.num_bytes) == (5 * 31, 77)
    assert evaluation.bin_nll.sum() == pytest.approx(evaluation.block_nll.sum(), rel=1e-14)


def test_figures_follow_their_definitions() -> None:
    token_nll = np.random.default_rng(1).gamma(2.0, size=(3, 39))
    evaluation, bins = summarize(token_nll, num_bytes=50), np.arange(1, 40) * 10 // 40
    assert evaluation.nll == pytest.approx(token_nll.mean())
    assert evaluation.ppl == pytest.approx(math.exp(token_nll.mean()))
    assert evaluation.bits_per_byte == pytest.approx(np.log2(np.exp(token_nll)).sum() / 50)
    by_bin = [math.exp(token_nll[:, bins == i].mean()) for i in range(10)]
    assert evaluation.ppl_bins == pytest.approx(by_bin)
    assert evaluation.lim_ppl == pytest.approx(sum(by_bin) / 10)
    assert evaluation.ppl_middle == pytest.approx(
        math.exp(token_nll[:, (bins >= 3) & (bins <= 6)].mean())
    )


def test_loss_that_is_not_finite_shows_in_every_figure_without_a_warning() -> None:
    token_nll = np.ones((2, 15))
    token_nll[0, 3] = math.nan
    metrics = summarize(token_nll, num_bytes=8).metrics()
    assert all(math.isnan(metrics[name]) for name in ("nll", "ppl", "lim_ppl", "ppl_bin_2"))
    assert math.isnan(summarize(np.full((2, 3), math.nan), num_bytes=8).lim_ppl)


def test_metrics_name_every_figure() -> None:
    evaluation = summarize(np.ones((2, 15)), num_bytes=8)
    metrics = evaluation.metrics()
    bins = [f"ppl_bin_{i}" for i in range(10)]
    assert list(metrics) == ["nll", "ppl", "bits_per_byte", "lim_ppl", "ppl_middle", *bins]
    assert metrics["nll"] == 1.0
    assert {round(v, 12) for k, v in metrics.items() if "ppl" in k} == {round(math.e, 12)}
    assert metrics["bits_per_byte"] == pytest.approx(30 / math.log(2) / 8)


def test_bins_without_targets_are_left_out_of_lim_ppl() -> None:
    evaluation = summarize(
        np.array([[1.0, 2.0, 3.0]]), num_bytes=4
    )  # targets 1, 2, 3 of 4: bins 2, 5, 7
    assert [i for i, p in enumerate(evaluation.ppl_bins) if not math.isnan(p)] == [2, 5, 7]
    assert evaluation.lim_ppl == pytest.approx((math.e + math.e**2 + math.e**3) / 3)
    assert evaluation.ppl_middle == pytest.approx(math.e**2)


def test_text_without_bytes_has_no_bits_per_byte() -> None:
    assert math.isnan(summarize(np.ones((1, 3)), num_bytes=0).bits_per_byte)


def test_perplexity_of_extreme_values() -> None:
    assert perplexity(0.0) == 1.0
    assert perplexity(708.0) == math.exp(708.0)
    assert perplexity(1e6) == math.inf
    assert perplexity(math.inf) == math.inf
    assert math.isnan(perplexity(math.nan))


def test_sums_are_fp64() -> None:
    token_nll = np.full((1000, 15), 1e-3) + np.eye(1000, 15) * 1e6
    assert summarize(token_nll, 1).block_nll.sum() == pytest.approx(15e6 + 15.0, abs=1e-6)
