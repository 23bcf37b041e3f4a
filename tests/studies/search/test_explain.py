"""The explanation of a winner: its runs, what follows from their losses, and refused requests."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from campaigns import MATCHED, VALUES, Folder, report, train
from scipy import stats

from hylorada import InputError
from hylorada.runtime.checksums import digest
from studies.analysis.progress import resume_command, stage_lines
from studies.analysis.results import gather
from studies.files.folder_files import write_json
from studies.learnable_bucketing import STUDY
from studies.process.options import Options
from studies.reporting.explanation_tables import neighbours_sheet, path_sheet, sentences
from studies.reporting.figures.explanation_plot import explained
from studies.reporting.html_report import write_html
from studies.runner.inputs import prepare
from studies.search.campaign import Campaign
from studies.search.explain import (
    Plan,
    Request,
    explanation_of,
    make_plan,
    plan_records,
    refuse_seen_rows,
)
from studies.search.ledger import Ledger
from studies.spec.common_values import rerun_seeds
from studies.spec.study import Study
from studies.trials.explanations import (
    EXPLAIN_FILE,
    Explanation,
    read_explanations,
    write_explanation,
)
from studies.trials.messages import Job

_T = 41  # tokens a block; 40 are predicted
_BLOCKS = 30
_SPACE = {
    "num_landmarks": {"choice": [4, 8, 16]},
    "num_buckets": {"choice": [4, 8, 16]},
    "bucket_spacing": {"choice": ["log", "linear"]},
}
SETTINGS: dict[str, Any] = MATCHED | {
    "block_size": _T,
    "trials": 4,
    "comparisons": [["fixed", "baseline"]],
    "defaults": {"max_steps": 8, "num_landmarks": 8, "num_buckets": 8},
    "arms": {"baseline": {"config": {"landmarks": False}}, "fixed": {"space": _SPACE}},
}
Loss = Callable[[Job], Any]


def finish(folder: Folder, **changes: Any) -> Ledger:
    """Run a study whose winner has 16 landmarks, and return its ledger."""
    ledger = folder.open(**SETTINGS | changes)
    train_all(
        Campaign(ledger),
        lambda job: 3.0 - job.adapter["num_landmarks"] / 10 + job.adapter["num_buckets"] / 99,
    )
    return ledger


def train_all(campaign: Campaign, loss: Loss) -> list[str]:
    """Run every job to its end, with losses per token that may differ from block to block."""
    names = []
    while given := campaign.next_job():
        job, seen = given
        names.append(job.name)
        for step in (s for s in job.report_steps if s > seen):
            campaign.on_report(job.name, _report(job, step, loss(job)))
    return names


def _report(job: Job, step: int, loss: Any) -> Any:
    blocks = np.broadcast_to(np.asarray(loss, dtype=float), (_BLOCKS,))
    mean = float(blocks.mean())
    if step < 8 or not job.last_split:
        return report(step, mean)
    path = Path(job.folder) / f"{job.last_split}_block_nll.npy"
    np.save(path, np.repeat(blocks[:, None] * (_T - 1) / 10, 10, axis=1))
    more = {f"{job.last_split}/nll": mean}
    return report(
        8,
        mean,
        more,
        block_nll=str(path),
        digests={path.name: digest(path.read_bytes())},
        parameters=7,
    )


def plan_of(ledger: Ledger, **request: Any) -> Plan:
    return make_plan(ledger.store.study, ledger.store.records, Request(**request))


def explain(ledger: Ledger, loss: Loss, **request: Any) -> Explanation:
    plan = plan_of(ledger, **request)
    train_all(Campaign(ledger, plan_records(ledger.store.study, plan)), loss)
    return explanation_of(plan, ledger.store, unseen=True)


def noise(job: Job) -> Any:
    """Return noise of the text, shared by all runs, and of the seed, shared by its runs."""
    return np.random.default_rng(0).normal(3, 0.3, _BLOCKS) + 0.02 * int(job.name[-2:])


def by_landmarks(job: Job) -> Any:
    """Return losses in which 4 more landmarks multiply PPL by e^-0.01 and nothing else matters."""
    return noise(job) - 0.01 * job.adapter["num_landmarks"] / 4


def test_plan_leads_from_the_defaults_to_the_winner_at_its_common_values(folder: Folder) -> None:
    ledger = finish(folder)
    plan = plan_of(ledger)
    winner = plan.winner.params(ledger.store.study)
    assert (plan.winner.record.arm, plan.goal) == ("fixed", winner)
    assert plan.start == {
        "learning_rate": winner["learning_rate"],
        "num_landmarks": 8,
        "num_buckets": 8,
        "bucket_spacing": "log",
    }
    changed = [n for n in _SPACE if winner[n] != plan.start[n]]
    assert ([m.parameter for m in plan.path], plan.unchanged) == (
        changed,
        tuple(n for n in _SPACE if n not in changed),
    )
    assert changed  # else these tests say nothing
    assert {m.end["learning_rate"] for m in (*plan.path, *plan.neighbours)} == {
        winner["learning_rate"]
    }


def test_all_configurations_share_seeds_that_no_other_stage_has(folder: Folder) -> None:
    ledger = finish(folder)
    plan = plan_of(ledger)
    records = plan_records(ledger.store.study, plan)
    assert len(records) == 3 * len(plan.points())
    assert len({r.name for r in records}) == len(records)
    seeds = [rerun_seeds(ledger.store.study, "explain", 0, number) for number in range(3)]
    assert {(r.number, r.seed, r.data_seed) for r in records} == {
        (n, *s) for n, s in enumerate(seeds)
    }
    assert not {r.seed for r in records} & {r.seed for r in ledger.store.records.values()}
    # Seed by seed, so that an interrupted stage has whole pairs.
    assert [r.number for r in records] == sorted(r.number for r in records)


def test_explain_runs_read_their_own_blocks_and_count_nowhere_else(folder: Folder) -> None:
    ledger = finish(folder)
    store = ledger.store
    before = gather(store, None, {}, [])
    explain(ledger, by_landmarks)
    runs = store.of("explain", "fixed")
    assert {store.job(r).last_split for r in runs} == {"explain"}
    assert {r.state for r in runs} == {"complete"}
    assert gather(store, None, {}, [], before) == before
    again = folder.open(**SETTINGS)
    assert Campaign(again).remaining() == 0
    assert len(again.store.of("explain", "fixed")) == len(runs)


@pytest.mark.parametrize(
    ("eval_blocks", "blocks", "unseen"),
    [
        (8, 40, True),
        (171, 20, True),
        (172, 40, False),
        (None, 40, False),
    ],  # of 191 blocks; 19 left are too few
)
def test_explain_runs_are_evaluated_on_blocks_that_the_search_has_not_seen(
    eval_blocks: int | None, blocks: int, unseen: bool, toy_model: str, tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {n} of a text\n" for n in range(6200)))
    changes = {
        "model": toy_model,
        "data": str(text),
        "block_size": 32,
        "eval_blocks": eval_blocks,
        "test_blocks": 40,
    }
    defaults = {**STUDY["defaults"], "num_buckets": 8}
    study = Study.from_dict(
        {**STUDY, **changes, "defaults": defaults, "arms": {"a": {"space": {}}}, "comparisons": []}
    )
    material = prepare(study, Options(storage=tmp_path / "runs"))
    held, seen = (
        set(map(tuple, material.blocks[s].input_ids.tolist())) for s in ("explain", "validation")
    )
    assert (len(held), not held & seen) == (blocks, unseen)
    assert material.unseen == ({"explain"} if unseen else set())
    assert material.inputs().keys() == {
        f"{n}_fingerprint" for n in ("model", "model_config", "data", "train", "validation", "test")
    }


@pytest.mark.parametrize(("eval_blocks", "unseen"), [(8, True), (40, False)])
def test_padded_arm_is_explained_on_rows_that_the_search_has_not_read(
    eval_blocks: int, unseen: bool, toy_model: str, tmp_path: Path
) -> None:
    """The validation split has some 50 paragraphs, each with several blocks."""
    text = tmp_path / "text.txt"
    long = [" ".join(f"line {n} of {i}" for n in range(90)) for i in range(500)]
    text.write_text("\n\n".join(long))
    changes: dict[str, Any] = {"model": toy_model, "data": str(text), "block_size": 32}
    changes |= {"eval_blocks": eval_blocks}
    arms = {"a": {"config": {"replication_pads": True}}}
    changes |= {"arms": arms, "comparisons": [], "test_blocks": 30}
    study = Study.from_dict({**STUDY, **changes})
    material = prepare(study, Options(storage=tmp_path / "runs"))
    held, seen = (
        set(map(tuple, material.blocks[s].input_ids.tolist()))
        for s in ("explain_padded", "validation_padded")
    )
    assert bool(held & seen) is not unseen
    assert material.unseen == ({"explain", "explain_padded"} if unseen else {"explain"})


def test_padded_rows_that_the_search_has_read_are_refused(folder: Folder) -> None:
    winner = plan_of(finish(folder)).winner
    refuse_seen_rows(winner, set())  # blocks of text are taken where there are no others
    winner.record.training = {**winner.record.training, "replication_pads": True}
    refuse_seen_rows(winner, {"explain_padded"})
    with pytest.raises(InputError, match="arm 'fixed' is evaluated on padded rows"):
        refuse_seen_rows(winner, {"explain"})


def test_status_tells_how_far_an_explanation_is_and_how_to_go_on(folder: Folder) -> None:
    ledger = finish(folder)
    store = ledger.store
    assert [line for line in stage_lines(store.study, store.records) if "explain" in line] == []
    campaign = Campaign(ledger, plan_records(store.study, plan_of(ledger)))
    jobs = [campaign.next_job() or pytest.fail("no job") for _ in range(3)]
    campaign.on_report(jobs[0][0].name, _report(jobs[0][0], 8, 3.0))
    assert stage_lines(store.study, store.records)[-1] == "explain: 1 of 3 started runs ended"
    assert resume_command("try", store.records) == [
        "hylorada",
        "explain",
        "try",
        "--arm",
        "fixed",
        "--search",
        "0",
    ]
    assert folder.panel.said[-1] == f"explain of {campaign.remaining() + 3}"


def test_each_step_has_its_change_and_students_interval(folder: Folder) -> None:
    """All runs share the blocks, so the interval is Student's t over three seeds."""
    shifts = [0.002, -0.001, 0.005]

    def loss(job: Job) -> Any:
        return by_landmarks(job) + (job.adapter["num_landmarks"] == 16) * shifts[int(job.name[-1])]

    explanation = explain(finish(folder), loss)
    (step,) = [x for x in explanation.path if x.parameter == "num_landmarks"]
    assert (step.before, step.after) == (8, 16)
    differences = [-0.02 + s for s in shifts]
    mean, error = np.mean(differences), np.std(differences, ddof=1) / math.sqrt(3)
    half = stats.t(2).ppf(0.975) * error
    expected = [100 * math.expm1(x) for x in (mean, mean - half, mean + half)]
    assert step.change is not None
    assert [step.change.change, step.change.low, step.change.high] == pytest.approx(
        expected, rel=1e-6
    )
    assert step.by_seed == pytest.approx([100 * math.expm1(d) for d in differences])


