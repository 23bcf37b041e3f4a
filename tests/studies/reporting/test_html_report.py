import io
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from made_records import named, record, report, study
from rich.console import Console

from studies.analysis.comparisons import Comparison
from studies.analysis.results import ArmResult, Results
from studies.reporting.html_report import table, write_html
from studies.reporting.tables import searched_sheet
from studies.reporting.terminal import Drawing
from studies.spec.study import Study
from studies.trials.messages import Report
from studies.trials.records import Record

ODD = 'a<b> & "Ärm" $x_$'


def arm_result(arm: str, ppl: float = 14.02, **fields: Any) -> ArmResult:
    values: dict[str, Any] = {
        "trial": f"{arm}-0000",
        "params": {"learning_rate": 0.0123, "num_buckets": 16},
        "ppl": ppl,
        "ppl_median": ppl,
        "ppl_by_seed": (ppl, ppl),
        "seeds": (0, 1),
        "parameters": 12576,
        "trial_seconds": 4.25,
        "searched": {"complete": 1},
    }
    return ArmResult(arm=arm, **{**values, **fields})


def comparison(
    arm: str, reference: str, change: float = -0.42, low: float = -0.71, high: float = -0.13
) -> Comparison:
    rest: dict[str, Any] = {
        "median": change,
        "p_value": 0.011,
        "p_holm": 0.033,
        "smallest_visible": 0.38,
        "decision": "none to minimal",
    }
    return Comparison(arm, reference, 2, change, low, high, (change - 0.1, change + 0.1), **rest)


def results(
    arms: Sequence[ArmResult] = (), comparisons: Sequence[Comparison] = (), **fields: Any
) -> Results:
    values: dict[str, Any] = {
        "base_ppl": None,
        "tokens": 50800,
        "verdict": "It helped.",
        "notes": (),
        "provenance": {},
    }
    return Results(
        study="own", arms=tuple(arms), comparisons=tuple(comparisons), **{**values, **fields}
    )


def three_arms() -> Results:
    pairs = [("learnable", "fixed"), ("learnable", "baseline"), ("fixed", "baseline")]
    changes = [comparison(*p, change=c) for p, c in zip(pairs, (-0.42, 0.11, 0.53), strict=True)]
    return results(
        [arm_result(a) for a in ("baseline", "fixed", "learnable")], changes, base_ppl=31.2704
    )


def printed(drawn: Drawing) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(drawn)
    return console.export_text()


def page(tmp_path: Path, found: Results, records: Mapping[str, Record], of: Study) -> ET.Element:
    """Write a report and parse it: it is well-formed XML too."""
    write_html(found, records, of, tmp_path / "report.html")
    return ET.fromstring(
        (tmp_path / "report.html").read_text("utf-8").replace("<!doctype html>", "")
    )


