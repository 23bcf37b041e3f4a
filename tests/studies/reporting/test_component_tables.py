"""The table of components, and what replaces columns of changes for many references."""

import io
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from made_records import study
from rich.console import Console

from studies.analysis.comparisons import Comparison
from studies.analysis.components import Stability, component
from studies.analysis.results import ArmResult, Results
from studies.reporting.component_tables import changes_sheet, components_sheet
from studies.reporting.html_report import comparison_tables, write_html
from studies.reporting.printed import print_results
from studies.reporting.tables import arms_sheet
from studies.reporting.terminal import Drawing
from studies.statistics.change import Change

_NAMES = ("lora", "rslora", "biased", "fixed", "learned")


def _comparison(arm: str, reference: str) -> Comparison:
    return Comparison(
        arm=arm,
        reference=reference,
        seeds=1,
        change=-3.0,
        low=-4.0,
        high=-2.5,
        by_seed=(-3.0,),
        median=-3.0,
        p_value=0.001,
        p_holm=0.004,
        smallest_visible=0.5,
        decision="strong",
        outcome="better",
        parameters_per_percent=700.0,
        positions={"lim_ppl": Change(-5.2, -6.0, -4.4, 0.01, "better")},
    )


def _arm(name: str) -> ArmResult:
    figures = {"ppl": 14.0, "ppl_median": 14.0, "ppl_by_seed": (14.0,), "seeds": (0,)}
    counts = {"parameters": 1_000, "trial_seconds": 2.0, "searched": {"complete": 1}}
    return ArmResult(arm=name, trial=f"{name}-0000", params={}, **figures, **counts)  # type: ignore[arg-type]


def _path(*, criteria: bool) -> Results:
    """Return results of steps, each against the one before."""
    steps = [_comparison(a, b) for b, a in pairwise(_NAMES)]
    own, calm = Stability(runs=3, spikes=1, diverged=2), Stability(runs=3)
    return Results(
        study="own",
        base_ppl=None,
        tokens=40,
        arms=tuple(map(_arm, _NAMES)),
        comparisons=tuple(steps),
        verdict="It helped.",
        notes=(),
        provenance={},
        components=tuple(component(c, 2_100, own, calm) for c in steps) if criteria else (),
        recommendations=("Lowest PPL: learned.",) if criteria else (),
    )


def test_component_has_its_figures_and_answers() -> None:
    sheet = components_sheet(_path(criteria=True))
    assert dict(zip(sheet.columns, sheet.rows[0], strict=True)) == {
        "component": "rslora",
        "against": "lora",
        "PPL, % (> 2)": "-3.00 [-4.00, -2.50] yes",
        "LIM-PPL, % (> 5)": "-5.20 [-6.00, -4.40] undecided",
        "parameters": "+2,100",
        "per 1 % (< 50,000)": "700 yes",
        "spikes": "1 (and 2 diverged) vs 0 no",
        "status": "optional",
    }
    assert len(sheet.rows) == 4
    assert "8 MADs above the median" in sheet.caption


def test_columns_without_figures_are_left_out() -> None:
    (c, *_) = _path(criteria=True).components
    bare = replace(c, lim_ppl=None, gains_lim_ppl="", stable="")
    sheet = components_sheet(replace(_path(criteria=True), components=(bare,)))
    left_out = {sheet.columns[i] for i in range(len(sheet.columns)) if i not in sheet.used()}
    assert left_out == {"against", "LIM-PPL, % (> 5)", "spikes"}
    assert sheet.columns[0] == "component vs lora"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_figures_are_whole_at_any_width(width: int) -> None:
    out = io.StringIO()
    Console(file=out, width=width).print(Drawing(components_sheet(_path(criteria=True))))
    words = set(out.getvalue().split())
    assert {"-3.00", "[-4.00,", "-2.50]", "+2,100", "700", "undecided"} <= words


def test_many_references_are_listed_instead_of_columns() -> None:
    results = _path(criteria=False)
    assert not [c for c in arms_sheet(results).columns if c.startswith("vs ")]
    (drawn,) = comparison_tables(results)
    assert drawn.sheet == changes_sheet(results)
    assert drawn.sheet.rows[0] == ("rslora vs lora", "-3.00 % [-4.00, -2.50]", "better", "0.50")
    few = replace(results, comparisons=results.comparisons[:3])
    assert comparison_tables(few) == []
    assert "vs biased [95 %]" in arms_sheet(few).columns


def test_printed_results_show_table_verdict_and_recommendations_in_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_results(_path(criteria=True), as_json=False)
    out = capsys.readouterr().out
    places = [out.index(t) for t in ("component", "It helped.", "Lowest PPL: learned.")]
    assert places == sorted(places)


def test_page_shows_components_and_recommendations(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_html(_path(criteria=True), {}, study(*_NAMES), path)
    text = path.read_text("utf-8")
    assert "<li>Lowest PPL: learned.</li>" in text
    assert "1 (and 2 diverged) vs 0 no" in text
    write_html(_path(criteria=False), {}, study(*_NAMES), path)
    assert "By use" not in path.read_text("utf-8")