def test_parameters_that_matter_are_told_from_those_that_do_not(folder: Folder) -> None:
    explanation = explain(finish(folder), by_landmarks)
    outcomes = {x.parameter: x.change and x.change.outcome for x in explanation.path}
    assert outcomes.pop("num_landmarks") == "better"
    assert set(outcomes.values()) <= {"equivalent"}
    assert sentences(explanation)[1].startswith(
        "On the path from the defaults, num_landmarks (\N{MINUS SIGN}1.98 %) matters"
    )
    assert (explanation.blocks, explanation.tokens, explanation.seeds) == (_BLOCKS, _BLOCKS * 40, 3)
    assert explanation.default_ppl is not None
    assert explanation.winner_ppl == pytest.approx(explanation.default_ppl * math.exp(-0.02))


def test_sentences_are_whole_where_nothing_matters(folder: Folder) -> None:
    explanation = explain(finish(folder), noise)
    assert sentences(explanation)[1:3] == [
        "On the path from the defaults, num_landmarks, num_buckets and bucket_spacing do not "
        "matter (under 0.5 %).",
        "One step away from the winner, no neighbour is certainly better by more than 0.5 %.",
    ]


def test_sentences_name_a_neighbour_that_is_better(folder: Folder) -> None:
    explanation = explain(
        finish(folder), lambda job: by_landmarks(job) - 0.03 * (job.adapter["num_landmarks"] == 8)
    )
    (better,) = [x for x in explanation.neighbours if x.change and x.change.outcome == "better"]
    assert (better.parameter, better.before, better.after) == ("num_landmarks", 16, 8)
    assert "better: num_landmarks 16 \N{RIGHTWARDS ARROW} 8" in " ".join(sentences(explanation))


