"""The resolution that is expected of a study, against statsmodels and against what studies say."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_studies import VALUES, make
from statsmodels.stats.power import TTestPower

from studies.analysis.forecast.resolution import resolutions, visible_spreads
from studies.analysis.results import read_results
from studies.spec.study import Study

INPUTS = {"model_fingerprint": "31dca1d1a8d06193", "data_fingerprint": "e2188a9e41b52a53"}
BLOCKS = 12


def _study(**changes: Any) -> Study:
    return Study.from_dict(VALUES | changes)


@pytest.mark.parametrize("searches", [2, 3, 5, 10])
def test_spreads_are_those_of_a_t_test_with_80_percent_power(searches: int) -> None:
    df = searches - 1
    # a standard deviation from few replicates is too small by c4 on average
    c4 = math.sqrt(2 / df) * math.gamma((df + 1) / 2) / math.gamma(df / 2)
    effect = TTestPower().solve_power(nobs=searches, alpha=0.05, power=0.8)
    assert visible_spreads(_study(searches=searches)) == pytest.approx(effect / c4, rel=2e-3)


def test_seeds_replicate_a_single_search_and_one_run_shows_no_spread() -> None:
    assert visible_spreads(_study(seeds=5)) == visible_spreads(_study(searches=5, seeds=1))
    assert visible_spreads(_study(seeds=1)) is None


def test_an_equal_study_is_expected_to_see_what_the_earlier_one_could(tmp_path: Path) -> None:
    store = make(tmp_path / "studies" / "made", "end", seeds=5)
    store.close()
    (c,) = read_results(tmp_path / "studies" / "made" / "results.json").comparisons
    (found,) = resolutions(store.study, INPUTS, BLOCKS, tmp_path)
    assert (found.arm, found.reference, found.source) == ("fixed", "baseline", "made")
    assert found.percent == pytest.approx(c.smallest_visible, rel=0.1)
    (more,) = resolutions(replace(store.study, seeds=20), INPUTS, 4 * BLOCKS, tmp_path)
    # a quarter of both variances, and more degrees of freedom: less than half
    assert more.percent is not None
    assert more.percent < c.smallest_visible / 2


def test_studies_on_other_inputs_or_of_another_design_tell_nothing(tmp_path: Path) -> None:
    store = make(tmp_path / "studies" / "made", "end")
    store.close()
    other = {**INPUTS, "data_fingerprint": "0" * 16}
    assert resolutions(store.study, other, BLOCKS, tmp_path)[0].percent is None
    longer = replace(store.study, block_size=64)
    assert resolutions(longer, INPUTS, BLOCKS, tmp_path)[0].percent is None
    # one search says nothing about the spread between searches
    several = replace(store.study, searches=3)
    assert resolutions(several, INPUTS, BLOCKS, tmp_path)[0].percent is None
    assert np.isfinite(resolutions(store.study, INPUTS, BLOCKS, tmp_path)[0].percent or np.nan)
