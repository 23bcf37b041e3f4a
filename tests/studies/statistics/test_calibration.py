"""Calibrate the intervals.

`pytest -m slow tests/studies/statistics/test_calibration.py` prints a table.
"""

from collections.abc import Callable
from dataclasses import replace

import flat_statistics as flat
import numpy as np
import pytest
from simulated_families import family_errs, profile_study, wrongly_equivalent
from simulated_studies import Scenario, calibrate, simulate

from studies.statistics.comparison import compare
from studies.statistics.intervals import interval
from studies.statistics.robust import hodges_lehmann

STUDIES = 1000
Row = Callable[[str], None]


def conservative(scenario: Scenario) -> Scenario:
    """Allow intervals that are too wide, as Student's t is for symmetric noise with long tails."""
    return replace(scenario, coverage=(93.0, 99.0), power=(60.0, 85.0))


METHOD = [
    *(Scenario(f"R = {r}, S = {s}", r, s) for r in (1, 3, 5, 8) for s in (1, 3, 6)),
    *(Scenario(f"R = 3, search noise {x} x seeds'", search=x) for x in (0, 0.5, 2, 5)),
    *(Scenario(f"R = {r}, search noise 5 x seeds'", r, search=5) for r in (5, 8)),
    *(Scenario(f"R = 3, no search noise, block part {x}", search=0, block=x) for x in (0, 1, 2)),
    *(
        Scenario(f"heavy-tailed seeds, R = {r}, S = {s}", r, s, noise="heavy")
        for r, s in ((1, 6), (3, 3), (5, 3), (8, 6))
    ),
    *(
        conservative(Scenario(f"unmatched, R = {r}", r, search=20, matched=False))
        for r in (3, 5, 8)
    ),
]
CORRELATED = [
    Scenario(f"AR(1) {rho}, {n} blocks, R = {r}, S = {s}", r, s, n, block=1, rho=rho)
    for rho in (0.3, 0.5, 0.8)
    for n in (100, 300)
    for r, s in ((1, 1), (1, 6), (3, 3), (8, 3))
]
DOCUMENTS = [
    Scenario(
        f"documents of {length} blocks, {n} blocks, R = {r}, S = {s}",
        r,
        s,
        n,
        block=1,
        document=length,
    )
    for length, n in ((2, 100), (4, 100), (10, 300))
    for r, s in ((1, 1), (1, 6), (3, 3))
]
OUTLIERS = [
    conservative(Scenario(f"outliers in both arms, R = {r}, S = {s}", r, s, noise="outliers"))
    for r, s in ((3, 3), (3, 6), (5, 3), (8, 6))
]
REACH = [  # known limits: what no interval from so few replicates can do
    Scenario("R = 2, S = 3", 2, coverage=(90, 97)),
    Scenario(
        "outliers in both arms, R = 1, S = 6",
        1,
        6,
        noise="outliers",
        coverage=(93, 99),
        power=(50, 85),
    ),
    Scenario(
        "outliers in one arm, R = 3, S = 1",
        3,
        1,
        noise="one-sided",
        coverage=(30, 60),
        power=(40, 85),
    ),
    Scenario(
        "outliers in one arm, R = 3, S = 6",
        3,
        6,
        noise="one-sided",
        coverage=(85, 95),
        power=(60, 85),
    ),
    Scenario(
        "outliers in one arm, R = 8, S = 6",
        8,
        6,
        noise="one-sided",
        coverage=(90, 97),
        power=(60, 85),
    ),
    Scenario(
        "fewer than 6 documents, 300 blocks, R = 1, S = 1",
        1,
        1,
        300,
        block=1,
        document=100,
        coverage=(30, 80),
        power=(30, 85),
    ),
]
FAST = [METHOD[4], METHOD[2], CORRELATED[6], DOCUMENTS[3]]


@pytest.fixture
def row(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Row:
    """Print rows of the table as they are measured; the default suite stays silent."""

    def write(line: str) -> None:
        if request.node.get_closest_marker("slow"):
            with capsys.disabled():
                print(f"\n{line}", flush=True)

    return write


def chance(share: float, studies: int = STUDIES) -> float:
    """Return 2.5 standard errors of a share in %, counted over `studies`.

    About 1 in 100 scenarios exceeds them.
    """
    return 2.5 * float(np.sqrt(share * (100 - share) / studies))


def check(scenario: Scenario, studies: int, row: Row) -> None:
    result = calibrate(scenario, studies)
    row(
        f"| {scenario.name} | coverage {result.coverage:.1f} % (+-{result.error:.1f}), "
        f"visible {result.visible:.3f} % with power {result.power:.0f} % |"
    )
    slack = chance(5, studies)
    assert scenario.coverage[0] - slack <= result.coverage <= scenario.coverage[1] + slack
    slack = chance(20, studies)
    assert scenario.power[0] - slack <= result.power <= scenario.power[1] + slack


@pytest.mark.parametrize("scenario", FAST, ids=lambda s: s.name)
def test_intervals_cover_in_a_small_sample(scenario: Scenario, row: Row) -> None:
    check(scenario, 400, row)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "scenario", METHOD + CORRELATED + DOCUMENTS + OUTLIERS + REACH, ids=lambda s: s.name
)
def test_intervals_cover_and_power_is_as_stated(scenario: Scenario, row: Row) -> None:
    check(scenario, STUDIES, row)


