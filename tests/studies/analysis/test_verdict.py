"""The verdict's sentences, for comparisons with given figures."""

from dataclasses import replace
from typing import Any

from studies import learnable_bucketing
from studies.analysis.comparisons import Comparison, Needed
from studies.analysis.verdict import verdict
from studies.spec.study import Study

STUDY = Study.from_dict(learnable_bucketing.STUDY)
UNDECIDED = Comparison(
    arm="learnable",
    reference="fixed",
    seeds=1,
    change=-0.68,
    low=-1.09,
    high=-0.26,
    by_seed=(-0.5, -0.9),
    median=-0.7,
    p_value=0.02,
    p_holm=0.061,
    smallest_visible=0.6,
    decision="none to moderate",
    outcome="undecided",
    scope="method",
    searches=2,
)
_DESIGNS = ((24, 100), (2, 6400))  # searches and blocks


def _said(**changes: Any) -> str:
    return verdict(STUDY, [replace(UNDECIDED, **changes)]).replace("\N{MINUS SIGN}", "-")


def test_interval_without_zero_that_decides_nothing_is_explained() -> None:
    finding = "learnable vs fixed is undecided: -0.68 % PPL [-1.09, "
    assert f"{finding}-0.26] (Holm-adjusted p = 0.061)." in _said()
    assert f"{finding}+0.10]." in _said(high=0.10)


def test_unmatched_searches_cost_is_said_of_the_intervals_that_hold_it() -> None:
    apart = Study.from_dict({**learnable_bucketing.STUDY, "matched": False})
    method = verdict(apart, [UNDECIDED])
    one = verdict(apart, [replace(UNDECIDED, scope="configurations", searches=1, seeds=5)])
    assert (
        "includes the luck of each search, and so do these intervals, which are wider than a "
        "matched study's." in method
    )
    assert "includes the luck of each search, but the intervals don't." in one


def test_what_it_would_take_counts_what_there_is_more_than_one_of() -> None:
    plan = Needed(0.1, 24, 1, 100, 0.2, reachable=False)
    enough = "Even 24 searches would not be enough to detect 0.1 % in every comparison."
    assert enough in _said(needed=plan)
    plan = Needed(0.1, 8, 4, 200, 0.1, reachable=True)
    assert (
        "About 8 searches x 4 seeds on 200 test blocks would detect 0.1 % in every comparison."
        in _said(needed=plan)
    )
    plan = Needed(0.1, 1, 6, 100, 0.1, reachable=True)
    assert "About 6 seeds on 100 test blocks would detect 0.1 % in every comparison." in _said(
        needed=plan
    )


def _many(*outcomes: Any) -> str:
    """Return the verdict on arms a, b, ... against one reference, with these outcomes."""
    arms = [
        replace(UNDECIDED, arm=chr(97 + i), outcome=outcome, smallest_visible=0.5 + i)
        for i, outcome in enumerate(outcomes)
    ]
    return verdict(STUDY, arms).replace("\N{MINUS SIGN}", "-")


def test_subject_that_is_a_name_keeps_its_capitals() -> None:
    dora = replace(STUDY, subject="DoRA")
    assert verdict(dora, [UNDECIDED]).startswith("It is undecided whether DoRA helps.")
    assert _said().startswith("It is undecided whether learning the boundaries helps.")


def test_design_for_all_takes_the_most_of_each() -> None:
    many, few = (Needed(0.1, r, 1, blocks, 0.1, reachable=True) for r, blocks in _DESIGNS)
    text = verdict(STUDY, [replace(UNDECIDED, needed=many), replace(UNDECIDED, needed=few)])
    assert "About 24 searches on 6400 test blocks would detect 0.1 % in every comparison." in text


def test_comparison_that_lost_a_search_is_named() -> None:
    lost = replace(UNDECIDED, reference="baseline", searches=1, seeds=3)
    said = verdict(STUDY, [UNDECIDED, lost])
    assert "But learnable vs baseline rests on 3 paired seeds." in said
    assert "rests on" not in verdict(STUDY, [UNDECIDED, UNDECIDED])


def test_study_that_compares_nothing_has_no_verdict() -> None:
    alone = Study.from_dict({**learnable_bucketing.STUDY, "comparisons": []})
    assert verdict(alone, []) == "No verdict: the study compares no arms."
    assert "no pair of arms has finished" in verdict(STUDY, [])


def test_many_comparisons_are_summed_up_by_outcome() -> None:
    said = _many("undecided", "better", "equivalent", "undecided", "better")
    assert (
        "5 comparisons with fixed: 2 better, 1 within 0.5 %, 2 undecided. "
        "Better: b (-0.68 % PPL [-1.09, -0.26]), e (-0.68 % PPL [-1.09, -0.26]). "
        "Within 0.5 %: c. Undecided: a, d." in said
    )
    assert "ranges from 0.50 % for a vs fixed to 4.50 % for e vs fixed." in said
    assert "comparisons with" not in _many(*["better"] * 4)


def test_summary_names_references_that_differ_and_small_changes() -> None:
    steps = [replace(UNDECIDED, reference=str(i), outcome="better", low=-0.4) for i in range(5)]
    said = verdict(STUDY, steps).replace("\N{MINUS SIGN}", "-")
    figure = "(-0.68 % PPL [-0.40, -0.26], less than the margin)"
    assert f"5 comparisons: 5 better. Better: learnable vs 0 {figure}, learnable vs 1 " in said
