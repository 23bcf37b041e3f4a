"""Several cells together: pooled changes, figures that may be compared, and sentences."""

import math

import numpy as np
import pytest
from made_cells import PAIR, cell
from scipy import stats
from statsmodels.stats.meta_analysis import combine_effects

from studies.analysis.cells.across import across, common_measure
from studies.analysis.cells.reading import FinishedCell


def _cells(*effects: float, error: float = 0.01) -> list[FinishedCell]:
    return [cell(f"c{i}", effect, error) for i, effect in enumerate(effects)]


def test_changes_are_pooled_on_the_scale_of_the_loss() -> None:
    effects, errors = [-0.05, 0.01, 0.02], [0.01, 0.02, 0.005]
    cells = [cell(f"c{i}", y, s) for i, (y, s) in enumerate(zip(effects, errors, strict=True))]
    (found,) = across("x", cells, [PAIR], ()).comparisons
    expected = combine_effects(
        np.array(effects), np.array(errors) ** 2, "pm", use_t=True, atol=1e-12, maxiter=500
    )
    assert found.pooled is not None
    assert found.pooled.change == pytest.approx(100 * math.expm1(expected.mean_effect_re))
    assert (found.pooled.low, found.pooled.high) == pytest.approx(
        tuple(100 * np.expm1(expected.conf_int()[3])), rel=1e-5
    )
    statistic = expected.mean_effect_re / expected.sd_eff_w_re / math.sqrt(expected.scale_hksj_re)
    assert found.pooled.p_value == pytest.approx(2 * stats.t.sf(abs(statistic), 2), rel=1e-5)
    assert [c.cell for c in found.cells] == ["c0", "c1", "c2"]


@pytest.mark.parametrize(
    ("effects", "error", "says"),
    [
        ((-0.05, -0.051, -0.049), 0.002, "learnable is better than fixed on average over 3 cells"),
        ((0.05, 0.051, 0.049), 0.002, "learnable is worse than fixed on average over 3 cells"),
        ((0.0, 1e-4, -1e-4), 1e-4, "learnable and fixed differ by less than 0.5 % on average"),
        ((-0.05, 0.05, 0.0), 0.01, "learnable vs fixed is undecided on average over 3 cells"),
    ],
)
def test_outcome_follows_the_pooled_interval(
    effects: tuple[float, ...], error: float, says: str
) -> None:
    result = across("x", _cells(*effects, error=error), [PAIR], ())
    assert result.verdict[0].startswith(says)
    differ = "by more than their noise" if effects[0] == -effects[1] != 0 else "by no more than"
    assert f"Cells differ {differ}" in result.verdict[0]


def test_single_cell_and_noiseless_cells_are_not_pooled() -> None:
    one = across("x", _cells(0.01), [PAIR], ())
    assert one.comparisons[0].pooled is None
    assert one.verdict == ("learnable vs fixed is not pooled (1 cell).",)
    noiseless = across("x", [cell("a", 0.1, 0.0), cell("b", 0.1, 0.0)], [PAIR], ())
    assert "can't be pooled: a cell has no noise" in noiseless.verdict[0]


def test_pair_that_no_cell_compares_is_left_out() -> None:
    result = across("x", _cells(0.01, 0.02), [PAIR, ("fixed", "base")], ["first"])
    assert [(c.arm, c.reference) for c in result.comparisons] == [PAIR]
    assert result.notes[0] == "first"


@pytest.mark.parametrize(
    ("other", "measure", "why"),
    [
        ({}, "PPL", []),
        ({"data_fingerprint": "e"}, "", ["their test texts differ"]),
        ({"model_fingerprint": "n"}, "bits per byte", ["bases may cut text into other tokens"]),
        ({"test_fingerprint": "u"}, "", ["read other test blocks"]),
    ],
)
def test_ppl_is_compared_only_on_the_same_text_and_base(
    other: dict[str, str], measure: str, why: list[str]
) -> None:
    same = {"data_fingerprint": "d", "model_fingerprint": "m", "test_fingerprint": "t64"}
    cells = [cell("a"), cell("b", provenance={**same, **other})]
    found, notes = common_measure(cells)
    assert found == measure
    assert [part in note for part, note in zip(why, notes, strict=True)] == [True] * len(why)
    levels = across("x", cells, [PAIR], ()).cells[0].levels
    assert levels == ({"fixed": 20.0, "learnable": 21.0} if measure == "PPL" else {})


def test_other_block_sizes_may_read_other_blocks() -> None:
    assert common_measure([cell("a"), cell("b", block_size=128)])[0] == "PPL"
