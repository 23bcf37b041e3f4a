"""A lost or damaged ``optuna.db`` is rebuilt from the trial files without affecting the search."""

import re
import shlex
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import pytest
from made_studies import make, report
from optuna.exceptions import StorageInternalError

from hylorada import InputError
from studies.cli.commands import main
from studies.files.folder_files import stored_study
from studies.spec.study import Study
from studies.trials.optuna_database import address, fault_of
from studies.trials.store import Store

TRIALS = 20  # TPE begins after six


@pytest.fixture(scope="module")
def broken_off(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study folder whose search was interrupted."""
    folder = tmp_path_factory.mktemp("made") / "studies" / "made"
    make(folder, "search", trials=TRIALS).close()
    return folder


@pytest.fixture
def folder(broken_off: Path, tmp_path: Path) -> Path:
    return shutil.copytree(broken_off, tmp_path / "studies" / "made")


def reopen(folder: Path) -> Store:
    return Store(folder, Study.from_dict(stored_study(folder / "study.json")))


def resume(folder: Path) -> tuple[list[str], list[Any]]:
    """Return the notes of opening a study, and its next proposals."""
    store, proposals = reopen(folder), []
    for number in range(5):
        for arm in store.study.arms:
            record = store.propose(arm)
            proposals.append((record.name, record.params))
            for step in (2, 4, 6, 8):
                store.report(record.name, report(record, step))
            store.finish(record.name, "failed" if number == 2 else "complete")
    store.close()
    return store.notes, proposals


@pytest.fixture(scope="module")
def unbroken(broken_off: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The proposals of a study with an undamaged database."""
    copy = shutil.copytree(broken_off, tmp_path_factory.mktemp("unbroken") / "made")
    notes, proposals = resume(copy)
    assert notes == []
    return proposals


def execute(*statements: str) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        with closing(sqlite3.connect(path)) as database, database:
            for statement in statements:
                assert database.execute(statement).rowcount != 0, statement

    return damage


def overwrite(at: int, content: bytes) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(content)

    return damage


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (Path.unlink, "is missing"),
        (lambda path: path.write_bytes(b""), r"is damaged \(not a SQLite database\)"),
        (lambda path: path.write_bytes(b"garbage" * 500), r"is damaged \(not a SQLite database\)"),
        (overwrite(4096, b"garbage" * 20_000), r"is damaged \(database disk image is malformed\)"),
        (overwrite(100, b"\0" * 400), r"is damaged \(.+\)"),
        (
            execute("UPDATE trial_values SET value = value + 0.1"),
            "holds other value of fixed-0000 than its trial files",
        ),
        (
            execute("UPDATE trial_intermediate_values SET intermediate_value = 9 WHERE step = 2"),
            "holds other intermediate values of fixed-0000 than",
        ),
        (
            execute("UPDATE trial_params SET param_value = 5e-4 WHERE trial_id = 1"),
            "holds other params of fixed-0000",
        ),
        (
            execute("UPDATE trials SET state = 'FAIL' WHERE number = 0"),
            "holds other state of fixed-0000",
        ),
        (execute("UPDATE trials SET state = 'NONSENSE' WHERE number = 0"), r"is damaged \(.+\)"),
        (execute("DELETE FROM trials WHERE number = 2"), "lacks trials of arm 'fixed'"),
        (execute("DROP TABLE trial_values"), r"is damaged \(no such table: trial_values\)"),
        (
            execute("UPDATE studies SET study_name = 'fixes' WHERE study_name LIKE '%fixed%'"),
            "lacks trials of arm 'fixed'",
        ),
    ],
)
def test_search_goes_on_as_an_unbroken_one_does(
    folder: Path, unbroken: list[Any], damage: Callable[[Path], object], fault: str
) -> None:
    path = folder / "optuna.db"
    damage(path)
    (note,), proposals = resume(folder)
    assert proposals == unbroken
    assert re.fullmatch(rf"{re.escape(str(path))} {fault}.*; rebuilt it from the trial files", note)
    store = reopen(folder)
    assert store.notes == []
    store.close()


def test_former_database_is_kept(folder: Path) -> None:
    (folder / "optuna.db").write_bytes(b"garbage" * 500)
    reopen(folder).close()
    assert (folder / "optuna.db.damaged").read_bytes() == b"garbage" * 500


def test_trial_that_has_lost_reports_is_trained_again(folder: Path) -> None:
    trial = folder / "trials" / "fixed-0003"
    lines = (trial / "reports.jsonl").read_bytes().splitlines(keepends=True)
    (trial / "reports.jsonl").write_bytes(lines[0])
    (trial / "checkpoint.safetensors").write_bytes(b"of step 4")
    store = reopen(folder)
    assert (
        store.notes[0] == f"{trial / 'reports.jsonl'} has lost reports; fixed-0003 is trained again"
    )
    assert not (trial / "checkpoint.safetensors").exists()
    assert store.report("fixed-0003", report(store.records["fixed-0003"], 4))
    store.close()
    assert (trial / "reports.jsonl").read_bytes().splitlines()[1].startswith(b'{"step": 4,')


@pytest.mark.parametrize(
    ("version", "remedy"),
    [
        ("v3.0.0.d", "upgrade it: optuna storage upgrade --storage "),
        ("v9.9.9.a", "upgrade Optuna: pip install -U"),
    ],
)
def test_database_of_another_version_is_refused_in_a_line(
    folder: Path, version: str, remedy: str
) -> None:
    path = folder / "optuna.db"
    execute(f"UPDATE alembic_version SET version_num = '{version}'")(path)
    before = path.read_bytes()
    with pytest.raises(
        InputError, match=f"has schema '{version}', Optuna .* needs 'v3.2.0.a'; {remedy}"
    ) as raised:
        reopen(folder)
    assert path.read_bytes() == before
    if version == "v3.0.0.d":
        command = (
            raised.value.problems[0].partition("upgrade it: ")[2].partition("; or delete it")[0]
        )
        url = shlex.split(command)[-1]
        optuna.storages.RDBStorage(
            url, skip_compatibility_check=True, skip_table_creation=True
        ).upgrade()
    else:
        path.unlink()
    reopen(folder).close()


def test_locked_database_is_not_taken_for_a_damaged_one(folder: Path) -> None:
    path = folder / "optuna.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        storage = optuna.storages.RDBStorage  # as the store opens it, but without waiting
        with pytest.raises(StorageInternalError, match="commit") as raised:
            storage(
                address(path),
                engine_kwargs={"connect_args": {"timeout": 0}},
                skip_table_creation=True,
            )
    assert fault_of(raised.value) is None


@pytest.mark.parametrize("name", ["a%41b", "100%", "a#b", "a?b", "a{b}", "ä é", "a&b=c;d"])
def test_any_folder_name_will_do(
    broken_off: Path, tmp_path: Path, name: str, unbroken: list[Any]
) -> None:
    copy = shutil.copytree(broken_off, tmp_path / name / "made")
    (copy / "optuna.db").unlink()
    notes, proposals = resume(copy)
    assert len(notes) == 1
    assert proposals == unbroken
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert (copy / "optuna.db").stat().st_size > 0


def test_status_needs_no_database(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["status", "made", "--json", f"--storage={folder.parents[1]}"]
    assert main(command) == 0
    whole = capsys.readouterr().out
    (folder / "optuna.db").write_bytes(b"garbage" * 500)
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert out == whole
    assert err == (
        f"hylorada: note: {folder / 'optuna.db'} is missing or damaged; `hylorada run made "
        f"--storage {folder.parents[1]}` rebuilds it from the trial files\n"
    )
    assert not (folder / "optuna.db.damaged").exists()
