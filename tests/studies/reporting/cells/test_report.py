"""The report on several cells: tables, figures, a well-formed page with links, and JSON."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from made_cells import PAIR, cell

from studies.analysis.cells.across import Across, across
from studies.analysis.cells.reading import FinishedCell
from studies.reporting.cells.plots import boundary_rows, forest
from studies.reporting.cells.report import print_across, write_across
from studies.reporting.cells.sheets import effects_sheet, levels_sheet
from studies.reporting.figures.drawing import svg_text

_HOSTILE = 'a "<b>&'


@pytest.fixture
def cells() -> list[FinishedCell]:
    sets = [[[16, 32, 48]], [[20, 30, 50]], [[1, 2, 3]]]
    labels = ("block_size 64", _HOSTILE, "c")
    effects = (-0.012, 0.004, 0.001)
    return [
        cell(label, y, 0.002, boundaries=s)
        for label, y, s in zip(labels, effects, sets, strict=True)
    ]


@pytest.fixture
def result(cells: list[FinishedCell]) -> Across:
    return across("grid $x$ <1>", cells, [PAIR], ["a note"])


def test_effects_have_a_row_per_cell_and_the_pooled_one(result: Across) -> None:
    sheet = effects_sheet(result)
    assert sheet.columns == ("cell", "learnable vs fixed")
    assert [row[0] for row in sheet.rows[:3]] == ["block_size 64", _HOSTILE, "c"]
    assert sheet.rows[1][1] == "+0.40 % [+0.00, +0.80] undecided"
    assert [row[0] for row in sheet.rows[3:]] == ["pooled", "expected in another cell"]
    assert "takes the noise of cells as independent" in sheet.caption


def test_levels_name_their_measure(result: Across) -> None:
    sheet = levels_sheet(result)
    assert sheet.columns[-2:] == ("fixed", "learnable")
    assert sheet.rows[0][-2:] == ("20.000", "21.000")
    assert sheet.caption == "Arms: test PPL, mean over runs."


def test_forest_has_a_mark_per_cell_and_one_diamond(result: Across) -> None:
    figure = forest(result, {})
    assert figure is not None
    titles = re.findall("<title>(.*?)</title>", svg_text(figure))
    assert sorted(t for t in titles if not t.startswith("pooled")) == [
        "a '&lt;b&gt;&amp;: +0.401 % [+0.000, +0.803]",
        "block_size 64: -1.193 % [-1.587, -0.797]",
        "c: +0.100 % [-0.300, +0.501]",
    ]
    assert len(titles) == 4


def test_boundaries_have_a_row_per_cell_that_learns_them(cells: list[FinishedCell]) -> None:
    figure = boundary_rows(cells, "learnable", "#123456")
    assert figure is not None
    assert svg_text(figure).count("learnable-confirm-0000</title>") == 3
    assert boundary_rows(cells[:1], "learnable", "#123456") is None


def test_page_is_well_formed_and_links_to_the_cells(
    result: Across, cells: list[FinishedCell], tmp_path: Path
) -> None:
    write_across(result, cells, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    root = ElementTree.fromstring(text.removeprefix("<!doctype html>\n"))
    links = [e.attrib["href"] for e in root.iter("a")]
    assert [link.endswith("/report.html") for link in links] == [True] * 3
    assert not any(link.startswith(("/", "http")) for link in links)
    assert _HOSTILE in [e.text for e in root.iter("a")]
    assert [e.text for e in root.iter("h2")] == [
        "Result",
        "Cells",
        "Boundaries of learnable over cells",
    ]


def test_json_holds_all_of_it(result: Across, capsys: pytest.CaptureFixture[str]) -> None:
    print_across(result, as_json=True)
    values = json.loads(capsys.readouterr().out)
    assert [c["error"] for c in values["comparisons"][0]["cells"]] == [0.002] * 3
    assert values["comparisons"][0]["pooled"]["outcome"] == "undecided"
    assert values["boundaries"][0]["end"]["pairs"] == 3


def test_printed_report_ends_in_findings_and_notes(
    result: Across, capsys: pytest.CaptureFixture[str]
) -> None:
    print_across(result, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "note: a note"
    assert any(line.startswith("The boundaries of learnable in different cells") for line in lines)
