"""A study with a landmark design of the user's own: killed, resumed, changed, exported."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from designs import MY_DESIGN
from faults import assert_same, outcome
from study_runs import Command, FinishedStudy, run_cli, wait_until

pytestmark = [pytest.mark.timeout(600), pytest.mark.faults]

_STUDY: dict[str, Any] = {
    "definition": "own",
    "name": "own",
    "block_size": 32,
    "searches": 1,
    "trials": 2,
    "seeds": 1,
    "eval_every": 2,
    "grace_steps": 0,
    "sampler": "random",
    "eval_blocks": 4,
    "test_blocks": 8,
    "defaults": {"max_steps": 8, "num_landmarks": 2, "position_bias": False},
    "arms": {
        "global": {"config": {"landmark_design": "global"}},
        # Both designs of the file sit in one pack with the built-in one.
        "own": {
            "space": {"landmark_design": {"choice": ["my_design.py:Gated", "my_design.py:Pooled"]}}
        },
    },
    "comparisons": [["own", "global"]],
}


def command(place: Path, model: str, storage: str) -> list[str]:
    """Return a command that names the design by its file in the working folder."""
    (place / "own.yaml").write_text(yaml.safe_dump(_STUDY))
    return [
        *("run", f"--config={place / 'own.yaml'}", f"--model={model}"),
        *(f"--storage={place / storage}", "--seats=2"),
    ]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that has the user's file, as the working folder."""
    folder = tmp_path_factory.mktemp("mine")
    shutil.copy(MY_DESIGN, folder)
    return folder


@pytest.fixture(autouse=True)
def _here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


@pytest.fixture(scope="module")
def own(place: Path, toy_model: str) -> FinishedStudy:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        done = run_cli(*command(place, toy_model, "runs"))
    assert done.code == 0, done.err
    return FinishedStudy(place / "runs", "own", done)


def test_arms_are_compared(own: FinishedStudy) -> None:
    assert "hylorada: note: the study runs my_design.py (source " in own.done.err
    results = json.loads((own.folder / "results.json").read_text())
    lora = 2 * 4 * 2 * 8 * 32  # layers, projections, factors, rank, hidden size of the toy
    sizes = {a["arm"]: a["parameters"] - lora for a in results["arms"]}
    assert sizes == {"global": 2 * 32 * 2 + 1, "own": 2 * 32 * 2 + 1}
    stored = json.loads((own.folder / "study.json").read_text())
    assert stored["designs"] == {"my_design.py": MY_DESIGN.read_text(encoding="utf-8")}


def test_killed_study_ends_as_if_unbroken(own: FinishedStudy, place: Path, toy_model: str) -> None:
    """It resumes from its own copy of the source, on a machine without the file."""
    arguments = command(place, toy_model, "killed")
    process = Command(*arguments)
    wait_until(lambda: any(place.glob("killed/**/reports.jsonl")) or process.poll() is not None)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not process.pids(), 120)  # Ray ends when it sees that its driver has died
    (place / "my_design.py").rename(place / "away.py")
    again = run_cli(
        "run", "own", *(a for a in arguments[1:] if not a.startswith("--config")), "--name=own"
    )
    (place / "away.py").rename(place / "my_design.py")
    assert again.code == 0, again.err
    assert_same(outcome(place / "killed", "own"), outcome(own.storage, "own"), exact=False)


def test_changed_class_is_refused(own: FinishedStudy, place: Path, toy_model: str) -> None:
    before = (own.folder / "results.json").read_bytes()
    source = (place / "my_design.py").read_text()
    (place / "my_design.py").write_text(source.replace("torch.sigmoid", "torch.tanh"))
    done = run_cli(*command(place, toy_model, "runs"))
    (place / "my_design.py").write_text(source)
    assert done.code == 2
    assert "designs.my_design.py was 'source " in done.err
    assert (own.folder / "results.json").read_bytes() == before


def test_winner_is_exported_with_its_code_which_runs_only_when_named(
    own: FinishedStudy, place: Path
) -> None:
    output = place / "winner"
    where = f"--storage={own.storage}"
    done = run_cli("export", "own", "--arm=own", f"--output={output}", where)
    assert done.code == 0, done.err
    assert (output / "my_design.py").read_bytes() == MY_DESIGN.read_bytes()
    assert "load_landmark_design('my_design.py:" in (output / "README.md").read_text()
    refused = run_cli("evaluate", f"--adapter={output}")
    assert refused.code == 2
    assert "is code that hylorada runs only if you ask for it" in refused.err
    design = json.loads((output / "hylorada_config.json").read_text())["config"]["landmark_design"]
    named = f"--landmark-design={output}/{design}"
    measured = run_cli("evaluate", f"--adapter={output}", named, "--json")
    assert measured.code == 0, measured.err
    expected = json.loads((output / "export.json").read_text())["test_ppl"]
    assert json.loads(measured.out)["ppl"] == pytest.approx(expected, rel=1e-5)


def test_study_file_brings_no_code(own: FinishedStudy, place: Path) -> None:
    shown = run_cli("show", "own", f"--storage={own.storage}")
    assert "a study file can't hold code, so my_design.py is left out" in shown.err
    values = yaml.safe_load(shown.out)
    assert values["designs"] == {}
    values["designs"] = {"my_design.py": "pass"}
    (place / "shown.yaml").write_text(yaml.safe_dump(values))
    done = run_cli("run", f"--config={place / 'shown.yaml'}", f"--storage={place / 'none'}")
    assert done.code == 2
    assert "designs holds code, which a study file can't bring" in done.err


def test_kit_holds_the_code(own: FinishedStudy, place: Path) -> None:
    done = run_cli("export", "own", f"--figures={place / 'kit'}", f"--storage={own.storage}")
    assert done.code == 0, done.err
    assert (place / "kit/designs/my_design.py").read_bytes() == MY_DESIGN.read_bytes()
    assert "`designs/my_design.py` defines them" in (place / "kit/methods.md").read_text()


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import no_such_package\nclass Mine: pass\n", "ModuleNotFoundError: No module named 'no_"),
        ("class Mine: pass\n", "Mine must be a subclass of CustomLandmark"),
    ],
)
def test_file_that_cannot_run_is_refused_before_anything_is_written(
    source: str, problem: str, toy_model: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(source)
    arms = {"mine": {"config": {"landmark_design": f"{tmp_path}/mine.py:Mine"}}, "base": {}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**_STUDY, "arms": arms, "comparisons": []}))
    done = run_cli(
        *("run", f"--config={tmp_path / 'mine.yaml'}", f"--model={toy_model}"),
        f"--storage={tmp_path / 'runs'}",
    )
    assert (done.code, "Traceback" in done.err) == (2, False), done.err
    assert problem in done.err
    assert not (tmp_path / "runs").exists()
