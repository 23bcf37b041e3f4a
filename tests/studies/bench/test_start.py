"""The timeline of a study's start and end. No absolute time is asserted."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from study_runs import run_cli

from studies.bench.start.imports import ImportPhases
from studies.bench.start.timeline import AROUND, COMMAND, TUNE, Interval, timeline
from studies.process.phases import PHASES

_OURS, _HOST = 1, 2
_WHOLE = Interval(name=AROUND, began=100, ended=200)
_NOTED = [
    Interval(name=COMMAND, began=101, ended=198, process=_OURS),
    Interval(name="Ray start", began=103, ended=113, process=_OURS),
    Interval(name="import x", began=104, ended=106, process=_OURS),
    Interval(name="import y", began=105, ended=106, process=_OURS),
    Interval(name=TUNE, began=120, ended=190, process=_OURS),
    Interval(name="import y", began=121, ended=122, process=_OURS),
    Interval(name="import z", began=104, ended=109, process=_OURS, main=False),
    Interval(name="host: base", began=115, ended=118, process=_HOST, main=False, born=107),
]
_REPORTS = [150.0, 130.0, 170.0]


def _innermost(second: int) -> str:
    """Return the phase of the driver that began last of those under way, by hand."""
    ours = [_WHOLE, *(i for i in _NOTED if i.process == _OURS and i.main)]
    name = max((i for i in ours if i.began <= second < i.ended), key=lambda i: i.began).name
    if name != TUNE:
        return name
    if second < min(_REPORTS):
        return "Tune to the first report"
    return "first to last report" if second < max(_REPORTS) else "Tune after the last report"


def test_each_moment_of_the_driver_counts_for_its_innermost_phase() -> None:
    measured = timeline(_NOTED, _WHOLE, _REPORTS)
    expected = Counter(map(_innermost, range(100, 200)))
    assert {row.phase: row.seconds for row in measured.driver} == expected
    assert sum(row.seconds for row in measured.driver) == measured.wall == 100


def test_other_threads_and_processes_are_listed_apart() -> None:
    measured = timeline(_NOTED, _WHOLE, _REPORTS)
    assert [(row.phase, row.begins, row.seconds) for row in measured.beside] == [
        ("import z", 4, 5),
        ("host: process and imports", 7, 8),
        ("host: base", 15, 3),
    ]


def test_imports_are_phases_once_and_modules_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large_one.py").write_text("import large_two\nvalue = large_two.value\n")
    (tmp_path / "large_two.py").write_text("value = 7\n")
    names = ["large_one", "large_two"]
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(PHASES, str(tmp_path / "phases"))
    monkeypatch.setattr(sys, "meta_path", [ImportPhases(names), *sys.meta_path])
    assert __import__("large_one").value == 7
    noted = [json.loads(line)["name"] for line in (tmp_path / "phases").read_text().splitlines()]
    assert noted == ["import large_two", "import large_one"]
    for name in names:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_phases_of_a_real_study_add_up_to_its_time() -> None:
    done = run_cli("bench", "--start", "--json", timeout=800)
    assert done.code == 0, done.err
    measured = json.loads(done.out)
    seconds = {row["phase"]: row["seconds"] for row in measured["driver"]}
    assert sum(seconds.values()) == pytest.approx(measured["wall"])
    unnamed = seconds[AROUND] + seconds[COMMAND] + seconds["other steps of the run"]
    assert unnamed < 0.1 * measured["wall"]
    assert min(seconds.values()) >= 0
    assert {"Ray start", "first to last report", "report.html", "Ray shutdown"} <= seconds.keys()
    beside = Counter(row["phase"] for row in measured["beside"])
    assert beside["host: base"] == beside["registry: setup"] == 1
    assert beside["trial: setup"] >= 1


def test_place_for_json_is_checked_before_a_study_runs(tmp_path: Path) -> None:
    done = run_cli("bench", "--start", f"--json={tmp_path / 'no' / 'file'}")
    assert (done.code, done.out) == (2, "")
    assert "its folder does not exist" in done.err
