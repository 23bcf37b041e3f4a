"""A command that names a begun study and nothing else continues it as it was begun."""

from pathlib import Path

import pytest
from made_studies import VALUES, make

from studies.api.definitions import definitions
from studies.cli.arguments import parse
from studies.cli.requested_study import checked_study


@pytest.fixture
def begun(tmp_path: Path) -> dict[str, object]:
    """The built-in study, begun under its own name with other blocks, learning rates and arms."""
    changed = {
        **definitions()["learnable_bucketing"].values,
        "block_size": 256,
        "defaults": {**VALUES["defaults"], "max_steps": 8},
        "arms": {"fixed": {"space": {"num_buckets": {"choice": [8, 16]}}}, "baseline": {}},
        "comparisons": [["fixed", "baseline"]],
    }
    store = make(tmp_path / "studies" / "learnable_bucketing", "search", **changed)
    store.close()
    return store.study.to_dict()


def test_the_name_alone_resumes(
    begun: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("run", "estimate"):
        args = parse([command, "learnable_bucketing", f"--storage={tmp_path}"])
        assert checked_study(args).to_dict() == begun
        note = capsys.readouterr().err
        assert "keeps the settings that it was begun with" in note
        assert "block_size" in note
        assert "defaults.max_steps" in note


@pytest.mark.usefixtures("begun")
def test_what_is_named_is_asked_of_the_definition(tmp_path: Path) -> None:
    words = ["run", "learnable_bucketing", f"--storage={tmp_path}", "--block-size=64"]
    study = checked_study(parse(words))
    assert (study.block_size, "learnable" in study.arms) == (64, True)
