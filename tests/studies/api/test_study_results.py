"""Results as data frames hold what the study folder holds."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from made_studies import make

from studies.analysis.results import read_results
from studies.api.study_results import StudyResults, load_results
from studies.trials.records import OPEN


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    store = make(tmp_path_factory.mktemp("made"), "end")
    store.close()
    return StudyResults(store.study, store.folder, read_results(store.folder / "results.json"))


def test_comparisons_hold_the_stored_figures(results: StudyResults) -> None:
    (stored,) = results.results.comparisons
    row = results.comparisons.loc[("fixed", "baseline")]
    assert (row["change"], row["low"], row["high"]) == (stored.change, stored.low, stored.high)
    assert row["outcome"] == stored.outcome


def test_trials_have_a_row_each(results: StudyResults) -> None:
    trials = results.trials
    assert len(trials) == 2 * 6 + 2 * 2  # search trials and confirm runs of two arms
    assert set(trials.query("stage == 'search'")["state"]) == {"complete", "pruned"}
    row = trials.loc["fixed-0000"]
    assert math.exp(row["eval/nll"]) == pytest.approx(row["eval/ppl"])
    assert row["params.num_buckets"] == results.records["fixed-0000"].params["num_buckets"]


def test_arms_agree_with_their_runs(results: StudyResults) -> None:
    confirmed = results.trials.query("stage == 'confirm'")
    by_arm = confirmed.groupby("arm")["test/nll"].mean()
    for arm, ppl in results.arms["ppl"].items():
        assert ppl == pytest.approx(math.exp(by_arm[arm]))


def test_reports_have_a_row_each(results: StudyResults) -> None:
    assert len(results.reports) == sum(len(r.reports) for r in results.records.values())
    assert results.reports.loc[("fixed-0000", 4), "eval/nll"] == pytest.approx(
        results.records["fixed-0000"].reports[1].metrics["eval/nll"]
    )


def test_study_without_learned_boundaries_has_an_empty_frame(results: StudyResults) -> None:
    assert results.boundaries.empty


def test_results_show_table_and_verdict(results: StudyResults) -> None:
    assert results.verdict in repr(results)
    page = results._repr_html_()
    assert "<table" in page
    assert f"{results.results.comparisons[0].change:+.3f}" in page


def test_results_without_comparisons_have_empty_frames(results: StudyResults) -> None:
    alone = replace(results, results=replace(results.results, comparisons=()))
    assert alone.comparisons.empty
    assert alone.positions.empty
    assert list(alone.comparisons[["change", "low", "high", "outcome"]]) == list(
        results.comparisons[["change", "low", "high", "outcome"]]
    )
    assert "<table" in alone._repr_html_()


def test_results_of_a_study_that_runs_again_come_with_a_warning(tmp_path: Path) -> None:
    store = make(tmp_path / "studies" / "made", "end")
    store.close()
    load_results("made", tmp_path)  # warnings are errors in the tests
    (store.folder / OPEN).touch()
    with pytest.warns(UserWarning, match="'made' is running again, or was interrupted since"):
        load_results("made", tmp_path)
