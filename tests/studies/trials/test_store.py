"""The study folder: a crash loses and repeats nothing, and Optuna agrees with the files."""

import json
import math
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from optuna.trial import TrialState
from store_trials import ARM, VALUES, Open, check_agreement, make_report, optuna_trial, run_trial

from hylorada import InputError
from studies.cli.commands import main
from studies.files.folder_files import append_line, read_lines
from studies.trials.records import State, read_record
from studies.trials.store import Store


def test_propose_gives_the_defaults_first(open_store: Open) -> None:
    store = open_store(defaults={"max_steps": 8, "learning_rate": 5e-3, "num_buckets": 16})
    first, second = store.propose(ARM), store.propose(ARM)
    assert first.params == {"learning_rate": 5e-3, "num_buckets": 16, "boundary_init": "log"}
    assert (first.name, first.arm, first.stage, first.number) == (
        "learnable-0000",
        ARM,
        "search",
        0,
    )
    assert first.training["learning_rate"] == 5e-3
    assert first.adapter["max_positions"] == 128
    assert second.params != first.params
    assert (second.data_seed, second.seed != first.seed) == (first.data_seed, True)


def test_record_round_trips_through_its_files(open_store: Open) -> None:
    store = open_store()
    record = store.propose(ARM)
    store.report(
        record.name,
        make_report(2, boundaries=(1.5, 7.0), start_boundaries=(1.0, 8.0), applied={"r": 8}),
    )
    store.report(record.name, make_report(4, math.inf))
    store.finish(record.name, "failed", "müde")
    again = read_record(store.trial_folder(record.name) / "trial.json")
    assert asdict(again) == asdict(record)
    assert (again.step, again.nll, again.reason) == (4, math.inf, "müde")


def test_report_twice_is_ignored(open_store: Open) -> None:
    store = open_store()
    name = store.propose(ARM).name
    assert store.report(name, make_report(2, 3.0))
    assert not store.report(name, make_report(2, 9.0))
    assert [r.metrics["eval/nll"] for r in store.records[name].reports] == [3.0]
    assert len(read_lines(store.trial_folder(name) / "reports.jsonl")) == 1
    assert optuna_trial(store, 0).intermediate_values == {2: 3.0}


def test_finish_twice_keeps_the_first(open_store: Open) -> None:
    store = open_store()
    record = store.propose(ARM)
    run_trial(store, record)
    store.finish(record.name, "failed", "too late")
    assert (store.records[record.name].state, store.records[record.name].reason) == (
        "complete",
        None,
    )
    assert optuna_trial(store, 0).state == TrialState.COMPLETE


@pytest.mark.parametrize(
    ("state", "expected", "value"),
    [
        ("complete", TrialState.COMPLETE, 3.7),
        ("pruned", TrialState.PRUNED, 3.7),
        ("diverged", TrialState.FAIL, None),
        ("failed", TrialState.FAIL, None),
    ],
)
def test_optuna_is_told_the_truth(
    open_store: Open, state: State, expected: TrialState, value: float | None
) -> None:
    store = open_store()
    record = store.propose(ARM)
    store.report(record.name, make_report(2, 3.9))
    store.report(record.name, make_report(4, 3.7))
    store.finish(record.name, state)
    trial = optuna_trial(store, 0)
    assert (trial.state, trial.value, trial.params) == (expected, value, record.params)
    assert trial.intermediate_values == {2: 3.9, 4: 3.7}


@pytest.mark.parametrize("nll", [math.nan, math.inf])
def test_complete_without_a_finite_loss_is_diverged(open_store: Open, nll: float) -> None:
    store = open_store()
    record = store.propose(ARM)
    store.report(record.name, make_report(8, nll))
    store.finish(record.name, "complete")
    assert (record.state, record.reason) == ("diverged", "non-finite validation loss at step 8")
    assert optuna_trial(store, 0).state == TrialState.FAIL
    assert store.best(ARM) is None


def test_best_ignores_pruned_failed_diverged_and_nan(open_store: Open) -> None:
    store = open_store()
    cases: list[tuple[float, State]] = [
        (math.nan, "complete"),
        (math.inf, "complete"),
        (12.0, "failed"),
        (13.0, "diverged"),
        (14.0, "pruned"),
        (16.0, "complete"),
        (15.0, "complete"),
        (15.0, "complete"),
        (11.0, "running"),
    ]
    for nll, state in cases:
        record = store.propose(ARM)
        store.report(record.name, make_report(8, nll))
        if state != "running":
            store.finish(record.name, state)
    best = store.best(ARM)
    assert best is not None
    assert best.number == 6
    assert store.best("fixed") is None


@pytest.mark.parametrize("torn", ['{"step": 4, "metr', "{", '{"step": 4}'])
def test_crash_in_the_middle_of_a_line(open_store: Open, torn: str) -> None:
    store = open_store()
    name = store.propose(ARM).name
    store.report(name, make_report(2))
    path = store.trial_folder(name) / "reports.jsonl"
    with path.open("a") as file:
        file.write(torn)
    store = open_store()
    assert [r.step for r in store.records[name].reports] == [2]
    check_agreement(store)
    assert store.report(name, make_report(4))
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [2, 4]


