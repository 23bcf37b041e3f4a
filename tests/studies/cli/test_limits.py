"""The options that end a run early: what they accept, and where they go."""

import argparse
from pathlib import Path

import pytest

from studies.cli.arguments import parse
from studies.cli.commands import main
from studies.cli.options import run_options, seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [("60s", 60), ("90", 90), ("90m", 5400), ("2h", 7200), ("1h30m", 5400), ("1.5h", 5400)],
)
def test_times_are_read_in_seconds(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize(
    "text", ["", "soon", "-5s", "5d", "nan", "inf", "1e3", "30m1h", "h", "1 h"]
)
def test_nonsense_is_no_time(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be a time such as 90s"):
        seconds(text)


def test_limits_are_options_of_the_run_and_not_of_the_study() -> None:
    options = run_options(parse(["run", "x", "--time-limit=1h30m", "--max-failures=3"]))
    assert (options.time_limit, options.max_failures) == (5400, 3)
    options = run_options(parse(["run", "x"]))
    assert (options.time_limit, options.max_failures) == (None, None)
    # the time of `resolve` says how many searches are added, and cuts none off
    assert run_options(parse(["resolve", "x", "--time-limit=30m"])).time_limit is None


def test_limits_out_of_range_are_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = tmp_path / "runs"
    options = ("--time-limit=0s", "--max-failures=-1", f"--storage={storage}")
    assert main(["run", "learnable_bucketing", *options]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "hylorada: --time-limit must be above 0 s, got 0",
        "hylorada: --max-failures must be at least 0, got -1",
    ]
    assert not storage.exists()
