"""``hylorada watch`` of a study that is not running, and of a grid."""

from pathlib import Path

import pytest
from made_studies import make

from studies.cli.commands import main


def _watched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["watch", "made", f"--storage={tmp_path}"]) == 0
    return capsys.readouterr().out.splitlines()


def test_watch_shows_an_interrupted_study_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "studies" / "made", "search").close()
    lines = _watched(tmp_path, capsys)
    assert lines[0].startswith("6 of 12 trials, last report ")
    assert lines[-3:] == [
        "search: 6 of 12 ended",
        "confirm: 0 of 4 ended",
        f"Not running. Resume with: hylorada run made --storage {tmp_path}",
    ]


def test_watch_of_a_finished_study_names_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "studies" / "made", "end").close()
    told = f"Finished. See the results with: hylorada report made --storage {tmp_path}"
    assert _watched(tmp_path, capsys)[-1] == told
