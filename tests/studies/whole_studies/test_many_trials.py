"""A study grown to thousands of trials; see many_trials.py."""

import re
import shutil
import time
from pathlib import Path

import many_trials
import pytest
from made_studies import make
from study_runs import FinishedStudy, run_cli

from studies.analysis.results import gather, read_results
from studies.trials.store import Store


def test_grown_study_opens_without_repairs_and_has_the_same_verdict(tmp_path: Path) -> None:
    folder = tmp_path / "studies" / "made"
    make(folder, "end").close()
    before = read_results(folder / "results.json")
    study = many_trials.grow(folder, 59)
    store = Store(folder, study)
    again = gather(store, {"ppl": before.base_ppl}, {}, [], before)
    assert (store.notes, study.trials, len(store.records)) == ([], 30, 60 + 4)
    assert (again.comparisons, again.verdict) == (before.comparisons, before.verdict)
    stored = read_results(folder / "results.json")
    assert [sum(a.searched.values()) for a in stored.arms] == [30, 30]
    assert [a.searched for a in again.arms] == [a.searched for a in stored.arms]
    store.close()


def _timed(*arguments: str) -> tuple[str, str]:
    """Run a command that must succeed, print its seconds, and return what it printed."""
    done = run_cli(*arguments, timeout=600)
    assert done.code == 0, done.err
    print(f"{arguments[0]}: {done.seconds:.1f} s")
    return done.out, done.err


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_trials_are_read_reported_and_resumed(
    finished: FinishedStudy, tmp_path: Path
) -> None:
    storage = tmp_path / "large"
    shutil.copytree(finished.storage, storage)
    folder = storage / "studies" / finished.name
    before = read_results(folder / "results.json")
    answer = re.split("[.;] ", before.verdict)[0]
    began = time.monotonic()
    trials = many_trials.grow(folder, 10_000).trials * len(before.arms)
    print(f"grown: {time.monotonic() - began:.1f} s")
    place = (finished.name, f"--storage={storage}")
    out, err = _timed("status", *place)
    assert (f"search: {trials} of {trials} ended" in out, err) == (True, "")
    for _ in range(2):  # through every check, then as a finished study that has not changed
        out, _ = _timed("run", *place)
        assert answer in out
    out, _ = _timed("report", *place)
    assert answer in out
    after = read_results(folder / "results.json")
    assert after.comparisons == before.comparisons
    report = (folder / "report.html").read_text()
    print(f"report.html: {len(report):,} characters")
    assert len(report.encode()) <= 3_000_000
    assert re.search(rf"of {trials:,} trials are shown", report)
