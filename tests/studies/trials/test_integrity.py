"""Numbers and ids that are stored twice, and files in the wrong place."""

import ctypes
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from made_records import named, record
from made_studies import make

from hylorada import HyLoRADAConfig, InputError, TrainingConfig
from hylorada.runtime.checksums import SEAL, digest, sealed, unsealed
from studies.analysis.results import read_results
from studies.cli.commands import main
from studies.files.folder_files import stored_study, study_lock
from studies.spec.study import Study
from studies.trials.integrity import check_confirms
from studies.trials.messages import CHECKPOINT
from studies.trials.records import read_id, read_records
from studies.trials.store import Store

Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study folder."""
    folder = tmp_path_factory.mktemp("made") / "studies" / "made"
    make(folder, "end").close()
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "studies" / "made")


@pytest.fixture
def old(folder: Path) -> Path:
    """The folder as an earlier version would have written it, without checksums."""
    for path in folder.rglob("*.json"):
        values = json.loads(path.read_text())
        drop = {SEAL, "reports_seal", *(["id"] if path.name == "study.json" else [])}
        path.write_text(json.dumps({k: v for k, v in values.items() if k not in drop}))
    for path in folder.rglob("reports.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        drop = {SEAL, "digests"}
        path.write_text(
            "".join(json.dumps({k: v for k, v in r.items() if k not in drop}) + "\n" for r in lines)
        )
    return folder


def reopen(folder: Path) -> list[str]:
    store = Store(folder, Study.from_dict(stored_study(folder / "study.json")))
    store.close()
    return store.notes


def winner_run(folder: Path, arm: str = "fixed", seed: int = 0) -> Path:
    return next((folder / "trials").glob(f"{arm}-*-confirm-{seed:02d}"))


def swap(path: Path, other: Path) -> None:
    ours = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(ours)


def test_checksum_is_bound_to_values_and_owner() -> None:
    values = {"a": 1.5, "b": [None, "é"]}
    whole = json.loads(json.dumps(sealed(values, "one")))
    assert unsealed(whole, "one") == values
    assert unsealed(values, "one") == values  # of an earlier version
    for changed, owner in (
        ({**whole, "a": 1.25}, "one"),
        (whole, "two"),
        ({**whole, "c": 0}, "one"),
    ):
        with pytest.raises(ValueError, match="its checksum does not match its content"):
            unsealed(changed, owner)
    assert digest("ab", "c") != digest("b", "ca")


def test_folder_of_an_earlier_version_is_read_and_sealed(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = f"--storage={old.parents[1]}"
    assert main(["report", "made", storage]) == 0
    assert main(["status", "made", storage]) == 0
    assert capsys.readouterr().err == ""
    assert reopen(old) == []
    for path in (old / "study.json", *old.glob("trials/*/trial.json")):
        assert SEAL in json.loads(path.read_text())
    assert reopen(old) == []


@pytest.mark.parametrize(("arm", "seed"), [("fixed", 1), ("baseline", 0)])
def test_swapped_losses_of_an_earlier_version_are_seen(old: Path, arm: str, seed: int) -> None:
    path, other = (
        winner_run(old) / "test_block_nll.npy",
        winner_run(old, arm, seed) / "test_block_nll.npy",
    )
    swap(path, other)
    with pytest.raises(
        InputError,
        match=r"test_block_nll\.npy is damaged \(its mean loss is .*, reports\.jsonl holds",
    ):
        reopen(old)


def test_changed_loss_of_an_earlier_version_is_seen_beside_optuna(old: Path) -> None:
    path = old / "trials" / "fixed-0002" / "reports.jsonl"
    path.write_text(re.sub(r'("eval/nll": [0-9]\.)[0-9]', r"\g<1>1", path.read_text()))
    with pytest.raises(
        InputError,
        match=r"fixed-0002 is damaged \(intermediate_values is .*, but .* in .*optuna\.db",
    ):
        reopen(old)


@pytest.mark.parametrize("field", ["ppl", "ppl_median", "ppl_by_seed"])
def test_changed_figure_of_an_earlier_version_is_seen(old: Path, field: str) -> None:
    path = old / "results.json"
    values = json.loads(path.read_text())
    arm = values["arms"][1]
    arm[field] = (
        [arm[field][0] + 0.01, *arm[field][1:]] if field == "ppl_by_seed" else arm[field] + 0.01
    )
    path.write_text(json.dumps(values))
    with pytest.raises(
        InputError, match=rf"results\.json is damaged \({field} of baseline is .*; delete it: "
    ):
        read_results(path)


def test_results_of_another_study_are_refused(folder: Path, tmp_path: Path) -> None:
    make(tmp_path / "other", "end", seed=1).close()
    shutil.copy(tmp_path / "other" / "results.json", folder)
    with pytest.raises(InputError, match="its checksum does not match its content"):
        read_results(folder / "results.json")


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda path: path.write_bytes(b"\xff"), lambda p: p.write_text("12")]
)
def test_lost_id_is_written_again(folder: Path, damage: Damage) -> None:
    before = (folder / "id").read_text()
    damage(folder / "id")
    assert read_id(folder) == before
    reopen(folder)
    assert (folder / "id").read_text() == before


def test_id_that_differs_from_its_copy_is_refused(folder: Path) -> None:
    (folder / "id").write_text("0123456789abcdef")
    with pytest.raises(
        InputError,
        match=r"id is damaged .*it holds 0123456789abcdef, but study\.json holds .*delete",
    ):
        reopen(folder)


def test_lost_id_of_an_earlier_version_makes_no_second_parent(old: Path) -> None:
    (old / "id").unlink()
    with pytest.raises(
        InputError, match="id is missing; restore it from a backup, or from MLflow: it is the tag"
    ):
        reopen(old)
    assert not (old / "id").exists()


@pytest.mark.parametrize("original", [True, False])
def test_copy_of_a_trial_is_told_from_a_renamed_one(folder: Path, original: bool) -> None:
    trial = folder / "trials" / "fixed-0002"
    shutil.copytree(trial, trial.with_name("fixed-0002 copy"))
    if not original:
        shutil.rmtree(trial)
    remedy = "a copy of 'fixed-0002': move it out of " if original else "rename it to 'fixed-0002'"
    with pytest.raises(InputError, match=f"fixed-0002 copy is not a trial's folder; .*{remedy}"):
        reopen(folder)


def test_lost_inputs_are_not_bound_anew(folder: Path) -> None:
    (folder / "inputs.json").unlink()
    store = Store(folder, Study.from_dict(stored_study(folder / "study.json")))
    try:
        with pytest.raises(InputError, match=r"inputs\.json is missing; restore it from a backup"):
            store.bind_inputs({"data_fingerprint": "of another text"})
    finally:
        store.close()


def test_winner_of_a_version_that_knew_fewer_fields_equals_its_runs(tmp_path: Path) -> None:
    adapter, training = HyLoRADAConfig(r=4).to_dict(), TrainingConfig(batch_size=2).to_dict()
    earlier = {k: v for k, v in adapter.items() if k != "landmark_dropout"}
    winner = record("fixed", 0, [], adapter=earlier, training=training)

    def check(**changes: object) -> None:
        new = {"adapter": {**adapter, **changes}, "training": training, "winner": winner.name}
        check_confirms(tmp_path, named(winner, record("fixed", 7, [], stage="confirm", **new)))

    check()
    with pytest.raises(InputError, match="its adapter is not that of its winner 'fixed-0000'"):
        check(landmark_dropout=0.1)
    with pytest.raises(InputError, match="its adapter is not that of its winner"):
        check(r=8)


def test_lost_winner_of_a_confirm_run_is_named(folder: Path) -> None:
    winner = winner_run(folder).name.removesuffix("-confirm-00")
    shutil.rmtree(folder / "trials" / winner)
    with pytest.raises(InputError, match=rf"{winner}/trial\.json is missing"):
        reopen(folder)


# --- permissions ---


@contextmanager
def heeding_permissions() -> Iterator[None]:
    """Apply permissions to root as well, without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
    libc, header = ctypes.CDLL(None, use_errno=True), (ctypes.c_uint32 * 2)(0x20080522, 0)
    capabilities = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice
    assert libc.capget(header, capabilities) == 0
    effective = capabilities[0]
    capabilities[0] &= ~0b110
    assert libc.capset(header, capabilities) == 0
    try:
        yield
    finally:
        capabilities[0] = effective
        assert libc.capset(header, capabilities) == 0


