import math

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from statsmodels.stats.power import TTestPower

from studies.statistics.differences import Differences
from studies.statistics.intervals import Uncertainty, uncertainty
from studies.statistics.power import Components, components, needed, smallest_visible

FULL = Components(search=1e-6, seed=4e-6, block=1e-5, blocks=100, blocks_df=8)


def runs(values: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return [R, S] run means as searches of 30 equal blocks."""
    return tuple(np.repeat(search[:, None], 30, axis=1) for search in values)


@pytest.mark.parametrize("count", [3, 5, 12])
def test_smallest_visible_has_80_percent_power(count: int) -> None:
    parts = Uncertainty(replicates=1e-6 / count, replicates_df=count - 1, blocks=0.0, blocks_df=8)
    c4 = math.exp(math.lgamma(count / 2) - math.lgamma((count - 1) / 2)) / math.sqrt(
        (count - 1) / 2
    )
    effect = -math.log1p(-smallest_visible(parts) / 100) * c4 / 1e-3
    assert TTestPower().power(effect, count, 0.025, alternative="larger") == pytest.approx(
        0.8, abs=1e-4
    )


def test_smallest_visible_of_many_blocks_is_the_normal_sum() -> None:
    parts = Uncertainty(replicates=0.0, replicates_df=0, blocks=1e-6, blocks_df=5000)
    assert smallest_visible(parts) == pytest.approx(100 * (1.96 + 0.8416) * 1e-3, rel=3e-3)
    assert smallest_visible(Uncertainty(0.0, 2, 0.0, 8)) == 0


def test_components_give_hand_values() -> None:
    searches = runs(np.array([[1.0, 3.0], [5.0, 7.0]]))
    d = Differences("a", "b", searches)
    found = components(d, uncertainty(d))
    assert found.seed == pytest.approx(2)  # the variance of (1, 3) and of (5, 7)
    assert found.search == pytest.approx(8 - 2 / 2)  # the variance of (2, 6), less half the seeds'
    assert found.block == pytest.approx(0, abs=1e-12)
    assert found.blocks == 30


def test_components_equal_those_of_a_mixed_model() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(8, 1)) + rng.normal(size=(8, 5))
    d = Differences("a", "b", runs(values))
    found = components(d, uncertainty(d))
    frame = pd.DataFrame({"y": values.ravel(), "search": np.repeat(np.arange(8), 5)})
    fit = smf.mixedlm("y ~ 1", frame, groups="search").fit(reml=True)
    assert found.seed == pytest.approx(fit.scale, rel=1e-4)
    assert found.search == pytest.approx(float(fit.cov_re.iloc[0, 0]), rel=1e-3)


def test_components_that_were_not_replicated_are_unknown() -> None:
    one_search = Differences("a", "b", runs(np.array([[1.0, 3.0]])))
    assert components(one_search, uncertainty(one_search)).search is None
    one_seed = Differences("a", "b", runs(np.array([[1.0], [3.0], [8.0]])))
    found = components(one_seed, uncertainty(one_seed))
    assert found.seed is None
    assert found.search == pytest.approx(np.var([1, 3, 8], ddof=1))


def test_search_variance_is_never_negative() -> None:
    d = Differences("a", "b", runs(np.array([[1.0, 9.0], [9.0, 1.0]])))
    assert components(d, uncertainty(d)).search == 0


def test_needed_finds_the_cheapest_design() -> None:
    plan = needed(FULL, 0.3, search_cost=4)
    assert plan.reachable
    assert plan.smallest_visible <= 0.3
    cheaper = Uncertainty(
        1e-6 / plan.searches + 4e-6 / (plan.searches * (plan.seeds - 1)), plan.searches - 1, 1e-7, 8
    )
    assert smallest_visible(cheaper) > 0.3
    assert needed(FULL, 0.3, search_cost=100).searches <= plan.searches


def test_needed_asks_for_more_blocks_where_runs_cannot_do() -> None:
    plan = needed(Components(1e-9, 1e-9, 1e-4, 100, 8), 0.2)
    assert plan.blocks == 400
    assert plan.reachable


def test_needed_admits_what_is_out_of_reach() -> None:
    plan = needed(Components(1e-2, 1e-2, 0.0, 100, 8), 0.01)
    assert not plan.reachable
    assert (plan.searches, plan.seeds, plan.blocks) == (24, 24, 100)
    assert plan.smallest_visible > 0.01


def test_needed_stays_with_what_was_replicated() -> None:
    assert needed(Components(None, 1e-6, 0.0, 100, 8), 0.1).searches == 1
    assert needed(Components(1e-6, None, 0.0, 100, 8), 0.1).seeds == 1
    with pytest.raises(ValueError, match="`effect` must be above 0, got 0"):
        needed(FULL, 0)
