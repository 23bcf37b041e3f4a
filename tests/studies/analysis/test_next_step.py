"""The next step of the published plan, for intervals whose scenario is plain to see."""

from dataclasses import replace
from typing import Any

import pytest

from studies.analysis.comparisons import Comparison
from studies.analysis.next_step import NextStep, decide_go, next_step
from studies.learnable_bucketing import STUDY as VALUES
from studies.spec.budgets import BUDGETS, with_steps
from studies.spec.study import Study
from studies.statistics.decision import decide, published_scale

STUDY = Study.from_dict(VALUES)


def _comparison(low: float, high: float, **changes: Any) -> Comparison:
    """Return the main comparison with an interval, decided as in a study of one comparison."""
    p = 0.001 if low * high > 0 else 0.5
    made = Comparison(
        arm="learnable",
        reference="fixed",
        seeds=3,
        change=(low + high) / 2,
        low=low,
        high=high,
        by_seed=(low, high),
        median=(low + high) / 2,
        p_value=p,
        p_holm=p,
        smallest_visible=0.5,
        decision=published_scale(low, high),
        outcome=decide(low, high, p),
        scope="method",
        searches=5,
    )
    return replace(made, **changes)


def _with_budget(budget: str, **changes: Any) -> Study:
    defaults = {k: v for k, v in VALUES["defaults"].items() if k != "max_steps"}
    open_ = {**VALUES, "eval_every": None, "grace_steps": None, "defaults": defaults, **changes}
    study = Study.from_dict({**open_, **BUDGETS[budget]})
    return with_steps(study, study.train_blocks or 0)


def _step(low: float, high: float, study: Study = STUDY, **changes: Any) -> NextStep:
    step = next_step(study, [_comparison(low, high, **changes)])
    assert step is not None
    return step


@pytest.mark.parametrize(
    ("low", "high", "scenario", "command"),
    [
        (
            -3.0,
            -2.1,
            "A",
            "run learnable_bucketing --block-size 256 --name learnable_bucketing-256",
        ),
        (-1.9, -1.1, "B", "extend learnable_bucketing --trials 8"),
        (-0.9, -0.6, "C", "explain learnable_bucketing"),
        (
            -0.4,
            -0.1,
            "D",
            "run learnable_bucketing --block-size 256 --name learnable_bucketing-256",
        ),
        (-0.4, 0.3, "D", "run learnable_bucketing --block-size 256 --name learnable_bucketing-256"),
        (-0.4, 0.9, "D", "run learnable_bucketing --block-size 256 --name learnable_bucketing-256"),
        (0.2, 0.9, "D", "run learnable_bucketing --block-size 256 --name learnable_bucketing-256"),
        (-2.5, -1.5, "A to B", "extend learnable_bucketing --searches 10"),
        (-2.5, -0.1, "A to D", "extend learnable_bucketing --searches 10"),
        (-1.5, 0.7, "B to D", "resolve learnable_bucketing --margin 0.5"),
    ],
)
def test_interval_decides_scenario_and_command(
    low: float, high: float, scenario: str, command: str
) -> None:
    step = _step(low, high)
    assert (step.scenario, step.command) == (scenario, f"hylorada {command}")
    assert (step.budget, step.go) == (None, None)
    assert step.lines() == [step.says, f"Next: hylorada {command}"]


def test_gain_that_holm_does_not_confirm_needs_more_searches() -> None:
    step = _step(-0.9, -0.6, outcome="undecided", p_holm=0.06)
    assert step.command == "hylorada resolve learnable_bucketing --margin 0.5"
    assert step.says == (
        "Scenario C of the published plan, a gain of 0.5 to 1 %, but it is not certain after "
        "Holm's adjustment."
    )


def test_scenario_is_said_with_what_the_plan_does_then() -> None:
    assert _step(-0.9, -0.6).says == (
        "Scenario C of the published plan, a gain of 0.5 to 1 %: keep fixed as the main design, "
        "and report learnable as an ablation."
    )
    assert _step(-1.5, 0.7).says == (
        "The interval leaves more than one scenario of the published plan open: B to D."
    )


@pytest.mark.parametrize(
    ("low", "high", "quick", "full"),
    [
        (-1.9, -0.6, "go", "go"),
        (-1.9, -0.2, "go", "undecided"),
        (-1.9, 0.8, "go", "undecided"),
        (-0.4, -0.1, "no-go", "no-go"),
        (-0.4, 0.9, "no-go", "no-go"),
        (-0.3, 0.3, "no-go", "no-go"),
        (0.1, 0.9, "no-go", "no-go"),
    ],
)
def test_only_a_gain_that_is_excluded_stops_the_first_phase(
    low: float, high: float, quick: str, full: str
) -> None:
    c = _comparison(low, high)
    assert (decide_go(c, "quick"), decide_go(c, "full")) == (quick, full)


