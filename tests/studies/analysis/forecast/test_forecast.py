"""The line that says what a run takes."""

import pytest

from studies.analysis.forecast.forecast import OVERHEAD, Place, disk_bytes, duration, forecast
from studies.analysis.forecast.work import Pace, Work

WORK = (Work("search", 60, 1200, 2400, 4000, 150), Work("confirm", 45, 1440, 2880, 6480, 180))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "1 s"),
        (89.4, "89 s"),
        (90, "2 min"),
        (3570, "1 h"),
        (4810, "1 h 20 min"),
        (86400, "1 d"),
        (200_000, "2 d 8 h"),
    ],
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_line_names_time_place_trials_memory_and_disk() -> None:
    expected = forecast(WORK, Pace(0.02), Place("CPU", 1, 2), 40_000_000, memory=2**29, fixed=9.0)
    seconds = 9.0 + OVERHEAD * 0.02 * (2400 + 2880 + 0.3 * (4000 + 6480))
    assert expected.seconds == pytest.approx(seconds)
    assert expected.device_hours == pytest.approx(2 * seconds / 3600)
    assert expected.line() == ("about 3 min on 2 CPU cores: 105 trials, 0.5 GiB memory, 40 MB disk")


def test_line_of_a_resumed_run_says_what_is_left() -> None:
    expected = forecast(WORK[1:], Pace(0.02), Place("GPU", 4, 4), 2_500_000_000, ended=60)
    assert expected.seconds == pytest.approx(OVERHEAD * 0.02 * (2880 + 0.3 * 6480) / 4)
    assert expected.line() == "about 25 s more on 4 GPUs: 45 of 105 trials left, 2.5 GB disk"


def test_confirm_runs_keep_their_adapters_on_disk() -> None:
    none, some = (disk_bytes(WORK, parameters, 100, 0) for parameters in (0, 50_000))
    assert some - none == 45 * 12 * 50_000
    assert disk_bytes(WORK, 0, 100, 1_000_000) - none == 4_000_000
