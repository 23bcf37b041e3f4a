"""A whole study through the real command line: its output, MLflow, Optuna and the study folder."""

import html
import json
import math
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import optuna
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from study_runs import SMALL, FinishedStudy, read_trials, run_cli

from hylorada import HyLoRADAConfig
from studies.analysis.results import read_results
from studies.statistics.change import interval_text
from studies.trials.records import read_record

pytestmark = pytest.mark.timeout(600)

STATUS = {"complete": "FINISHED", "pruned": "KILLED", "diverged": "FAILED", "failed": "FAILED"}


def runs(study: FinishedStudy) -> tuple[Run, dict[str, Run]]:
    """Return the parent run, and its children by name."""
    client = MlflowClient(study.uri)
    experiment = client.get_experiment_by_name(study.name)
    assert experiment is not None
    all_runs = client.search_runs([experiment.experiment_id], max_results=1000)
    parents = [r for r in all_runs if "mlflow.parentRunId" not in r.data.tags]
    children = {
        r.data.tags["mlflow.runName"]: r for r in all_runs if "mlflow.parentRunId" in r.data.tags
    }
    assert len(parents) == 1
    assert len(children) == len(all_runs) - 1
    return parents[0], children


def test_run_prints_table_and_verdict(finished: FinishedStudy) -> None:
    results = read_results(finished.folder / "results.json")
    for arm in results.arms:
        assert arm.arm in finished.done.out
        assert f"{arm.ppl:,.0f}"[:3] in finished.done.out
    assert " ".join(results.verdict.split()) in " ".join(finished.done.out.split())
    assert "Traceback" not in finished.done.err


def test_report_says_why_it_came_out_so(finished: FinishedStudy) -> None:
    page = (finished.folder / "report.html").read_text("utf-8")
    for title in (
        "Tuning",
        "Which parameters matter",
        "Boundaries of learnable",
        "Landmarks of fixed",
    ):
        assert f"<h3>{title}</h3>" in page
    assert "Landmarks of baseline" not in page


def test_run_decides_automatic_bucketing(finished: FinishedStudy) -> None:
    results = read_results(finished.folder / "results.json")
    main = next(c for c in results.comparisons if (c.arm, c.reference) == ("learnable", "fixed"))
    config = HyLoRADAConfig(landmark_bucketing="auto", bucketing_study=str(finished.folder))
    assert config.resolved().landmark_bucketing == (
        "learnable" if main.p_holm < 0.05 and main.high < 0 else "fixed"
    )


def test_run_gives_each_arm_the_same_budget(finished: FinishedStudy) -> None:
    trials = read_trials(finished.folder)
    for stage, count in (("search", 4), ("confirm", 2)):
        by_arm = [
            sum(t["arm"] == a and t["stage"] == stage for t in trials)
            for a in ("baseline", "fixed", "learnable")
        ]
        assert by_arm == [count] * 3
    seeds = {
        (t["arm"], t["number"]): (t["seed"], t["data_seed"])
        for t in trials
        if t["stage"] == "confirm"
    }
    assert (
        seeds["baseline", 0] == seeds["fixed", 0] == seeds["learnable", 0] != seeds["learnable", 1]
    )


def test_run_mlflow_statuses_are_truthful(finished: FinishedStudy) -> None:
    parent, children = runs(finished)
    assert parent.info.status == "FINISHED"
    assert children.keys() == {t["name"] for t in read_trials(finished.folder)}
    for trial in read_trials(finished.folder):
        child = children[trial["name"]]
        assert child.info.status == STATUS[trial["state"]]
        assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert {c.info.status for c in children.values()} >= {"FINISHED", "KILLED"}


def test_run_mlflow_holds_ppl_and_boundaries_as_one_picture(finished: FinishedStudy) -> None:
    client = MlflowClient(finished.uri)
    _, children = runs(finished)
    for name, child in children.items():
        record = read_record(finished.folder / "trials" / name / "trial.json")
        series = client.get_metric_history(child.info.run_id, "eval/ppl")
        assert [m.step for m in series] == [r.step for r in record.reports]
        assert [m.value for m in series] == [
            math.exp(r.metrics["eval/nll"]) for r in record.reports
        ]
        assert not [m for m in child.data.metrics if m.startswith("boundary/")]
        files = [file.path for file in client.list_artifacts(child.info.run_id)]
        assert ("boundaries.png" in files) == (record.arm == "learnable")


def test_run_mlflow_shows_the_answer(finished: FinishedStudy) -> None:
    client = MlflowClient(finished.uri)
    parent, children = runs(finished)
    results = read_results(finished.folder / "results.json")
    note = html.unescape(parent.data.tags["mlflow.note.content"].replace("\\", ""))
    for sentence in results.verdict.split(". ")[:2]:
        assert sentence.split(";")[0] in " ".join(note.split())
    for c in results.comparisons:
        change = interval_text(c.change, c.low, c.high, " %")
        assert f"| {c.arm} vs {c.reference} | {change} |" in note
        name = f"test/change_{c.arm}_vs_{c.reference}"
        stored = [parent.data.metrics[f"{name}_{k}"] for k in ("percent", "low", "high", "p")]
        assert stored == [c.change, c.low, c.high, c.p_value]
    assert parent.inputs is not None
    contexts = [i.tags[0].value for i in parent.inputs.dataset_inputs]
    assert sorted(contexts) == ["base", "test", "train", "validation"]
    figures = [f.path for f in client.list_artifacts(parent.info.run_id, "figures")]
    assert "figures/01-comparisons.svg" in figures
    won = {n for n, c in children.items() if c.data.tags.get("hylorada.winner") == n}
    assert won == {arm.trial for arm in results.arms}


