"""What MLflow's page shows of a study and its trials: inputs, tags, answer, first charts."""

import json
from pathlib import Path

import pytest
from mlflow.entities import Run
from mlflow_records import EXPERIMENT, Mlflow, count_writes, make_record, make_report

from studies.tracking.runs import StudyRuns

# Raised by MLflow itself.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")


def test_provenance_is_one_artifact_and_few_tags(store: Mlflow, tmp_path: Path) -> None:
    runs = store.runs("provenance")
    versions = {f"version.{i}": str(i) for i in range(30)}
    store.client.set_tag(runs.parent, "version.7", "7")  # as earlier versions did
    provenance = {"command": "hylorada run x", "git_commit": "a" * 40, **versions, "n": None}
    runs.describe(provenance, {})
    tags = store.client.get_run(runs.parent).data.tags
    assert tags["mlflow.source.git.commit"] == "a" * 40
    assert tags["hylorada.command"] == "hylorada run x"
    assert [key for key in tags if key.startswith("version.")] == []
    path = store.client.download_artifacts(runs.parent, "provenance.json", str(tmp_path))
    assert json.loads(Path(path).read_text()) == provenance


def test_text_and_base_are_inputs_of_the_runs_that_read_them(store: Mlflow) -> None:
    provenance = {"model": "tiny", "model_fingerprint": "f" * 64, "data": "pydocs"}
    provenance |= {f"{s}_fingerprint": s for s in ("train", "validation", "test")}
    runs = store.runs("inputs")
    for _ in range(2):
        runs.describe(provenance, {})
    runs.update(make_record())
    runs.update(make_record("learnable-0000-confirm-00", stage="confirm", winner="learnable-0000"))
    read = {name: _inputs(run) for name, run in store.children(runs).items()}
    text = {"train": "pydocs", "validation": "pydocs", "test": "pydocs"}
    assert _inputs(store.client.get_run(runs.parent)) == {**text, "base": "tiny"}
    assert read["learnable-0000-confirm-00"] == text
    assert read["learnable-0000"] == {"train": "pydocs", "validation": "pydocs"}


def _inputs(run: Run) -> dict[str, str]:
    """Return the names of a run's inputs by context, each of which is there once."""
    assert run.inputs is not None
    inputs = run.inputs.dataset_inputs
    names = {i.tags[0].value: i.dataset.name for i in inputs}
    assert len(names) == len(inputs)
    return names


def test_winner_and_the_runs_that_repeat_it_have_one_tag(store: Mlflow) -> None:
    runs = store.runs("winner")
    names = ["learnable-0000", "learnable-0001"]
    for name in names:
        runs.update(make_record(name, "complete", reports=[make_report(2)]))
    repeated = make_record("learnable-0001-confirm-00", stage="confirm", winner=names[1], factor=2)
    runs.update(repeated)
    tags = {name: run.data.tags for name, run in store.children(runs).items()}
    assert "hylorada.winner" not in tags[names[0]]
    assert tags[names[1]]["hylorada.winner"] == tags[repeated.name]["hylorada.winner"] == names[1]
    assert tags[repeated.name]["hylorada.factor"] == "2"
    again = store.runs("winner")
    writes = count_writes(again)
    again.update(make_record(names[1], "complete", reports=[make_report(2)]))
    assert writes == []


def test_runs_of_an_earlier_version_are_described_anew(store: Mlflow) -> None:
    record = make_record(state="complete", reports=[make_report(2)])
    runs = store.runs("earlier")
    runs.update(record)
    run = store.children(runs)[record.name].info.run_id
    store.client.delete_tag(run, "hylorada.form")
    store.client.delete_tag(run, "hylorada.seed")
    store.client.log_param(run, "num_buckets", 4)  # its name in that version
    again = store.runs("earlier")
    again.update(record)
    data = store.children(again)[record.name].data
    assert (data.tags["hylorada.seed"], data.params["num_buckets"]) == ("5", "4")
    assert not [key for key in data.tags if key.startswith("resumed.")]
    store.check_whole(again, [record])


def test_experiment_opens_on_training_and_its_first_chart_is_the_ppl(store: Mlflow) -> None:
    runs = store.runs("kind")
    runs.describe({"model": "tiny"}, {})
    experiment = store.client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    assert experiment.tags["mlflow.experiment.primaryMetric.name"] == "eval/ppl"


def test_answer_is_the_description_unless_a_user_wrote_one(store: Mlflow) -> None:
    runs = store.runs("answer")
    runs.describe({"model": "tiny", "data": "pydocs"}, {})
    note = "mlflow.note.content"
    assert "A study of tiny on pydocs. Its answer will appear here" in _tags(store, runs)[note]
    runs.finish({}, {}, 1, "**Undecided.**\n\n| arm |")
    text = _tags(store, runs)[note]
    assert text.startswith("**Undecided.**\n\n[the study's run](#/experiments/")
    assert text.endswith("\n\n| arm |")
    store.client.set_tag(runs.parent, note, "my own words")
    runs.finish({}, {}, 1, "**Better.**")
    assert _tags(store, runs)[note] == "my own words"
    experiment = store.client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    assert experiment.tags[note].startswith("**Better.**")


def _tags(store: Mlflow, runs: StudyRuns) -> dict[str, str]:
    return dict(store.client.get_run(runs.parent).data.tags)
