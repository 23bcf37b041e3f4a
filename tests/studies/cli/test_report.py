"""``hylorada report`` before the end of a study."""

import json
from pathlib import Path
from typing import Any

import pytest
from made_studies import make

from studies.analysis.progress import Leader
from studies.cli.commands import main
from studies.reporting.partial_report import leaders_sheet
from studies.trials.records import OPEN
from studies.trials.store import Store


def _json(store: Store, capsys: pytest.CaptureFixture[str]) -> Any:
    storage = store.folder.parents[1]
    assert main(["report", "made", f"--storage={storage}", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_partial_report_has_the_leader_of_each_arm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lowest loss among the trials at the last step, found by hand in the records."""
    store = make(tmp_path / "studies" / "made", "search")
    shown = _json(store, capsys)
    assert (shown["partial"], shown["running"], shown["study"]) == (True, True, "made")
    assert shown["stages"] == {"search": [6, 12], "confirm": [0, 4]}
    for leader in shown["best"]:
        whole = [r for r in store.of("search", leader["arm"]) if r.step == 8]
        best = min(whole, key=lambda r: r.reports[-1].metrics["eval/nll"])
        assert (leader["trial"], leader["params"]) == (best.name, best.params)
        assert leader["ppl"] == best.reports[-1].metrics["eval/ppl"]
    assert len(shown["best"]) == 2
    store.close()
    assert not _json(store, capsys)["running"]


def test_partial_report_says_what_is_missing_and_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = make(tmp_path / "studies" / "made", "confirm")
    assert main(["report", "made", f"--storage={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "PARTIAL: study 'made' has not finished."
    assert "missing: confirm: 2 of 4 still to end" in lines
    assert any(line.startswith("missing: no verdict yet") for line in lines)
    assert lines[-1] == "The study is running."
    assert not any("test PPL" in line for line in lines)
    store.close()


def test_report_of_a_whole_study_is_not_partial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of one that runs again, it is: these are its earlier results."""
    store = make(tmp_path / "studies" / "made", "end")
    store.close()
    whole = _json(store, capsys)
    assert not whole.pop("partial")
    stored = json.loads((store.folder / "results.json").read_text())
    assert whole == {k: v for k, v in stored.items() if k != "seal"}
    (store.folder / OPEN).touch()
    assert _json(store, capsys)["partial"]


def test_open_trials_of_a_stopped_study_are_paused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = make(tmp_path / "studies" / "made", "search")
    words = ["status", "made", f"--storage={tmp_path}"]
    assert main(words) == 0
    before = capsys.readouterr().out
    store.close()
    assert main(words) == 0
    after = capsys.readouterr().out
    assert (" running " in before, " paused " in before) == (True, False)
    assert (" running " in after, " paused " in after) == (False, True)
    leader = Leader("one", 0, "one-000", "running", 4, 9.0, {})
    for running, state in ((True, "running"), (False, "paused")):
        (row,) = leaders_sheet(store.study, [leader], running=running).rows
        assert state in row
