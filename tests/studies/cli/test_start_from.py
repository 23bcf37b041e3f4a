"""``--start-from`` and ``start:`` on the command line."""

from pathlib import Path

import pytest
import yaml
from made_studies import make

from studies.cli.commands import main


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage folder with a finished study."""
    folder = tmp_path_factory.mktemp("storage")
    rate = {"learning_rate": {"low": 1e-3, "high": 3e-3, "log": True}}
    arms = {"fixed": {"space": {"num_buckets": {"choice": [8, 16]}}}, "baseline": {}}
    make(folder / "studies" / "made", "end", common={"space": rate}, arms=arms).close()
    return folder


@pytest.fixture
def show(storage: Path, capsys: pytest.CaptureFixture[str]) -> "Show":
    return Show(storage, capsys)


class Show:
    """Shows the built-in study with further options."""

    def __init__(self, storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._storage, self._capsys = storage, capsys

    def __call__(self, *options: str) -> tuple[int, str, list[str]]:
        command = ["show", "learnable_bucketing", f"--storage={self._storage}", *options]
        code = main(command)
        said = self._capsys.readouterr()
        return code, said.out, said.err.splitlines()


def test_winners_are_shown_and_read_back(show: Show, tmp_path: Path) -> None:
    code, out, err = show("--start-from=made", "--set=start=[{learning_rate: 0.002}]")
    assert (code, err) == (0, [])
    first, winner = yaml.safe_load(out)["start"]
    assert first == {"learning_rate": 0.002}
    assert winner.keys() == {"from", "learning_rate", "arms"}
    assert (winner["from"], winner["arms"].keys()) == ("made", {"fixed"})
    (tmp_path / "study.yaml").write_text(out)
    assert show(f"--config={tmp_path / 'study.yaml'}") == (0, out, [])


def test_study_of_the_name_alone_has_no_start_list(show: Show) -> None:
    code, out, err = show()
    assert (code, err) == (0, [])
    assert yaml.safe_load(out)["start"] == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--start-from=mad"], "start: no study 'mad' has been run; did you mean 'made'?"),
        (
            ["--set=start=[{learning_rate: 7}]"],
            "start[0].learning_rate 7 is outside the searched range 0.0005 .. 0.004 (log) of arms "
            "baseline, fixed, learnable",
        ),
        (
            ["--set=start={learning_rate: 7}", "--start-from=made"],
            "start must be a list of configurations, got {'learning_rate': 7}",
        ),
        (["--sampler=gp"], "sampler 'gp' is unknown; one of: qmc, random, tpe"),
    ],
)
def test_wrong_start_is_one_clear_line(show: Show, options: list[str], problem: str) -> None:
    assert show(*options) == (2, "", [f"hylorada: {problem}"])
