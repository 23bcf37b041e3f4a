"""A study's answer in Markdown, and its figures as files."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finished_folder import WIDE, write_finished
from matplotlib.figure import Figure

from studies.analysis.comparisons import Comparison
from studies.analysis.results import ArmResult, Results, read_results
from studies.files.folder_files import stored_study
from studies.reporting.description import describe, figure_files
from studies.reporting.figures.drawing import draw
from studies.reporting.html_report import write_html
from studies.reporting.sections import Picture, sections
from studies.spec.study import Study
from studies.trials.loading import load_records


def _read(folder: Path) -> tuple[Results, Study]:
    study = Study.from_dict(stored_study(folder / "study.json"))
    return read_results(folder / "results.json"), study


def test_answer_comes_first_and_every_change_has_its_interval(tmp_path: Path) -> None:
    results, study = _read(write_finished(tmp_path, name="own", gap=0.05))
    text = describe(results, study)
    assert text.startswith("**Width makes perplexity worse.**  \n")
    (c,) = results.comparisons
    assert c.change == pytest.approx(100 * (np.exp(0.05) - 1))
    row = (
        f"| {WIDE} vs fixed | {c.change:+.2f} % \\[{c.low:+.2f}, {c.high:+.2f}\\] | {c.p_holm:.2g}"
    )
    assert f"{row} | worse |" in text.splitlines()
    assert [line.count("|") for line in text.splitlines() if line.startswith("| fixed")] == [7]


def test_names_are_no_markup(tmp_path: Path) -> None:
    hostile = " <img src=x> [a](b) `c` | \x1b"
    results, study = _read(write_finished(tmp_path, name="own", hostile=hostile))
    text = describe(results, study)
    assert "&lt;img src=x&gt; \\[a\\](b) \\`c\\` \\| \\\\x1b" in text


def test_long_tables_are_cut_and_say_so(tmp_path: Path) -> None:
    results, study = _read(write_finished(tmp_path, name="own"))
    arm, change = results.arms[0], results.comparisons[0]
    many = _many(arm, change, 40)
    text = describe(Results(**{**results.__dict__, **many}), study)
    assert text.count("\n| arm-") < 40
    assert text.count("more in the report") == 2


def _many(arm: ArmResult, change: Comparison, count: int) -> dict[str, Any]:
    arms = tuple(ArmResult(**{**arm.__dict__, "arm": f"arm-{i}"}) for i in range(count))
    pairs = ({"arm": f"arm-{i}", "reference": "arm-0"} for i in range(1, count))
    changes = tuple(Comparison(**{**change.__dict__, **pair}) for pair in pairs)
    return {"arms": arms, "comparisons": changes}


def test_figures_are_files_on_their_own_background(tmp_path: Path) -> None:
    folder = write_finished(tmp_path, name="own")
    results, study = _read(folder)
    files = figure_files(sections(results, load_records(folder), study, folder))
    assert next(iter(files)) == "01-comparisons.svg"
    for content in files.values():
        assert ET.fromstring(content).tag.endswith("svg")
    again = sections(results, load_records(folder), study, folder)  # a second drawing would differ
    parts = [part for section in again for part in section.parts]
    figures = [p.figure for p in parts if isinstance(p, Picture) and p.figure is not None]
    for figure in figures:
        figure.set_facecolor("#fdfdfc")
    expected = [_without_outline(draw(figure)) for figure in figures]
    assert [_without_outline(content.decode()) for content in files.values()] == expected


def _without_outline(svg: str) -> str:
    """Return an SVG without the path of its background, which may repeat its first corner."""
    return re.sub(r'<path d="[^"]*"', "<path", svg, count=1)


def test_each_figure_is_drawn_once_for_page_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_finished(tmp_path, name="own")
    results, study = _read(folder)
    drawn: list[Figure] = []

    def counting(figure: Figure) -> str:
        drawn.append(figure)
        return draw(figure)

    monkeypatch.setattr("studies.reporting.sections.draw", counting)
    page = tmp_path / "report.html"
    shown = write_html(results, load_records(folder), study, page)
    files = figure_files(shown)
    assert len(drawn) == len(set(map(id, drawn))) == len(files) > 2
    assert page.read_text().count("<figure>") == len(files)
