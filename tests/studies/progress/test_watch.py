"""A study's progress from its folder alone."""

import io
from pathlib import Path

import pytest
from made_studies import make, report
from rich.console import Console

from studies.progress import watch
from studies.progress.watch import FolderView, watch_study
from studies.trials.records import read_record
from studies.trials.store import Store


def _printed(view: FolderView) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(view.content())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_view_shows_stage_counts_and_the_best_of_each_arm(tmp_path: Path) -> None:
    store = make(tmp_path / "made", "search")
    view = FolderView(tmp_path / "made")
    assert view.title() == "made: search"
    assert view.line().startswith("made: search: 6 of 12 trials, last report ")
    ppls = {}
    for arm in ("fixed", "baseline"):
        going = [r for r in store.of("search", arm) if r.state in ("running", "complete")]
        best = min(going, key=lambda r: r.nll or 0)
        ppls[arm] = f"{best.reports[-1].metrics['eval/ppl']:.3f}"
        assert f"{ppls[arm]}  {best.name}" in _printed(view)
    assert view.line().endswith(f"; best PPL: fixed {ppls['fixed']}, baseline {ppls['baseline']}")
    store.close()


def test_refresh_reads_only_what_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(tmp_path / "made", "search")
    view = FolderView(tmp_path / "made")
    read: list[str] = []

    def reading(path: Path, study_id: str | None) -> object:
        read.append(path.parent.name)
        return read_record(path, study_id)

    monkeypatch.setattr(watch, "read_record", reading)
    view.refresh()
    assert read == []
    record = store.records["fixed-0003"]
    store.report(record.name, report(record, 6))
    new = store.propose("baseline")
    view.refresh()
    assert sorted(read) == sorted([record.name, new.name])
    assert view.records[record.name].step == 6
    store.close()


def test_watching_ends_with_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Off a terminal it prints a line at once; the end comes while it pauses."""
    store: Store = make(tmp_path / "made", "search")

    def pause(_: float) -> None:
        record = store.records["fixed-0003"]
        store.report(record.name, report(record, 8))
        store.finish(record.name, "complete")
        store.close()

    monkeypatch.setattr("studies.progress.watch.time.sleep", pause)
    console = Console(file=io.StringIO(), width=200)
    view = watch_study(tmp_path / "made", console)
    assert isinstance(console.file, io.StringIO)
    assert [line[:30] for line in console.file.getvalue().splitlines()] == [
        "made: search: 6 of 12 trials, "
    ]
    assert view.line().startswith("made: search: 7 of 12 trials, ")
