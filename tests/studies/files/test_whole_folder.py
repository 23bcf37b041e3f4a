"""A folder is replaced as a whole, and never with files of the user's in it."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hylorada import InputError
from studies.files import whole_folder
from studies.files.whole_folder import refuse_foreign, write_folder

OLD = {"a.txt": b"old", "b/c.txt": b"gone soon"}
NEW = {"a.txt": b"new", "d/e.txt": b"added"}


def content(folder: Path) -> dict[str, bytes]:
    """The files of a folder, without the record of what was written."""
    paths = [p for p in folder.rglob("*") if p.is_file() and p.name != "files.json"]
    return {str(p.relative_to(folder)): p.read_bytes() for p in paths}


@pytest.mark.parametrize("existing", [False, True])
def test_folder_is_written_with_its_parents(tmp_path: Path, existing: bool) -> None:
    folder = tmp_path / "for a" / "paper"
    if existing:
        folder.mkdir(parents=True)
    write_folder(folder, OLD, "own")
    assert content(folder) == OLD
    assert [p.name for p in folder.parent.iterdir()] == ["paper"]


@pytest.mark.parametrize("can_exchange", [True, False])
def test_earlier_folder_is_replaced_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(whole_folder, "_exchange", lambda *_: False)
    write_folder(tmp_path / "paper", OLD, "own")
    write_folder(tmp_path / "paper", NEW, "own")
    assert content(tmp_path / "paper") == NEW
    assert [p.name for p in tmp_path.iterdir()] == ["paper"]


@pytest.mark.parametrize("function", ["fsync", "mkdir"])
@pytest.mark.parametrize("dies_at", range(4))
def test_death_while_writing_leaves_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, dies_at: int
) -> None:
    write_folder(tmp_path / "paper", OLD, "own")
    calls: list[int] = []
    real: Callable[..., None] = getattr(os, function)

    def dies(*arguments: object) -> None:
        calls.append(1)
        if len(calls) > dies_at:
            raise KeyboardInterrupt  # as a kill, it is not handled on the way
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, function, dies)
        try:
            write_folder(tmp_path / "paper", NEW, "own")
        except KeyboardInterrupt:
            assert content(tmp_path / "paper") == OLD
    write_folder(tmp_path / "paper", NEW, "own")
    assert content(tmp_path / "paper") == NEW
    assert [p.name for p in tmp_path.iterdir()] == ["paper"]


def test_death_after_the_exchange_leaves_the_new_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path / "paper", OLD, "own")
    real = whole_folder._exchange

    def dies(*paths: Path) -> bool:
        assert real(*paths)
        raise KeyboardInterrupt

    monkeypatch.setattr(whole_folder, "_exchange", dies)
    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "paper", NEW, "own")
    assert content(tmp_path / "paper") == NEW


def test_full_disk_leaves_the_old_folder_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path / "paper", OLD, "own")

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="No space left"):
        write_folder(tmp_path / "paper", NEW, "own")
    assert content(tmp_path / "paper") == OLD
    assert [p.name for p in tmp_path.iterdir()] == ["paper"]


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda f: (f / "mine.tex").write_text("x"), "files of yours (mine.tex), which would be"),
        (lambda f: (f / "link").symlink_to(f), "files of yours (link)"),
        (lambda f: (f / "a.txt").write_text("x"), "files of yours (a.txt)"),
        (lambda f: (f / "files.json").unlink(), "holds no figures of study 'own'; name a new"),
        (lambda f: (f / "files.json").write_text("[1]"), "holds no figures of study 'own'"),
    ],
    ids=["added", "link", "changed", "no record", "odd record"],
)
def test_folder_with_files_of_the_user_is_refused(
    tmp_path: Path, harm: Callable[[Path], object], message: str
) -> None:
    folder = tmp_path / "paper"
    write_folder(folder, OLD, "own")
    harm(folder)
    before = content(folder)
    with pytest.raises(InputError, match=re.escape(message)):
        write_folder(folder, NEW, "own")
    assert content(folder) == before


def test_folder_of_another_study_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "paper", OLD, "own")
    with pytest.raises(InputError, match="holds no figures of study 'other'"):
        refuse_foreign(tmp_path / "paper", "other")


def test_file_and_working_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "paper").touch()
    for path in (tmp_path / "paper", tmp_path / "paper" / "in" / "it"):
        with pytest.raises(InputError, match="paper' is a file, must be a folder"):
            refuse_foreign(path, "own")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(InputError, match="while it is in use; name a new folder in it"):
        refuse_foreign(Path("."), "own")


def test_path_that_no_disk_can_hold_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match="'a\\\\udc80' can't be written: its name is not"):
        refuse_foreign(Path("a\udc80"), "own")
    with pytest.raises(InputError, match=r"can't be written: .*leads back to itself"):
        refuse_foreign(tmp_path / "loop", "own")
    with pytest.raises(InputError, match=r"can't be written: no file can be created in /proc"):
        refuse_foreign(Path("/proc/paper"), "own")


def test_death_between_two_renames_is_mended_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_folder, "_exchange", lambda *_: False)
    write_folder(tmp_path / "paper", OLD, "own")
    (tmp_path / "paper").rename(tmp_path / ".paper.old")
    (tmp_path / ".paper.old" / "mine.tex").touch()
    with pytest.raises(InputError, match="files of yours"):
        write_folder(tmp_path / "paper", NEW, "own")
    (tmp_path / "paper" / "mine.tex").unlink()
    write_folder(tmp_path / "paper", NEW, "own")
    assert content(tmp_path / "paper") == NEW
    assert [p.name for p in tmp_path.iterdir()] == ["paper"]


def test_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for files in (OLD, NEW):
        write_folder(tmp_path / "link", files, "own")
    assert (tmp_path / "link").is_symlink()
    assert content(tmp_path / "real") == NEW