@pytest.mark.slow
@pytest.mark.parametrize("search", [0.0, 1.0, 5.0])
def test_one_search_says_little_about_the_method(search: float, row: Row) -> None:
    rng = np.random.default_rng(5)
    results = [
        interval(simulate(Scenario("", 1, 6, search=search), rng)[0]) for _ in range(STUDIES)
    ]
    coverage = 100 * np.mean([r.low <= 0 <= r.high for r in results])
    row(
        f"| R = 1, S = 6, search noise {search:g} x: of the method's value "
        f"| coverage {coverage:.1f} % |"
    )
    assert (coverage > 92) == (search == 0)


FAMILIES: list[
    tuple[str, tuple[int, ...], float, float]
] = [  # name, looks, search noise, effect of the third arm
    ("three equal arms, one look at R = 3", (3,), 1.0, 0.0),
    ("three equal arms, no search noise, one look at R = 3", (3,), 0.0, 0.0),
    ("three equal arms, one look at R = 8", (8,), 1.0, 0.0),
    ("two equal arms beside one 2 % worse, R = 3", (3,), 1.0, 0.02),
    ("three equal arms, looks at R = 3, 5, 8", (3, 5, 8), 1.0, 0.0),
    ("three equal arms, search noise 5 x, looks at R = 3, 5, 8", (3, 5, 8), 5.0, 0.0),
    ("two equal arms beside one 2 % worse, looks at R = 3, 5, 8", (3, 5, 8), 1.0, 0.02),
]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "looks", "search", "effect"), FAMILIES, ids=[f[0] for f in FAMILIES]
)
def test_families_give_few_false_verdicts(
    name: str, looks: tuple[int, ...], search: float, effect: float, row: Row
) -> None:
    rng = np.random.default_rng(1)
    share = 100 * np.mean(
        [family_errs(rng, looks, search=search, effect=effect) for _ in range(STUDIES)]
    )
    row(f"| {name} | false verdicts {share:.1f} % of families |")
    assert share <= 5 + chance(5)


@pytest.mark.slow
def test_arms_at_the_margin_are_seldom_called_equivalent(row: Row) -> None:
    rng = np.random.default_rng(2)
    share = 100 * np.mean([wrongly_equivalent(rng, 0.2) for _ in range(STUDIES)])
    row(f"| arms that differ by the margin | called equivalent in {share:.1f} % |")
    assert share <= 2.5 + chance(2.5)


PROFILES = [
    ("own best, parallel profiles, R = 3", 0.0, 3, 0.0),
    ("own best, parallel profiles, R = 8", 0.0, 8, 0.0),
    ("own best, profiles shifted by 0.4, R = 3", 0.4, 3, 0.0),
    ("own best, profiles shifted by 0.4, R = 8", 0.4, 8, 0.0),
    ("own best, parallel skewed profiles, R = 3", 0.0, 3, 0.2),
]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "shift", "searches", "skew"), PROFILES, ids=[p[0] for p in PROFILES]
)
def test_own_best_differences_cover(
    name: str, shift: float, searches: int, skew: float, row: Row
) -> None:
    rng = np.random.default_rng(3)
    results = [profile_study(rng, shift, searches, skew) for _ in range(STUDIES)]
    coverage = 100 * np.mean([own.low <= 0 <= own.high for own, _ in results])
    depends = 100 * np.mean([d for _, d in results])
    row(
        f"| {name} | coverage {coverage:.1f} %, 'depends on the learning rate' in {depends:.1f} % |"
    )
    assert 93 - chance(5) <= coverage <= 97 + chance(5)
    assert depends <= 5 + chance(5) or shift > 0


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["normal", "heavy", "outliers"])
@pytest.mark.parametrize("count", [6, 8])
def test_hodges_lehmann_covers(noise: str, count: int, row: Row) -> None:
    rng = np.random.default_rng(4)
    scenario = Scenario("", count, 1, search=0, block=0, rest=0, noise=noise, blocks=2)
    results = [
        hodges_lehmann(simulate(scenario, rng)[0].by_unit.mean(axis=1)) for _ in range(STUDIES)
    ]
    coverage = 100 * np.mean(
        [r.low is not None and r.high is not None and r.low <= 0 <= r.high for r in results]
    )
    row(f"| Hodges-Lehmann, {noise} noise, {count} replicates | coverage {coverage:.1f} % |")
    assert 95 - chance(5) <= coverage <= 97 + chance(5)


FLAT = [METHOD[4], METHOD[13], METHOD[15], METHOD[17], *CORRELATED[0::4][0::2], *CORRELATED[2::8]]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", FLAT, ids=lambda s: s.name)
def test_nested_intervals_cover_where_flat_ones_do_not(scenario: Scenario, row: Row) -> None:
    """Compare with earlier versions, which treated all seeds and all blocks as independent."""
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(STUDIES // 2):
        d, truth = simulate(scenario, rng)
        runs = np.concatenate(d.by_search)
        seeds = tuple(range(len(runs)))
        scores = [
            flat.ArmScores("a", seeds, runs * 100, 100),
            flat.ArmScores("b", seeds, 0 * runs, 100),
        ]
        old, new = flat.compare(scores, [("a", "b")], resamples=400)[0], compare([d])[0]
        true = 100 * np.expm1(truth)
        covered.append((old.low <= true <= old.high, new.low <= true <= new.high))
    old_share, new_share = 100 * np.mean(covered, axis=0)
    row(
        f"| {scenario.name}: flat against nested "
        f"| coverage {old_share:.1f} % against {new_share:.1f} % |"
    )
    assert new_share >= 93 - chance(5, STUDIES // 2)
