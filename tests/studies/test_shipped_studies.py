"""The studies at the top of ``studies``: each parses, can be shown, and gives a verdict."""

import json
from pathlib import Path

import pytest
import yaml
from study_runs import run_cli

import studies
from studies.api.definitions import definitions
from studies.cli.commands import main
from studies.files.folder_files import stored_study
from studies.spec.grid import cells
from studies.spec.points import notes, start_problems
from studies.spec.study import Study

NAMES = sorted(p.stem for p in Path(studies.__path__[0]).glob("[a-z]*.py"))
_SMALL = (
    *("--trials=1", "--searches=2", "--seeds=1", "--set=profile=[1.0]"),
    *("--set=defaults.max_steps=8", "--set=eval_every=1", "--set=grace_steps=0"),
    *("--set=eval_blocks=4", "--set=test_blocks=20"),
)
_FEW_BUCKETS = "--set=defaults.num_buckets=8"  # blocks of 32 tokens hold no 32 log buckets
_SHORT = "--block-size=32"
_FEW_SEARCHED = (
    "--set=arms.fixed.space.num_buckets.choice=[4, 8]",
    "--set=arms.learnable.space.num_buckets.choice=[4, 8]",
)
_CHANGES = {
    "learnable_bucketing": (_SHORT, *_FEW_SEARCHED),
    "context_length": ("--set=grid.block_size=[32, 48]", *_FEW_SEARCHED),
    "texts": ("--set=grid.data=[pydocs, pydocstrings]", _SHORT, *_FEW_SEARCHED),
}

every_study = pytest.mark.parametrize("name", NAMES)


def test_every_module_at_the_top_is_a_study() -> None:
    known = definitions()
    assert sorted(known) == NAMES
    assert {"ablation", "bucketing", "landmarks", "learnable_bucketing"} <= set(NAMES)
    assert all(d.description and "\n" not in d.description for d in known.values())


def test_list_prints_every_study_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", f"--storage={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, definition in definitions().items():
        assert f"  {name:24} {definition.description}" in lines
    assert max(map(len, lines)) <= 120


@every_study
def test_study_is_named_after_its_module_and_fits_together(name: str) -> None:
    values = definitions()[name].values
    study = Study.from_dict(values)
    assert (study.definition, study.name) == (name, name)
    assert json.loads(json.dumps(study.to_dict())) == json.loads(json.dumps(values))
    assert (start_problems(study), notes(study)) == ([], [])
    unused = set(study.arms) - {arm for pair in study.comparisons for arm in pair}
    assert not unused or name == "replication"  # whose table compares the others


@pytest.mark.parametrize("name", ["ablation", "bucketing", "landmarks", "learnable_bucketing"])
def test_study_is_matched_and_repeats_its_search_within_the_budget(name: str) -> None:
    study = Study.from_dict(definitions()[name].values)
    runs = study.trials + study.seeds * len(study.factors)
    targets = [{**study.defaults, **a.config}.get("target_modules") for a in study.arms.values()]
    weights = sum(2 if t == ["all-linear"] else 1 for t in targets)
    assert study.searches * runs * study.max_steps * weights < 5_000
    assert study.blocks
    assert study.searches >= 3
    assert "learning_rate" in study.common.parameters


@every_study
def test_show_prints_the_study(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", name, f"--storage={tmp_path}"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert Study.from_dict(shown) == Study.from_dict(definitions()[name].values)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@every_study
def test_study_trains_and_reports(name: str, toy_model: str, tmp_path: Path) -> None:
    place = (f"--model={toy_model}", f"--storage={tmp_path}")
    changes = (*_SMALL, _FEW_BUCKETS, *_CHANGES.get(name, (_SHORT,)))
    done = run_cli("run", name, *place, *changes, timeout=900)
    assert done.code == 0, done.err
    folder = tmp_path / "studies" / name
    study = Study.from_dict(stored_study(folder / "study.json"))
    assert all(arm in done.out for arm in study.arms)
    if study.grid:
        assert (folder / "report.html").exists()
        for cell in cells(study):
            _reports_every_arm(cell.study, folder.parent / cell.study.name)
        return
    _reports_every_arm(study, folder)
    assert "These intervals hold for the arms as methods" in " ".join(done.out.split())


def _reports_every_arm(study: Study, folder: Path) -> None:
    results = json.loads((folder / "results.json").read_text())
    assert [a["arm"] for a in results["arms"]] == list(study.arms)
    pairs = [(c["arm"], c["reference"]) for c in results["comparisons"]]
    assert pairs == list(study.comparisons)
    components = [(c["arm"], c["reference"]) for c in results["components"]]
    assert components == (pairs if study.criteria else [])
    assert all(c["stable"] in ("yes", "no") for c in results["components"])