def test_a_broken_off_explanation_trains_only_what_is_left(folder: Folder) -> None:
    ledger = finish(folder)
    records = plan_records(ledger.store.study, plan_of(ledger))
    campaign = Campaign(ledger, records)
    for step in (8, 2):
        job, _ = campaign.next_job() or pytest.fail("no job")
        campaign.on_report(job.name, _report(job, step, 3.0))
    again = folder.open(**SETTINGS)
    campaign = Campaign(again, plan_records(again.store.study, plan_of(again)))
    assert campaign.remaining() == len(records) - 1
    assert folder.panel.said == [f"explain of {len(records)}"]
    job, seen = campaign.next_job() or pytest.fail("no job")
    assert (job.name, seen) == (records[1].name, 2)


def test_a_study_that_is_run_again_ends_what_an_explanation_has_begun(folder: Folder) -> None:
    ledger = finish(folder)
    campaign = Campaign(ledger, plan_records(ledger.store.study, plan_of(ledger)))
    job, _ = campaign.next_job() or pytest.fail("no job")
    again = folder.open(**SETTINGS)
    assert train_all(Campaign(again), by_landmarks) == [job.name]
    assert Campaign(again).remaining() == 0


def test_a_point_that_diverges_is_told(folder: Folder) -> None:
    ledger = finish(folder)
    plan = plan_of(ledger)
    campaign = Campaign(ledger, plan_records(ledger.store.study, plan))
    while given := campaign.next_job():
        job, _ = given
        lost = (
            job.adapter["num_landmarks"] == 8
            and job.adapter["num_buckets"] == plan.goal["num_buckets"]
        )
        gone = report(3, diverged="non-finite loss at step 3", done=True)
        campaign.on_report(job.name, gone if lost else _report(job, 8, by_landmarks(job)))
    explanation = explanation_of(plan, ledger.store, unseen=True)
    (left,) = [x for x in explanation.neighbours if x.after == 8 and x.parameter == "num_landmarks"]
    assert left.change is None
    assert left.note == "3 of 6 runs diverged: non-finite loss at step 3"
    assert left.note in [row[-1] for row in neighbours_sheet(explanation).rows]