def test_run_optuna_states_are_truthful(finished: FinishedStudy) -> None:
    wanted = {"complete": "COMPLETE", "pruned": "PRUNED", "diverged": "FAIL", "failed": "FAIL"}
    storage = f"sqlite:///{finished.folder / 'optuna.db'}"
    for arm in ("baseline", "fixed", "learnable"):
        for trial in optuna.load_study(
            study_name=f"{finished.name} / {arm} / search 0", storage=storage
        ).trials:
            record = read_record(
                finished.folder / "trials" / f"{arm}-{trial.number:04d}" / "trial.json"
            )
            assert trial.state.name == wanted[record.state]
            assert trial.params == record.params
            assert trial.intermediate_values == {
                r.step: r.metrics["eval/nll"] for r in record.reports
            }


def test_run_applies_every_proposed_parameter(finished: FinishedStudy) -> None:
    _, children = runs(finished)
    for trial in read_trials(finished.folder):
        record = read_record(finished.folder / "trials" / trial["name"] / "trial.json")
        applied = record.reports[-1].applied
        proposed: dict[str, Any] = {**record.adapter, **record.training, **record.params}
        live = {k: v for k, v in proposed.items() if k in applied}
        assert live.keys() == proposed.keys()
        for key, value in live.items():
            assert (
                applied[key] == pytest.approx(value, rel=1e-12)
                if isinstance(value, float)
                else applied[key] == value
            )
        names = {k: f"method.{k}" if k in record.adapter else k for k in proposed}
        shown = children[trial["name"]].data.params
        assert {k: shown[names[k]] for k in proposed} == {k: str(v) for k, v in proposed.items()}


def test_run_results_are_recomputed_from_stored_losses(finished: FinishedStudy) -> None:
    results = read_results(finished.folder / "results.json")
    losses = {}
    for arm in results.arms:
        files = [finished.folder / "trials" / name / "test_block_nll.npy" for name in arm.runs]
        losses[arm.arm] = np.array([np.load(f).sum() for f in files]) / results.tokens
        assert arm.ppl_by_seed == pytest.approx(np.exp(losses[arm.arm]), rel=1e-12)
    for c in results.comparisons:
        difference = (losses[c.arm] - losses[c.reference]).mean()
        assert c.change == pytest.approx(100 * (math.exp(difference) - 1), rel=1e-9)
        assert c.low <= c.change <= c.high


def test_report_and_status_speak_of_the_finished_study(finished: FinishedStudy) -> None:
    report = run_cli("report", finished.name, f"--storage={finished.storage}", "--json")
    assert report.code == 0, report.err
    stored = json.loads((finished.folder / "results.json").read_text())
    del stored["seal"]
    assert json.loads(report.out) == {**stored, "partial": False}
    status = run_cli("status", finished.name, f"--storage={finished.storage}", "--json")
    assert {t["name"] for t in json.loads(status.out)} == {
        t["name"] for t in read_trials(finished.folder)
    }


def _command(finished: FinishedStudy, toy_model: str) -> tuple[str, ...]:
    place = (f"--name={finished.name}", f"--storage={finished.storage}")
    return ("run", "learnable_bucketing", f"--model={toy_model}", *place, *SMALL)


def test_finished_study_answers_from_its_folder(finished: FinishedStudy, toy_model: str) -> None:
    program = """
        import sys
        from studies.cli.main import command

        code = command()
        heavy = {"torch", "transformers", "datasets", "ray", "mlflow"}
        print(code, *sorted(heavy & set(sys.modules)), file=sys.stderr)
    """
    before = {p: p.stat().st_mtime_ns for p in finished.storage.rglob("*") if p.name != "lock"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *_command(finished, toy_model), "--json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == "0\n"
    report = run_cli("report", finished.name, f"--storage={finished.storage}", "--json")
    assert done.stdout == report.out
    after = {p: p.stat().st_mtime_ns for p in finished.storage.rglob("*") if p.name != "lock"}
    assert after == before


def test_run_again_repeats_nothing(finished: FinishedStudy, toy_model: str) -> None:
    (finished.folder / "finished").unlink()  # as in a folder of an earlier version
    before = {p: p.stat().st_mtime_ns for p in finished.folder.glob("trials/*/*")}
    again = run_cli(*_command(finished, toy_model))
    assert again.code == 0, again.err
    assert (finished.folder / "finished").exists()
    assert {p: p.stat().st_mtime_ns for p in finished.folder.glob("trials/*/*")} == before
    _, children = runs(finished)
    assert len(children) == 18
