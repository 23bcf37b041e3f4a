"""The assignment of the files of a folder to splits."""

import os
from pathlib import Path

import pytest
from datasets.data_files import DataFilesDict, get_data_patterns

from hylorada.data.splits import find_splits
from hylorada.data.text import load_text
from hylorada.errors import InputError

_LAYOUTS = [
    ["data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"],
    ["train_0.txt", "train_1.txt", "test_0.txt"],
    ["training.txt", "dev.txt", "evaluation.txt"],
    ["my_train.csv", "my-valid.csv", "my test.csv"],
    ["train/a.txt", "train/b.txt", "val/a.txt", "test-2/a.txt"],
    ["deep/down/wiki.train.txt", "deep/down/wiki.test.txt"],
    ["train1.jsonl.gz", "test2.jsonl.gz"],
    ["a.txt", "latest.txt", "contest/b.txt"],
    ["set-00000-of-00002.parquet", "set-00001-of-00002.parquet"],
]


def _fill(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name} " * 40)
    return folder


def _files_by_split(folder: Path) -> dict[str, list[str]]:
    return {
        split: [str(p.relative_to(folder)) for p in files]
        for split, files in find_splits(folder).files.items()
    }


@pytest.mark.parametrize("names", _LAYOUTS, ids=lambda names: names[0])
def test_splits_are_those_that_datasets_finds(tmp_path: Path, names: list[str]) -> None:
    _fill(tmp_path, *names)
    theirs = DataFilesDict.from_patterns(get_data_patterns(str(tmp_path)), base_path=str(tmp_path))
    expected = {
        str(s): sorted(str(Path(f).relative_to(tmp_path)) for f in files)
        for s, files in theirs.items()
    }
    splits = _files_by_split(tmp_path)
    assert {split or "train": files for split, files in splits.items()} == expected


def test_test_split_is_never_trained_on(tmp_path: Path) -> None:
    splits = load_text(str(_fill(tmp_path, "train_0.txt", "test_0.txt"))).splits
    assert splits["test"] == ("test_0.txt " * 40,)
    assert "".join(splits["train"] + splits["validation"]) == "train_0.txt " * 40
    (tmp_path / "train_0.txt").unlink()
    with pytest.raises(InputError, match="no train split; it has: test; splits are named train"):
        load_text(str(tmp_path))
    assert load_text(str(tmp_path), split="test").splits == {"test": ("test_0.txt " * 40,)}


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (
            ["train.txt", "notes.txt"],
            "'notes.txt' belongs to no split, while other files are named after train",
        ),
        (
            ["train.txt", "tset.txt"],
            "'tset.txt' looks like the test split, but is not named so; the words are: train",
        ),
        (["a.txt", "vaildation.txt"], "'vaildation.txt' looks like the validation split"),
        (["trainset.txt", "testset.txt"], "'testset.txt' looks like the test split"),
        (["mytrain.txt", "mytest.txt"], "'mytest.txt' looks like the test split"),
        (["train/test_1.txt"], r"'train/test_1.txt' is named after test and train; rename it"),
        (
            ["train.txt", "test.json"],
            r"'test.json' is named after 'test', but '.json' is not supported",
        ),
        (
            ["train.txt", "test.zip"],
            r"'test.zip' is named after 'test', but '.zip' is not supported",
        ),
        (
            ["train.txt", "eval.txt", "test.txt"],
            "'eval.txt' and 'test.txt' both name the test split",
        ),
        (
            ["data/en-00000-of-00001.parquet", "data/fr-00000-of-00001.parquet"],
            "it has the splits 'en', 'fr'",
        ),
    ],
)
def test_names_that_leave_a_split_open_are_refused(
    tmp_path: Path, names: list[str], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        find_splits(_fill(tmp_path, *names))


@pytest.mark.parametrize(
    "name",
    ["text.txt", "latest.txt", "trainer.txt", "rain.txt", "eva.txt", "values.txt", "data.txt"],
)
def test_words_of_their_own_are_no_splits(tmp_path: Path, name: str) -> None:
    assert _files_by_split(_fill(tmp_path, name, "b.txt")) == {"": sorted([name, "b.txt"])}


def test_links_are_followed_but_no_file_is_in_two_splits(tmp_path: Path) -> None:
    _fill(tmp_path / "elsewhere", "a.txt")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train").symlink_to(tmp_path / "elsewhere")
    _fill(tmp_path / "data", "test.txt")
    assert _files_by_split(tmp_path / "data") == {"test": ["test.txt"], "train": ["train/a.txt"]}
    (tmp_path / "data" / "dev.txt").symlink_to(tmp_path / "data" / "test.txt")
    with pytest.raises(
        InputError,
        match=r"'dev.txt' and 'test.txt' are the same file, of splits validation and test",
    ):
        find_splits(tmp_path / "data")


@pytest.mark.parametrize("link", ["test.txt", "test", "more/part.jsonl.gz", "notes.csv"])
def test_link_that_leads_nowhere_is_no_missing_split(tmp_path: Path, link: str) -> None:
    _fill(tmp_path, "train.txt", "more/train.txt")
    (tmp_path / link).symlink_to("unfetched")
    name = Path(link).name
    with pytest.raises(
        InputError,
        match=rf"{name}' is a link to 'unfetched', which can't be followed; fetch that file",
    ):
        load_text(str(tmp_path))


def test_other_links_that_lead_nowhere_are_left_alone(tmp_path: Path) -> None:
    _fill(tmp_path, "train.txt")
    for name in (".test.txt", "notes.md", "latest"):
        (tmp_path / name).symlink_to("unfetched")
    assert _files_by_split(tmp_path) == {"train": ["train.txt"]}


@pytest.mark.parametrize(
    "names", [("a/test.txt", "a/test.txt.gz"), ("b.csv.xz", "b.csv.zst"), ("c.txt", "c.txt.BZ2")]
)
def test_file_that_is_there_in_two_forms_is_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    _fill(tmp_path, *names)
    both = " and ".join(map(repr, sorted(names)))
    with pytest.raises(InputError, match=f"{both} are the same file; move one away"):
        find_splits(tmp_path)


def test_path_that_is_no_file_is_told_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.txt").symlink_to("a.txt")
    os.mkfifo(tmp_path / "b.txt")
    with pytest.raises(
        InputError, match=r"a\.txt': it is a link to 'a\.txt', which can't be followed"
    ):
        load_text(str(tmp_path / "a.txt"))
    with pytest.raises(InputError, match=r"b\.txt': it is neither a file nor a folder"):
        load_text(str(tmp_path / "b.txt"))


def test_files_about_the_data_are_left_out_and_told(tmp_path: Path) -> None:
    layout = find_splits(
        _fill(
            tmp_path, "train.txt", "README.txt", "LICENSE", ".cache/test.txt", "__MACOSX/test.txt"
        )
    )
    assert (layout.left_out, list(layout.files)) == (("README.txt",), ["train"])