@pytest.mark.parametrize("mode", [0o000, 0o444])
@pytest.mark.parametrize("place", [".", "studies", "studies/made", "studies/made/trials"])
def test_folder_that_may_not_be_read_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], place: str, mode: int
) -> None:
    storage = folder.parents[1]
    os.chmod(storage / place, mode)
    commands = [
        ["status", "made"],
        ["report", "made"],
        ["export", "made", "--output=x"],
        ["extend", "made"],
    ]
    commands += [["list"]] if "made" not in place else []
    commands += [["ui"]] if place == "." else []
    for command in commands:
        with heeding_permissions():
            code = main([*command, f"--storage={storage}"])
        note = f"hylorada: {storage / place} can't be read: Permission denied\n"
        assert (command[0], code, capsys.readouterr().err) == (command[0], 2, note)
    os.chmod(storage / place, 0o755)


@pytest.mark.parametrize(
    "file", ["optuna.db", "study.json", "id", "trials/RUN", "trials/RUN/reports.jsonl"]
)
def test_file_that_may_not_be_read_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    path = folder / file.replace("RUN", winner_run(folder).name)
    os.chmod(path, 0)
    with heeding_permissions():
        code = main(["status", "made", f"--storage={folder.parents[1]}"])
    os.chmod(path, 0o755)
    assert code == 2
    assert re.fullmatch(
        rf"hylorada: {path}\S* can't be (read|used): Permission denied\n", capsys.readouterr().err
    )