def test_explanations_survive_being_stored_and_damage_is_found(folder: Folder) -> None:
    ledger = finish(folder)
    explanation = explain(ledger, by_landmarks)
    place = ledger.store.folder
    assert read_explanations(place) == ()
    write_explanation(place, explanation)
    assert read_explanations(place) == (explanation,)
    write_explanation(place, explanation)
    assert len(read_explanations(place)) == 1
    path = place / EXPLAIN_FILE
    path.write_text(path.read_text().replace('"seeds": 3', '"seeds": 4'))
    with pytest.raises(
        InputError,
        match=r"explain\.json is damaged .*; delete it: `hylorada explain try --storage ",
    ):
        folder.open(**SETTINGS)


def test_report_shows_the_explanation_and_says_when_it_is_old(folder: Folder) -> None:
    ledger = finish(folder)
    store = ledger.store
    write_explanation(store.folder, explain(ledger, by_landmarks))
    results, page = gather(store, None, {}, []), store.folder / "report.html"
    write_html(results, store.records, store.study, page)
    text = page.read_text()
    assert "Why the winner of fixed differs from the defaults" in text
    assert "run `hylorada explain` again" not in text
    (explanation,) = read_explanations(store.folder)
    values = json.loads((store.folder / EXPLAIN_FILE).read_text())
    values.pop("seal")
    values["explanations"][0]["trial"] = "fixed-0099"
    write_json(store.folder / EXPLAIN_FILE, values, f"{store.id}/explain")
    write_html(results, store.records, store.study, page)
    assert "The search has another winner since then" in page.read_text()
    assert explained(explanation, "#2a6fb0")


