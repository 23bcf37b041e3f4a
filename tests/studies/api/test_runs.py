"""Studies from Python: bad input before compute, and a whole study in a program of its own."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from made_studies import make

from hylorada import InputError
from studies import Options, compare_studies, extend_study, get_study, load_results, run_study
from studies.api.runs import _checked
from studies.files.folder_files import STUDY, write_json

_PROGRAM = """
import sys
from pathlib import Path
from studies import Callbacks, Options, extend_study, get_study, load_results, run_study

reports, ends = [], []
callbacks = Callbacks(
    on_report=lambda r: reports.append((r.name, r.step)), on_trial_end=lambda r: ends.append(r.name)
)
study = get_study(
    "learnable_bucketing", model=sys.argv[1], block_size=32, name="try", searches=2, trials=1,
    profile=(1.0,), eval_every=2, grace_steps=2, eval_blocks=8, test_blocks=40,
    defaults={"max_steps": 4, "num_buckets": 8},
    arms={
        "fixed": {"space": {"num_buckets": {"choice": [4, 8]}}},
        "learnable": {"space": {"num_buckets": {"choice": [4, 8]}}},
    },
)
options = Options(storage=Path("runs"), progress="none")
results = run_study(study, options=options, callbacks=callbacks)
print(len(results.arms), len(results.comparisons), len(results.trials))
print(sorted(set(ends)) == sorted(results.trials.index), len(reports) == len(results.reports))
print(results.boundaries.groupby("trial").ngroups)
longer = extend_study("try", options=options, searches=3)
print(len(longer.trials), load_results("try", "runs").verdict == longer.verdict)
"""


def test_study_runs_and_grows_in_a_program(toy_model: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PROGRAM, toy_model]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=240)
    # 3 arms x 2 searches x (1 trial + 1 run on a fresh seed), 4 of them with learned boundaries
    assert done.stdout == "3 3 12\nTrue True\n4\n18 True\n", done.stderr


_FAILING = """
import sys
from pathlib import Path
from studies import Callbacks, Options, Record, get_study, run_study

def fail(record):
    raise OSError(28, "my own disk is full")

study = get_study(
    "learnable_bucketing", model=sys.argv[1], block_size=32, name="try", searches=1, trials=1,
    profile=(1.0,), eval_every=2, grace_steps=2, eval_blocks=8, test_blocks=40,
    defaults={"max_steps": 4, "num_buckets": 8},
    arms={
        "fixed": {"space": {"num_buckets": {"choice": [4, 8]}}},
        "learnable": {"space": {"num_buckets": {"choice": [4, 8]}}},
    },
)
options = Options(storage=Path("runs"), progress="none")
run_study(study, options=options, callbacks=Callbacks(on_trial_end=fail))
"""


@pytest.mark.faults
@pytest.mark.timeout(400)
def test_error_in_a_callback_reaches_the_program_and_the_study_resumes(
    toy_model: str, tmp_path: Path
) -> None:
    """Its own message comes first, even if it looks like a fault of the study's storage."""
    programs = (_FAILING, _FAILING.replace(", callbacks=Callbacks(on_trial_end=fail)", ""))
    first, second = (
        subprocess.run(
            [sys.executable, "-c", program, toy_model],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=180,
        )
        for program in programs
    )
    assert first.returncode == 1
    assert "OSError: [Errno 28] my own disk is full" in first.stderr
    # Which arm's trial ends first depends on the machine.
    note = r"Raised in your Callbacks\.on_trial_end, called with \w+-0000\."
    assert re.search(note, first.stderr), first.stderr
    assert second.returncode == 0, second.stderr


def test_wrong_changes_are_refused_all_at_once() -> None:
    with pytest.raises(InputError) as caught:
        get_study("learnable_bucketing", trials=0, blok_size=3)
    assert caught.value.problems == [
        "trials must be at least 1, got 0",
        "unknown field 'blok_size'; did you mean 'block_size'?",
    ]
    with pytest.raises(InputError, match="unknown study 'learnable'"):
        get_study("learnable")


def test_study_built_by_hand_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    study = replace(get_study("learnable_bucketing"), trials=-1)
    with pytest.raises(InputError, match="trials must be at least 1, got -1"):
        run_study(study, options=Options(storage=tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


def test_grid_is_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="spans a grid; use `hylorada run texts`"):
        run_study(get_study("texts"), options=Options(storage=tmp_path))


def test_extend_names_the_counts_and_studies_that_there_are(tmp_path: Path) -> None:
    make(tmp_path / "studies" / "made", "end").close()
    options = Options(storage=tmp_path)
    with pytest.raises(InputError, match="by one or more of trials, searches, seeds, got margin"):
        extend_study("made", options=options, margin=1)
    with pytest.raises(InputError, match="no study 'mode' has been run; did you mean 'made'"):
        extend_study("mode", options=options, seeds=3)


def test_results_are_found_by_name(tmp_path: Path) -> None:
    make(tmp_path / "studies" / "made", "end").close()
    results = load_results("made", tmp_path)
    assert results.study.name == "made"
    with pytest.raises(InputError, match="no study 'maid' has been run; did you mean 'made'"):
        load_results("maid", tmp_path)


def test_unfinished_study_has_no_results(tmp_path: Path) -> None:
    make(tmp_path / "studies" / "made", "search").close()
    with pytest.raises(InputError, match="study 'made' has not finished"):
        load_results("made", tmp_path)


def test_comparing_needs_two_studies(tmp_path: Path) -> None:
    make(tmp_path / "studies" / "made", "end").close()
    with pytest.raises(InputError, match="two"):
        compare_studies("made", storage=tmp_path)


def test_epochs_and_seeds_take_the_place_of_what_the_study_has() -> None:
    study = get_study("learnable_bucketing", train_blocks=500, epochs=1, seed_list=[42, 123])
    assert (study.epochs, "max_steps" in study.defaults, study.seeds) == (1, False, 2)
    assert get_study("texts", grid={}).grid == {}


def test_counts_never_shrink(tmp_path: Path) -> None:
    make(tmp_path / "studies" / "made", "end").close()
    with pytest.raises(InputError, match="study 'made': "):
        extend_study("made", options=Options(storage=tmp_path), seeds=1)


def test_study_that_was_run_keeps_its_declared_looks(tmp_path: Path) -> None:
    store = make(tmp_path / "studies" / "made", "end", looks=[2, 4])
    store.close()
    again = _checked(replace(store.study, looks=(), trials=1), Options(storage=tmp_path))
    assert (again.looks, again.trials) == ((2, 4), store.study.trials)


def test_study_starts_from_the_winners_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "studies" / "made", "end").close()
    study = get_study("learnable_bucketing", name="next", start=[{"from": "made"}])
    checked = _checked(study, Options(storage=tmp_path))
    assert {entry["from"] for entry in checked.start} == {"made"}
    assert [key for entry in checked.start for key in entry if key == "arms"]
    assert "note: start from 'made': " in capsys.readouterr().err


def test_results_of_a_grid_are_those_of_its_cells(tmp_path: Path) -> None:
    folder = tmp_path / "studies" / "texts"
    folder.mkdir(parents=True)
    write_json(folder / "study.json", get_study("texts").to_dict(), STUDY)
    with pytest.raises(InputError, match=r"is a grid; name one of its cells: texts\.pydocs, "):
        load_results("texts", tmp_path)
