"""Files that a command is to write, checked before its work."""

from pathlib import Path

import pytest

from studies.cli.commands import main


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("", "'.': this is a folder; name a file"),
        ("there", "'there': this is a folder; name a file"),
        ("nowhere/x.html", "'nowhere/x.html': its folder does not exist"),
    ],
)
def test_place_that_can_not_be_written_is_told_first(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    output: str,
    problem: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert main(["bench", f"--profile={output}", "--rows=plain"]) == 2
    assert f"profile {problem}" in capsys.readouterr().err
    assert main(["compare", "a", "b", f"--output={output}"]) == 2
    assert f"output {problem}" in capsys.readouterr().err
