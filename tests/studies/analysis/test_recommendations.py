"""Recommendations by use, for components with given figures."""

from dataclasses import replace

from studies.analysis.components import Component, Stability
from studies.analysis.recommendations import recommendations
from studies.statistics.change import Change

_PPL = {"baseline": 100.0, "small": 99.0, "large": 97.0, "lost": 99.5, "worse": 99.5}


def _component(arm: str, change: float, parameters: int, outcome: str = "better") -> Component:
    of_ppl = Change(change, change - 0.4, change + 0.4, 0.01, outcome)  # type: ignore[arg-type]
    return Component(
        arm=arm,
        reference="baseline",
        change=of_ppl,
        gains_ppl="no",
        lim_ppl=replace(of_ppl, change=change / 2, low=change / 2 - 0.1, high=change / 2 + 0.1),
        gains_lim_ppl="no",
        parameters=parameters,
        per_percent=parameters / -change if outcome == "better" else None,
        cheap="yes",
        stability=Stability(runs=5),
        reference_stability=Stability(runs=5),
        stable="yes",
        status="experimental",
    )


SMALL, LARGE = _component("small", -1.0, 1_000), _component("large", -3.0, 9_000)
LOST = _component("lost", -0.5, 10, outcome="undecided")


def _said(*components: Component) -> list[str]:
    return [s.replace("\N{MINUS SIGN}", "-") for s in recommendations(components, _PPL)]


def test_each_use_has_the_arm_with_the_lowest_figure() -> None:
    assert _said(SMALL, LARGE, LOST) == [
        "Fewest parameters per 1 %: small, 1,000 (+1,000 parameters, -1.00 % PPL [-1.40, -0.60]).",
        "Lowest PPL: large, 97.000 (-3.00 % PPL [-3.40, -2.60]).",
        "Long context (lowest LIM-PPL): large, -1.50 % LIM-PPL [-1.60, -1.40].",
        "Most stable: small and large, no spikes in 10 confirm runs.",
    ]


def test_arms_whose_intervals_overlap_the_bests_are_named() -> None:
    near, nearer = _component("near", -2.5, 60_000), _component("nearer", -2.8, 60_000)
    ppl = {**_PPL, "near": 97.5, "nearer": 97.2}
    found = recommendations([LARGE, near, nearer, SMALL], ppl)
    assert found[1].endswith("; its interval overlaps those of near and nearer.")
    assert found[0].endswith("]).")  # 1,000 a percent against 3,000 and more
    assert recommendations([LARGE, near], ppl)[1].endswith("; its interval overlaps that of near.")


def test_no_arm_is_recommended_that_is_not_better() -> None:
    assert LOST.lim_ppl is not None
    lim_ppl = replace(LOST.lim_ppl, outcome="undecided")
    lost, worse = (replace(LOST, arm=arm, lim_ppl=lim_ppl) for arm in ("lost", "worse"))
    assert _said(lost, worse) == [
        f"{use}: none, because no arm is better than baseline."
        for use in (
            "Fewest parameters per 1 %",
            "Lowest PPL",
            "Long context (lowest LIM-PPL)",
            "Most stable",
        )
    ]


def test_spikes_and_divergences_decide_what_is_most_stable() -> None:
    spiky = replace(SMALL, stability=Stability(runs=5, spikes=2))
    lost = replace(LARGE, stability=Stability(runs=5, diverged=1))
    assert _said(spiky, lost)[3] == (
        "Most stable: large, no spikes and 1 divergence in 5 confirm runs."
    )
    unjudged = replace(SMALL, stability=Stability())
    assert _said(unjudged, LOST)[3].startswith("Most stable: not judged, because a run needs 5 ")


def test_steps_of_a_path_are_not_ranked() -> None:
    assert _said(SMALL, replace(LARGE, reference="small")) == []
    assert _said(SMALL) == []