def cells(root: ET.Element) -> list[list[str]]:
    return [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")]


def svg_texts(root: ET.Element) -> list[str]:
    return [t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}text")]


def test_table_has_a_change_column_for_each_reference_in_order_of_arms() -> None:
    drawn = table(three_arms())
    assert drawn.sheet.columns[3:5] == ("vs baseline [95 %]", "vs fixed [95 %]")
    rows = [re.split(r"\s{2,}", line.strip()) for line in printed(drawn).splitlines()]
    assert rows[1] == ["base alone", "31.270", "0"]
    assert rows[2] == ["baseline", "14.020", "14.020", "-", "12,576", "4.2"]
    assert rows[3] == ["fixed", "14.020", "14.020", "+0.53 % [-0.71, -0.13]", "-", "12,576", "4.2"]
    changes = ["+0.11 % [-0.71, -0.13]", "-0.42 % [-0.71, -0.13]"]
    assert rows[4] == ["learnable", "14.020", "14.020", *changes, "12,576", "4.2"]


def test_table_is_whole_in_a_narrow_terminal() -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(table(three_arms()))
    wide = printed(table(three_arms()))
    rows = wide[: wide.index("test PPL: mean")]
    assert set(rows.split()) <= set(
        out.getvalue().split()
    )  # nothing folded within a word, nothing cut
    starts = [line.split()[0] for line in out.getvalue().splitlines() if line[:1].isalpha()]
    assert {"arm", "base", "baseline", "fixed", "learnable"} <= set(starts)


def test_table_says_how_to_read_it() -> None:
    text = printed(table(three_arms()))
    assert "negative is better. 50,800 test tokens, 2 paired seeds." in text


def test_table_shows_mean_and_median() -> None:
    arms = [arm_result("near", 14.0, ppl_median=13.99), arm_result("far", 14.0, ppl_median=13.95)]
    rows = [line.split()[:3] for line in printed(table(results(arms))).splitlines()]
    assert ["near", "14.000", "13.990"] in rows
    assert ["far", "14.000", "13.950"] in rows


def test_table_leaves_markup_in_names_alone() -> None:
    assert "[bold]arm[/bold]" in printed(table(results([arm_result("[bold]arm[/bold]")])))


def test_table_without_arms_says_so() -> None:
    assert "No arm has finished the confirm stage." in " ".join(
        printed(table(results(base_ppl=30.0))).split()
    )


def test_trial_table_lists_state_reason_and_searched_values() -> None:
    lost = record(
        "fixed", 1, [15.0], state="diverged", reason="non-finite training loss at step 22"
    )
    text = printed(
        Drawing(searched_sheet(named(record("fixed", 0, [16, 15, 14.5]), lost), study()))
    )
    first, second = (re.split(r"\s{2,}", line.strip()) for line in text.splitlines()[1:])
    assert first == [
        "fixed-0000",
        "complete",
        "60",
        "14.500",
        "learning_rate=0.0123 num_buckets=16",
    ]
    assert second[:5] == [
        "fixed-0001",
        "diverged",
        "non-finite training loss at step 22",
        "20",
        "15.000",
    ]


def test_trial_table_leaves_confirm_runs_out() -> None:
    assert searched_sheet(named(record("fixed", 0, [15.0], stage="confirm")), study()).rows == ()


def test_html_shows_the_numbers_it_is_given(tmp_path: Path) -> None:
    trials = named(*(record(arm, 0, [16, 15, 14.5]) for arm in ("baseline", "fixed", "learnable")))
    rows = cells(page(tmp_path, three_arms(), trials, study()))
    changes = ["+0.11 % [-0.71, -0.13]", "-0.42 % [-0.71, -0.13]"]
    assert ["learnable", "14.020", "14.020", *changes, "12,576", "4.2"] in rows
    numbers = [
        "-0.42 % [-0.71, -0.13]",
        "-0.42",
        "-0.52, -0.32",
        "0.011",
        "0.033",
        "0.38",
        "none to minimal",
    ]
    assert ["learnable vs fixed", *numbers] in rows
    assert ["learning_rate", "0.0123", "0.0123", "0.0123", "0.001 .. 0.1 (log)"] in rows


def test_html_lists_every_run_and_trial(tmp_path: Path) -> None:
    confirm = record("fixed", 3, [16, 15, 14.0], stage="confirm")
    lost = record("fixed", 1, [15.0], state="failed", reason="host died")
    rows = cells(
        page(tmp_path, results(), named(confirm, lost, record("fixed", 0, [16, 15, 14.5])), study())
    )
    assert ["fixed", "3", "14.140", "14.000", "complete"] in rows
    assert ["fixed-0001", "failed", "host died", "20", "15.000", "0.0123", "16"] in rows
    assert ["fixed-0000", "complete", "", "60", "14.500", "0.0123", "16"] in rows


def test_html_opens_with_verdict_and_notes_and_closes_with_provenance(tmp_path: Path) -> None:
    verdict = "It helped: a beat b; c did not. The smallest effect is 0.1 %."
    provenance = {"command": "hylorada run own --seeds 2", "git": {"dirty": True}}
    root = page(
        tmp_path,
        results(verdict=verdict, notes=("arm c left out",), provenance=provenance),
        {},
        study(),
    )
    assert "".join(root.findall("body/header/p[@class='verdict']")[0].itertext()) == verdict
    assert [li.text for li in root.iter("li")] == ["arm c left out"]
    assert [dt.text for dt in root.iter("dt")] == ["command", "git.dirty"]
    assert [dd.text for dd in root.iter("dd")] == ["hylorada run own --seeds 2", "true"]


def test_forest_names_each_comparison_and_places_each_change(tmp_path: Path) -> None:
    found = results([arm_result("a"), arm_result("b")], [comparison("b", "a", 0.0, -1.0, 1.0)])
    root = page(tmp_path, found, {}, study("a", "b"))
    titles = [t.text for t in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "b vs a: +0.000 % [-1.000, +1.000]" in titles
    assert {"b vs a", "none", "minimal", "worse", "none to minimal, Holm p = 0.033"} <= set(
        svg_texts(root)
    )


def test_boundaries_are_drawn_for_the_arm_that_learns_them(tmp_path: Path) -> None:
    winner = record("learnable", 0, [16, 15, 14.5])
    run = record("learnable", 7, [], stage="confirm", state="complete", winner=winner.name)
    run.reports = [report(60, 14.0, boundaries=(9.0, 40.0), start_boundaries=(8.0, 32.0))]
    text = "".join(page(tmp_path, results(), named(run, winner), study()).itertext())
    assert "Boundaries of learnable" in text
    assert "Boundaries of fixed" not in text
    assert "moved by 4.50 tokens on average and by 8.00 at most" in text
    assert text.count("seed 7") == 2


def test_confirm_runs_of_an_earlier_winner_step_back(tmp_path: Path) -> None:
    ends = {"boundaries": (9.0,), "start_boundaries": (8.0,)}
    old = record("learnable", 4, [], stage="confirm", state="complete", winner="learnable-0003")
    old.reports = [report(60, 14.2, **ends)]
    new = record("learnable", 5, [], stage="confirm", state="complete", winner="learnable-0000")
    new.reports = [report(60, 14.0, **ends)]
    root = page(
        tmp_path, results(), named(old, new, record("learnable", 0, [16, 15, 14.5])), study()
    )
    looks = {row[1].text: row.get("class") for row in root.iter("tr") if row[0].text == "learnable"}
    assert looks == {"4": "faint", "5": "plain"}
    assert svg_texts(root).count("seed 5") == 2
    assert "seed 4" not in svg_texts(root)


def test_search_figures_show_every_arm_rung_and_parameter(tmp_path: Path) -> None:
    found = named(record("fixed", 0, [16, 15, 14.5]), record("learnable", 0, [16, 15.2]))
    root = page(tmp_path, results(), found, study())
    texts = svg_texts(root)
    assert {"fixed", "learnable", "learning_rate", "num_buckets", "14.5", "+10 %"} <= set(texts)
    assert not {"baseline", "lora_dropout"} & set(
        texts
    )  # no trial of the one, no trial that drew the other
    titles = [t.text for t in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "learnable-0000, pruned: 0.0123" in titles
    assert "rungs at steps 20, 40." in "".join(root.itertext())


def test_findings_stand_above_their_figures(tmp_path: Path) -> None:
    trials = named(*(record("fixed", i, [16, 15, 14.5 + i / 10]) for i in range(4)))
    root = page(tmp_path, results(), trials, study("fixed"))
    (section,) = [s for s in root.iter("section") if s[0].text == "Why the arms differ"]
    assert [e.tag for e in section] == ["h2", "h3", "p", "figure", "h3", "p"]
    assert [e.text for e in section if e.tag == "h3"] == ["Tuning", "Which parameters matter"]
    assert (section[2].text or "").startswith("The second half of the trials (from 2 to 4) lowered")
    assert (section[5].text or "").startswith("Too few trials to measure the importance")
    assert "expected best validation PPL" in svg_texts(section)
    first = (tmp_path / "report.html").read_bytes()
    page(tmp_path, results(), trials, study("fixed"))
    assert (tmp_path / "report.html").read_bytes() == first


def test_names_are_escaped_in_findings(tmp_path: Path) -> None:
    plain = study("plain")
    odd = replace(plain, arms={ODD: plain.arms["plain"]})
    runs = [
        record(ODD, 7 + i, [16, 15, 14.5], stage="confirm", winner=f"{ODD}-0000") for i in range(2)
    ]
    for run in runs:
        run.reports[-1] = report(60, 14.5, boundaries=(9.0,), start_boundaries=(8.0,))
    root = page(
        tmp_path, results(), named(*(record(ODD, i, [16, 15, 14]) for i in range(4)), *runs), odd
    )
    headings = [e.text for e in root.iter("h3")]
    assert headings == ["Tuning", "Which parameters matter", f"Boundaries of {ODD}"]
    assert ODD in svg_texts(root)


def test_names_are_escaped_everywhere(tmp_path: Path) -> None:
    run = record(ODD, 0, [16, 15, 14.5], reason="<script>")
    run.reports[-1] = report(60, 14.5, boundaries=(9.0,), start_boundaries=(8.0,))
    found = results(
        [arm_result(ODD)], [comparison(ODD, ODD)], verdict=ODD, notes=(ODD,), provenance={ODD: ODD}
    )
    plain = study("plain")  # arms can't be named so any more; escaping doesn't rest on that
    root = page(tmp_path, found, named(run), replace(plain, arms={ODD: plain.arms["plain"]}))
    assert "<script>" not in (tmp_path / "report.html").read_text("utf-8")
    assert {f"{ODD} vs {ODD}", ODD} <= set(svg_texts(root))
    assert [e.text for e in (*root.iter("li"), *root.iter("dt"), *root.iter("dd"))] == [
        ODD,
        ODD,
        ODD,
    ]


@pytest.mark.parametrize(
    "found",
    [
        {},
        named(record("fixed", 0, [], state="running")),
        named(record("fixed", 0, [], state="failed", reason="host died")),
        named(record("fixed", 0, [math.inf], state="diverged", reason="non-finite loss")),
        named(record("fixed", 0, [math.nan, math.nan, math.nan])),
    ],
    ids=["nothing", "running", "failed", "diverged", "nan"],
)
def test_html_is_written_with_nothing_to_plot(tmp_path: Path, found: Mapping[str, Record]) -> None:
    root = page(tmp_path, results(), found, study())
    assert not svg_texts(root)
    assert "Nothing to show yet." in "".join(root.itertext())


def test_diverged_trials_stand_beside_finished_ones(tmp_path: Path) -> None:
    lost = record(
        "fixed", 1, [15.0], state="diverged", reason="non-finite training loss at step 22"
    )
    lost.reports.append(Report(step=22, done=True, diverged="non-finite training loss at step 22"))
    root = page(tmp_path, results(), named(record("fixed", 0, [16, 15, 14.5]), lost), study())
    titles = [t.text for t in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles.count("fixed-0001, diverged: 16") == 1
    assert [
        "fixed-0001",
        "diverged",
        "non-finite training loss at step 22",
        "22",
        "",
        "0.0123",
        "16",
    ] in cells(root)


def test_one_seed_is_said_to_lack_seed_noise(tmp_path: Path) -> None:
    alone = replace(comparison("b", "a"), seeds=1, by_seed=(-0.42,))
    found = results([arm_result("a", seeds=(0,)), arm_result("b", seeds=(0,))], [alone])
    text = "".join(page(tmp_path, found, {}, study("a", "b")).itertext())
    assert "1 paired seed, so intervals exclude seed noise" in text


def test_nan_in_numbers_is_shown_not_hidden(tmp_path: Path) -> None:
    nan = math.nan
    found = results([arm_result("a"), arm_result("b", nan)], [comparison("b", "a", nan, nan, nan)])
    root = page(tmp_path, found, {}, study("a", "b"))
    assert ["b", "nan", "nan", "+nan % [+nan, +nan]", "12,576", "4.2"] in cells(root)


def test_html_needs_no_other_file_and_repeats_to_the_byte(tmp_path: Path) -> None:
    found = named(record("fixed", 0, [16, 15, 14.5]))
    page(tmp_path, three_arms(), found, study())
    first = (tmp_path / "report.html").read_text("utf-8")
    assert not re.search(r"(src|href)=\"(?!#)|@import|url\((?!#)", first)
    page(tmp_path, three_arms(), found, study())
    assert (tmp_path / "report.html").read_text("utf-8") == first
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_failed_write_leaves_the_old_report(tmp_path: Path) -> None:
    page(tmp_path, results(), {}, study())
    (tmp_path / "report.html.tmp").mkdir()
    with pytest.raises(IsADirectoryError, match=r"report\.html\.tmp"):
        write_html(results(verdict="New."), {}, study(), tmp_path / "report.html")
    assert "It helped." in (tmp_path / "report.html").read_text("utf-8")


def test_matplotlib_settings_of_the_caller_stay(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"text.usetex": True, "svg.fonttype": "path"}):
        root = page(tmp_path, three_arms(), {}, study())
        assert matplotlib.rcParams["text.usetex"]
    assert "learnable vs fixed" in svg_texts(root)
    assert dict(matplotlib.rcParams) == before