@pytest.mark.parametrize("command", ["list", "status", "report", "export", "extend"])
@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("file", "is a file, must be a folder"),
        ("link", "is a link to gone, which is missing"),
        ("x" * 300, "too long"),
    ],
)
def test_storage_that_is_no_folder_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, place: str, problem: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("gone")
    arguments = [] if command == "list" else ["made"]
    output = ["--output=x"] if command == "export" else []
    assert main([command, *arguments, *output, f"--storage={tmp_path / place}"]) == 2
    assert re.fullmatch(rf"hylorada: {tmp_path / place}.*{problem}.*\n", capsys.readouterr().err)


# --- runs in progress that lost files ---


@pytest.fixture(scope="module")
def made_half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study folder whose second seeds are in training, with checkpoints at step 6."""
    folder = tmp_path_factory.mktemp("half") / "studies" / "made"
    make(folder, "confirm").close()
    return folder


@pytest.fixture
def half(made_half: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made_half, tmp_path / "studies" / "made")


def keep_lines(count: int) -> Damage:
    return lambda path: path.write_bytes(
        b"".join(path.read_bytes().splitlines(keepends=True)[:count])
    )


@pytest.mark.parametrize(
    ("file", "damage", "problem"),
    [
        ("reports.jsonl", Path.unlink, "has lost reports: it ends at step 0, the checkpoint at 6"),
        (
            "reports.jsonl",
            keep_lines(0),
            "has lost reports: it ends at step 0, the checkpoint at 6",
        ),
        (
            "reports.jsonl",
            keep_lines(1),
            "has lost reports: it ends at step 2, the checkpoint at 6",
        ),
        ("trial.json", Path.unlink, "is missing"),
    ],
)
def test_run_under_way_that_lost_a_file_is_told_and_trained_again(
    half: Path, capsys: pytest.CaptureFixture[str], file: str, damage: Damage, problem: str
) -> None:
    run = winner_run(half, seed=1)
    damage(run / file)
    assert main(["status", "made", "--json", f"--storage={half.parents[1]}"]) == 0
    note = f"{run / file} {problem}"
    command = f"hylorada run made --storage {half.parents[1]}"
    assert (
        capsys.readouterr().err == f"hylorada: note: {note}; `{command}` trains {run.name} again\n"
    )
    assert reopen(half) == [f"{note}; {run.name} is trained again"]
    assert not (run / CHECKPOINT).exists()


@pytest.mark.parametrize(
    "crash",
    [
        lambda run: keep_lines(2)(run / "reports.jsonl"),  # between a checkpoint and its report
        # before the first report
        lambda run: [path.unlink() for path in (run / "reports.jsonl", run / CHECKPOINT)],
        lambda run: swap(run / CHECKPOINT, winner_run(run.parents[1], "baseline", 1) / CHECKPOINT),
        lambda run: keep_lines(0)(run / CHECKPOINT),
    ],
)
def test_run_that_a_crash_may_have_left_so_is_not_told(
    half: Path, capsys: pytest.CaptureFixture[str], crash: Damage
) -> None:
    crash(winner_run(half, seed=1))
    assert main(["status", "made", "--json", f"--storage={half.parents[1]}"]) == 0
    assert capsys.readouterr().err == ""
    assert reopen(half) == []


def test_lost_run_of_a_finished_study_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = winner_run(folder) / "trial.json"
    path.unlink()
    assert main(["status", "made", f"--storage={folder.parents[1]}"]) == 0
    command = f"hylorada run made --storage {folder.parents[1]}"
    note = f"{path} is missing; `{command}` trains {path.parent.name} again"
    assert capsys.readouterr().err == f"hylorada: note: {note}\n"


def test_status_tells_nothing_while_a_process_is_at_work(
    half: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (winner_run(half, seed=1) / "reports.jsonl").unlink()
    with study_lock(half):
        assert main(["status", "made", "--json", f"--storage={half.parents[1]}"]) == 0
    assert capsys.readouterr().err == ""


def test_run_and_winner_of_different_versions_agree(folder: Path) -> None:
    """A run that began after an update has fields that its winner's stored files lack."""
    records = read_records(folder)
    run = next(r for r in records.values() if r.stage == "confirm")
    winner = records[run.winner]
    run.block, run.params = None, winner.params
    run.adapter, run.training = winner.adapter, winner.training
    later = ("replication_bucket_range", "replication_untrained")
    winner.adapter = {k: v for k, v in winner.adapter.items() if k not in later}
    winner.training = {k: v for k, v in winner.training.items() if k != "replication_bf16"}
    check_confirms(folder, records)
    run.training = {**run.training, "replication_bf16": True}
    with pytest.raises(InputError, match="its training is not that of its winner"):
        check_confirms(folder, records)