def test_append_line_cuts_off_what_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append_line(path, "one")
    path.write_bytes(path.read_bytes() + "hälf".encode()[:2])
    assert read_lines(path) == ["one"]
    append_line(path, "two")
    assert path.read_bytes() == b"one\ntwo\n"


# --- requested settings ---


def test_edited_study_is_refused_with_old_and_new_value(open_store: Open) -> None:
    open_store().close()
    with pytest.raises(InputError, match=r"block_size was 128, now 64") as caught:
        open_store(block_size=64, seed=3, trials=40)
    assert [p.split(": ")[-1] for p in caught.value.problems[:2]] == [
        "block_size was 128, now 64",
        "seed was 0, now 3",
    ]
    assert "--name" in caught.value.problems[-1]
    assert len(caught.value.problems) == 3
    open_store().close()  # the error has released the folder


def test_edited_study_is_refused_with_the_changed_field_of_an_arm(open_store: Open) -> None:
    open_store().close()
    arms = json.loads(json.dumps(VALUES["arms"]))
    arms[ARM]["space"]["num_buckets"]["choice"] = [8, 32]
    with pytest.raises(
        InputError,
        match=r"arms\.learnable\.space\.num_buckets\.choice was \[8, 16\], now \[8, 32\]",
    ):
        open_store(arms=arms)


def test_more_trials_seeds_and_other_words_are_accepted(open_store: Open) -> None:
    first = open_store().propose(ARM)
    store = open_store(trials=99, seeds=9, subject="other words")
    assert list(store.records) == [first.name]
    assert json.loads((store.folder / "study.json").read_text())["trials"] == 99


@pytest.mark.parametrize(("field", "fewer"), [("trials", 11), ("seeds", 2)])
def test_fewer_trials_or_seeds_are_refused_and_nothing_is_rewritten(
    open_store: Open, field: str, fewer: int
) -> None:
    store = open_store()
    before = (store.folder / "study.json").read_bytes()
    with pytest.raises(InputError, match=f"{field} was .*, now {fewer}; a study can't shrink"):
        open_store(**{field: fewer})
    assert (store.folder / "study.json").read_bytes() == before


def test_second_store_in_this_process_is_refused(open_store: Open) -> None:
    store = open_store()
    with pytest.raises(InputError, match=r"study 'try' is being run by another process \(.*try\)"):
        Store(store.folder, store.study)


def test_folder_locked_by_another_process_is_refused(open_store: Open, tmp_path: Path) -> None:
    hold = (
        "from filelock import *; import sys; a = FileLock(sys.argv[1]); a.acquire(); "
        "print('held', flush=True); input()"
    )
    command = [sys.executable, "-c", hold, str(tmp_path / "try" / "lock")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        began = time.monotonic()
        with pytest.raises(InputError, match="being run by another process"):
            open_store()
        assert time.monotonic() - began < 10
        holder.communicate("\n")
    assert open_store().records == {}  # the ended process has released the folder


@pytest.mark.parametrize("lost", ["study.json", "trials/learnable-0000/trial.json"])
def test_lost_file_is_an_error_naming_it(open_store: Open, lost: str) -> None:
    store = open_store()
    run_trial(store, store.propose(ARM))
    store.propose(ARM)
    store.close()
    (store.folder / lost).unlink()
    with pytest.raises(InputError, match=f"{lost}.*restore it from a backup"):
        open_store()


def test_paths_are_the_same_from_any_folder(
    open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("words")
    open_store(data="text.txt")
    open_store(data=str(tmp_path / "text.txt"))
    (tmp_path / "moved").mkdir()
    (tmp_path / "text.txt").rename(tmp_path / "moved" / "text.txt")
    open_store(data=str(tmp_path / "moved" / "text.txt"))  # its fingerprint is compared later
    with pytest.raises(InputError) as refused:
        open_store(data="other.txt")
    assert refused.value.problems == [
        "study 'try' exists with other settings: "
        f"data was {str(tmp_path / 'moved' / 'text.txt')!r}, now 'other.txt'",
        "give the new study another name (--name), or restore the former settings",
    ]


def test_what_is_refused_says_what_can_be_done(open_store: Open) -> None:
    open_store()
    with pytest.raises(InputError) as fewer:
        open_store(trials=3)
    assert fewer.value.problems == [
        "study 'try': trials was 12, now 3; a study can't shrink: give 12 or more"
    ]
    with pytest.raises(InputError, match=r"defaults\.r was absent, now 4"):
        open_store(defaults={"max_steps": 8, "r": 4})


def test_status_tells_of_trials_that_nobody_runs(
    open_store: Open, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "studies").mkdir()
    store = open_store("studies/try")
    for _ in range(2):
        store.propose(ARM)
    status = ["status", "try", "--storage", str(tmp_path)]
    assert main(status) == 0
    assert "Not running" not in capsys.readouterr().out
    store.close()
    assert main(status) == 0
    line = f"Not running. Resume with: hylorada run try --storage {tmp_path}\n"
    assert line in capsys.readouterr().out
