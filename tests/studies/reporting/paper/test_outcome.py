"""The verdict, recommendations and notes of a study as Markdown."""

from dataclasses import replace
from typing import Any

from studies.analysis.next_step import NextStep
from studies.reporting.paper.kit import kit_files
from studies.reporting.paper.outcome import outcome_markdown


def test_all_sentences_of_the_report_are_there(odd: Any) -> None:
    results = replace(
        odd.results,
        verdict="It helps: p < 0.05 [0, 1].",
        notes=("_a_b* <b> [x](y) diverged", "two\nlines"),
        recommendations=("Lowest PPL: fixed.",),
        earlier=("It is undecided.",),
        next_step=NextStep("A", None, None, "Scenario A.", "hylorada run x --storage /my/runs"),
    )
    assert outcome_markdown(results) == (
        "# étude 学 1_2\n\nIt helps: p < 0.05 [0, 1].\n\nScenario A.\n\n"
        "## By use\n\n- Lowest PPL: fixed.\n\n"
        "## Notes\n\n- \\_a_b\\* \\<b> [x\\](y) diverged\n- two lines\n\n"
        "## Earlier verdicts, oldest first\n\n- It is undecided.\n"
    )


def test_kit_has_the_verdict(odd: Any) -> None:
    kit = kit_files(odd.study, odd.results, odd.records, odd.folder)
    assert kit["verdict.md"].decode() == outcome_markdown(odd.results)
    assert len(odd.results.verdict) > 20
    assert "## By use" not in kit["verdict.md"].decode()