def test_tables_fit_a_terminal_of_100_columns(folder: Folder) -> None:
    explanation = explain(finish(folder), by_landmarks)
    for sheet in (path_sheet(explanation), neighbours_sheet(explanation)):
        widths = [
            max(len(row[i]) for row in (sheet.columns, *sheet.rows))
            for i in range(len(sheet.columns))
        ]
        assert sum(widths) + 2 * (len(widths) - 1) <= 90


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ({"arm": "fixd"}, "study 'try' has no arm 'fixd'; did you mean 'fixed'"),
        ({"arm": ""}, "study 'try' has no arm ''"),
        (
            {"arm": "baseline"},
            "arm 'baseline' searches no parameter of its own.*arms that do: fixed",
        ),
        ({"search": 1}, "search must be 0 to 0, got 1"),
        ({"search": -1}, "search must be 0 to 0, got -1"),
        ({"seeds": 0}, "seeds must be 1 to 1000, got 0"),
    ],
)
def test_what_cannot_be_explained_is_refused(
    folder: Folder, request_: dict[str, Any], problem: str
) -> None:
    ledger = folder.open(**SETTINGS)  # before anything else is looked at
    with pytest.raises(InputError, match=problem):
        plan_of(ledger, **request_)


@pytest.mark.parametrize("left", [1, 5, 20])
def test_a_study_that_has_not_finished_is_refused(folder: Folder, left: int) -> None:
    campaign = Campaign(folder.open(**SETTINGS))
    for _ in range(campaign.remaining() - left):
        job, _ = campaign.next_job() or pytest.fail("no job")
        campaign.on_report(job.name, _report(job, 8, 3.0))
    ledger = folder.open(**SETTINGS)
    with pytest.raises(
        InputError, match="study 'try' has not finished; run it to its end: `hylorada run try`"
    ):
        plan_of(ledger)


def test_an_arm_without_a_winner_is_refused(folder: Folder) -> None:
    ledger = folder.open(**SETTINGS)
    campaign = Campaign(ledger)
    while given := campaign.next_job():
        campaign.on_failure(given[0].name, "crashed", "Traceback")
    with pytest.raises(InputError, match="arm 'fixed' has no winner in search 0 of study 'try'"):
        plan_of(ledger)


def test_a_study_that_is_not_matched_explains_all_that_an_arm_searches(folder: Folder) -> None:
    ledger = folder.open(block_size=_T)
    train(Campaign(ledger), lambda name: 4.0 - int(name[-1]))
    plan = plan_of(ledger, arm="baseline")
    assert [m.parameter for m in plan.path] == ["learning_rate"]
    assert (plan.start["learning_rate"], plan.winner.block) == (0.002, None)
    assert {m.end["learning_rate"] for m in plan.neighbours} != {plan.goal["learning_rate"]}
    names = [r.name for r in plan_records(ledger.store.study, plan)]
    assert all(name.startswith("baseline-0001-explain-") for name in names)
    train_all(Campaign(ledger, plan_records(ledger.store.study, plan)), lambda _: 3.0)
    folder.open(block_size=_T)  # and reads them back
    assert VALUES["seeds"] == 2
    assert len({r.number for r in folder.ledger.store.of("explain", "baseline")}) == 3
