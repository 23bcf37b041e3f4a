"""The driver's own time for a trial: what is timed is a real search. No timing is asserted."""

from pathlib import Path

import pytest

from studies.bench.driver_time import driver_time
from studies.bench.result import Bench
from studies.bench.table import _driver_lines
from studies.trials.records import read_records


def test_the_timed_trials_are_those_of_a_search(tmp_path: Path) -> None:
    times = driver_time(tmp_path, trials=4, searches=2, depths=(2, 4))
    records = read_records(tmp_path / "short")
    reports = sum(len(r.reports) for r in records.values())
    assert times["trials"] == len(records) == 3 * 4 * 2
    assert times["reports"] == pytest.approx(reports / len(records))
    assert {r.state for r in records.values()} == {"complete", "pruned"}
    assert times["together_ms"] == pytest.approx(
        times["propose_ms"] + times["reports_ms"] + times["finish_ms"]
    )
    assert [len(r.reports) for r in read_records(tmp_path / "long").values()] == [5, 5]
    assert times["report_ms_after"].keys() == {"2", "4"}


def test_times_are_printed_in_two_lines() -> None:
    times = {"trials": 1008, "propose_ms": 5.04, "reports_ms": 2.0, "reports": 2.16}
    late = {"100": 0.5, "5000": 0.52}
    driver = {**times, "finish_ms": 3.0, "together_ms": 10.04, "report_ms_after": late}
    bench = Bench(
        setting={}, provenance={}, step_operations=1, matmul_rates=(), rows=(), driver=driver
    )
    assert _driver_lines(bench) == [
        "driver, 1,008 trials of the built-in study without training, messages or MLflow: 10.0 ms "
        "a trial, of which 5.0 to propose it, 2.0 for 2.2 reports and 3.0 to end it",
        "a report after 100 / 5,000 of its trial: 0.50 / 0.52 ms",
    ]
