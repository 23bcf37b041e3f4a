"""Names that are valid on another machine, and the paths behind them."""

from pathlib import Path

import pytest

from hylorada.base_models.portable_names import located, portable_path


@pytest.mark.parametrize(
    "name", ["tiny", "smollm2-135m", "pydocs", "gpt2", "org/model", "wikitext:raw", ""]
)
def test_names_of_no_path_stay(name: str, tmp_path: Path) -> None:
    assert portable_path(name, tmp_path) == name
    assert located(name, tmp_path) == name


@pytest.mark.parametrize(
    ("place", "folder", "expected"),
    [
        ("models/x", "out", "../models/x"),
        ("out/base", "out", "./base"),
        ("x", "a/b/out", "../../../x"),
    ],
)
def test_paths_are_relative_to_the_folder(
    tmp_path: Path, place: str, folder: str, expected: str
) -> None:
    (tmp_path / place).mkdir(parents=True)
    assert portable_path(str(tmp_path / place), tmp_path / folder) == expected
    assert located(expected, tmp_path / folder) == str(tmp_path / place)


def test_relative_path_is_read_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "models" / "x").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert portable_path("models/x", tmp_path / "out") == "../here/models/x"


def test_way_through_the_root_is_not_told(tmp_path: Path) -> None:
    assert portable_path(str(tmp_path), Path("/elsewhere/out")) == f"./{tmp_path.name}"
    assert portable_path("/nowhere/secret/x", tmp_path) == "./x"


def test_built_in_name_goes_before_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    assert portable_path("tiny", tmp_path / "out") == "tiny"