def test_phases_follow_each_other_by_command() -> None:
    quick = _step(-1.5, 0.7, _with_budget("quick", name="my study-quick"))
    assert quick.says.startswith(
        "Phase 1 of 3 (quick): go, because a gain of 0.5 % is neither certain nor excluded. "
    )
    assert quick.command == "hylorada run 'my study-quick' --budget full --name 'my study-full'"
    full = _step(-1.5, -0.7, _with_budget("full", name="wt2"))
    assert full.says.startswith(
        "Phase 2 of 3 (full): go, because learnable is better than fixed by at least 0.70 %. "
    )
    assert full.command == (
        "hylorada run wt2 --budget extended --seed-list 42,123,456 --name wt2-extended"
    )
    waiting = _step(-1.5, 0.7, _with_budget("full", name="wt2"))
    assert (waiting.go, waiting.command) == ("undecided", "hylorada resolve wt2 --margin 0.5")


def test_first_phase_without_gain_tries_more_epochs() -> None:
    step = _step(-0.2, 0.3, _with_budget("quick", name="wt2"))
    assert step.says == (
        "Phase 1 of 3 (quick): no-go, because learnable and fixed differ by less than 0.5 %. The "
        "plan then tries two or three epochs of the same blocks. Scenario D of the published plan, "
        "no gain of 0.5 %."
    )
    assert step.command == "hylorada run wt2 --set epochs=3 --name wt2-3-epochs"


def test_last_phase_acts_and_says_whether_its_runs_agree() -> None:
    study = _with_budget("extended")
    steady = _step(-3.0, -2.1, study, replicate_sd=0.4)
    assert (steady.budget, steady.go) == ("extended", None)
    assert steady.says.startswith("Phase 3 of 3 (extended), the last. Scenario A of")
    apart = _step(-3.0, -2.1, study, replicate_sd=1.25)
    assert "Its replicates differ by 1.25 % (SD); the plan asks for less than 1 %." in apart.says


def test_other_comparisons_get_a_short_line_or_none() -> None:
    others = (("learnable", "baseline"), ("fixed", "baseline"), ("baseline", "learnable"))
    many = replace(STUDY, comparisons=(*STUDY.comparisons, others[2]))
    step = _step(-0.3, 0.3, many)
    assert step.lines() == ["Scenario D of the published plan, no gain of 0.5 %."]
    against_none = replace(STUDY, comparisons=others[:2])
    c = _comparison(-0.3, 0.3, reference="baseline")
    assert next_step(against_none, [c]) is None
    assert next_step(STUDY, [c]) is None  # the main comparison could not be made
    assert next_step(STUDY, []) is None


def test_budget_of_a_study_about_something_else_is_still_a_phase() -> None:
    study = _with_budget("quick", comparisons=[["fixed", "baseline"]])
    step = _step(-1.5, -0.7, study, arm="fixed", reference="baseline")
    assert (step.scenario, step.go) == ("", "go")
    assert "published plan" not in step.says
    assert step.command is not None
    stop = _step(-0.2, 0.2, study, arm="fixed", reference="baseline")
    assert (stop.go, stop.command) == ("no-go", None)


def test_command_repeats_the_base_and_the_text_of_the_study() -> None:
    chosen = {"model": "gpt2", "data": "my text.txt", "block_size": 512}
    assert STUDY.name == STUDY.definition
    quick = _step(-3.0, -2.1, _with_budget("quick", **chosen))
    place = "--model gpt2 --data 'my text.txt' --block-size 512"
    assert quick.command == (
        f"hylorada run learnable_bucketing {place} --budget full --name learnable_bucketing-full"
    )


def test_command_repeats_every_choice_of_base_and_text() -> None:
    chosen: dict[str, Any] = {
        "data": "own.csv",
        "text_column": "body",
        "document_separator": "newline",
        "dtype": "bfloat16",
    }
    chosen |= {"gradient_checkpointing": True, "device_map": "auto", "block_size": 512}
    chosen |= {"quantization": "4bit"}
    study = Study.from_dict({**VALUES, **chosen})
    options = "--data own.csv --text-column body --document-separator newline"
    settings = "--set dtype=bfloat16 --set gradient_checkpointing=true --set device_map=auto "
    settings += "--set quantization=4bit "
    assert _step(-0.2, 0.2, study).command == (
        f"hylorada run learnable_bucketing {options} {settings}"
        "--block-size 1024 --name learnable_bucketing-1024"
    )


def test_command_leaves_out_the_separator_of_the_built_in_text() -> None:
    study = replace(STUDY, document_separator="eos")  # as a study that has run stores it
    command = _step(-0.2, 0.2, study).command
    assert command is not None
    assert "separator" not in command
    command = _step(-0.2, 0.2, replace(study, document_separator="newline")).command
    assert command is not None
    assert "--document-separator newline" in command
