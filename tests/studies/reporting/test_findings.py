import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_records import gated_run, named, record, report, study
from transformers import PreTrainedModel

from hylorada import HyLoRADAConfig
from studies.analysis.boundaries import spaced
from studies.analysis.verdict import listed
from studies.reporting.figures.drawing import svg_text
from studies.reporting.figures.plots import arm_colors
from studies.reporting.findings import Finding, findings
from studies.spec.study import Study
from studies.trials.records import Record


def found_in(
    records: Sequence[Record], of: Study, folder: Path = Path("own")
) -> dict[str, Finding]:
    return {f.title: f for f in findings(named(*records), of, folder, arm_colors(of.arms))}


def drawn(found: Finding) -> str:
    """The figure of a finding as a page shows it; "" without one."""
    return "" if found.figure is None else svg_text(found.figure)


def complete(arm: str, losses: Sequence[float], first: int = 0, **fields: Any) -> list[Record]:
    return [record(arm, first + i, [20, 18, math.exp(x)], **fields) for i, x in enumerate(losses)]


def test_tuning_says_which_arms_have_flattened() -> None:
    # Lowest of each pair of 4: 0, 0, 0, 1, 1, 2 steps above the best, so half gains 4/6 of a step
    steep, flat = (
        complete("fixed", [3, 3.03, 3.06, 3.09]),
        complete("learnable", [3, 3.003, 3.006, 3.009]),
    )
    found = found_in([*steep, *flat], study("fixed", "learnable"))["Tuning"]
    assert found.says == (
        "The second half of the trials (from 2 to 4) lowered the expected best validation PPL by "
        "1.98 % for fixed and 0.20 % for learnable. Measured against the margin of 0.5 %, "
        "learnable has flattened, fixed has not, so more trials may still help."
    )
    assert "learnable: 20.09 after 4 trials" in drawn(found)


def test_tuning_tells_arms_with_fewer_trials_apart() -> None:
    # triples of 5: lowest 0 six times, 1 three times, 2 once, in steps above the best
    trials = [
        *complete("baseline", [3, 3.1, 3.2]),
        *complete("fixed", [3, 3.03, 3.06, 3.09]),
        *complete("learnable", [3, 3.03, 3.06, 3.09, 3.12]),
    ]
    says = found_in(trials, study())["Tuning"].says
    assert "by 1.98 % for fixed (from 2 to 4) and 1.49 % for learnable (from 3 to 5)." in says
    assert "fixed and learnable have not flattened, so more trials may still help." in says
    assert says.endswith("baseline has too few finished trials to say.")


def test_tuning_counts_stopped_trials_and_leaves_running_ones_out() -> None:
    stopped = [record("fixed", 10 + i, [20]) for i in range(4)]
    running = record("fixed", 20, [20], state="running")
    found = found_in(
        [*complete("fixed", [3, 3.01, 3.02, 3.03]), *stopped, running], study("fixed")
    )["Tuning"]
    assert "(from 4 to 8)" in found.says


def test_tuning_curve_is_the_mean_over_searches() -> None:
    other = complete("fixed", [3.2] * 4, first=10, search=1)
    found = found_in([*complete("fixed", [3.0] * 4), *other], study("fixed", searches=2))["Tuning"]
    assert "averaged over 2 searches" in found.reading
    assert f"fixed: {math.exp(3.1):.4g} after 4 trials" in drawn(found)


def test_few_trials_leave_tuning_and_importance_open() -> None:
    found = found_in(complete("fixed", [3, 3.1, 3.2]), study("fixed"))
    assert found["Tuning"].says.startswith(
        "Whether more trials would help can't be said: that takes 4 finished trials in every search"
    )
    assert found["Which parameters matter"] == Finding(
        "Which parameters matter",
        "Too few trials to measure the importance of parameters: fixed has 3, and 20 are needed.",
        None,
        found["Which parameters matter"].reading,
    )


def test_importance_names_what_stands_out_and_which_arms_have_too_few_trials() -> None:
    trials = []
    for number in range(24):
        params = {"learning_rate": 0.002 + 0.003 * number, "num_buckets": (16, 8)[number % 2]}
        params |= {"lora_dropout": 0.1 * (number % 5)} if number % 2 else {}
        trials.append(record("fixed", number, [14 + params["learning_rate"]], params=params))
    found = found_in([*trials, record("learnable", 0, [16])], study("fixed", "learnable"))[
        "Which parameters matter"
    ]
    assert found.says.startswith("Among 24 trials of fixed, learning_rate (")
    assert "matters; the other 2 can't be told from chance." in found.says
    assert found.says.endswith("learnable has 1, and 20 are needed.")
    assert "num_buckets: " in drawn(found)
    assert "step 20" in found.reading


def learned(starts: Sequence[Any], ends: Sequence[Any]) -> list[Record]:
    """The winner of one search, and a confirm run for each pair of start and end."""
    runs = [
        record("learnable", 7 + i, [], stage="confirm", state="complete") for i in range(len(ends))
    ]
    for run, start, end in zip(runs, starts, ends, strict=True):
        run.winner = "learnable-0000"
        run.reports = [report(60, 14.0, boundaries=tuple(end), start_boundaries=tuple(start))]
    return [record("learnable", 0, [16, 15, 14.5]), *runs]


def test_boundaries_say_where_they_end_and_that_their_start_made_them_agree() -> None:
    log = spaced("log", 7, 64)
    found = found_in(learned([log, log], [log + 1, log + 2]), study("learnable"))[
        "Boundaries of learnable"
    ]
    assert found.says.startswith(
        "The boundaries of learnable end 1.50 tokens from the log spacing and "
    )
    assert "(mean over 2 confirm runs); they start 0.00 and " in found.says
    assert (
        "Seeds of one search agree more than random boundaries would (consistency 0.9" in found.says
    )
    assert "p = 0.001; at the start 1.00): they already agreed at the start." in found.says
    assert "8 buckets" in drawn(found)


def test_boundaries_that_training_brought_together_are_told_from_others() -> None:
    starts = [np.arange(1.0, 8), np.arange(50.0, 57)]
    found = found_in(learned(starts, [np.arange(8.0, 64, 8)] * 2), study("learnable"))[
        "Boundaries of learnable"
    ]
    assert "(consistency 1.00, p = 0.001; at the start -" in found.says
    assert found.says.endswith("training brought them together.")
    apart = found_in(learned(starts, starts), study("learnable"))["Boundaries of learnable"]
    assert "Seeds of one search lie further apart than random boundaries would" in apart.says


@pytest.mark.parametrize(("start", "end"), [((8.0,), (math.nan,)), ((), (8.0,)), ((), ())])
def test_runs_without_sound_boundaries_say_nothing(
    start: Sequence[float], end: Sequence[float]
) -> None:
    assert "Boundaries of learnable" not in found_in(learned([start], [end]), study("learnable"))


def test_one_run_says_nothing_about_agreement() -> None:
    found = found_in(learned([(8.0,)], [(9.0,)]), study("learnable"))["Boundaries of learnable"]
    assert "(mean over the only confirm run)" in found.says
    assert found.says.endswith("A single run says nothing about agreement.")


def gated(folder: Path, base: PreTrainedModel, weight: float) -> list[Record]:
    """Return a winner and its run, with a weight for landmark 2 at positions 0 to 7 of 16."""
    config = HyLoRADAConfig(
        r=2, num_landmarks=4, num_buckets=2, bucket_spacing="linear", max_positions=16
    )
    run = gated_run(folder, base, config, {(0, 2): math.log(3 * weight / (1 - weight))})
    return [record("fixed", 0, [16, 15, 14.5]), run]


def test_landmarks_say_where_one_stands_out(
    tmp_path: Path, make_base: Callable[[], PreTrainedModel]
) -> None:
    found = found_in(gated(tmp_path, make_base(), 0.7), study("fixed"), tmp_path)[
        "Landmarks of fixed"
    ]
    skewed = -0.7 * math.log2(0.7) - 0.3 * math.log2(0.1)
    mean = [0.475, 0.175, 0.175, 0.175]
    told = -sum(p * math.log2(p) for p in mean) - (skewed + 2) / 2
    assert found.says == (
        "8 of 16 positions lean on one landmark, 0 to 7 on landmark 2 with 70 % of the weight; the "
        f"weights have {(skewed + 2) / 2:.2f} of 2.00 bits of entropy, and the position carries "
        f"{told:.2f} bits of information about the landmark."
    )
    assert "positions 0-7, landmark 2: 70.0 %" in drawn(found)
    assert "positions 8-15, landmark 0: 25.0 %" in drawn(found)


def test_even_landmarks_are_said_to_be(
    tmp_path: Path, make_base: Callable[[], PreTrainedModel]
) -> None:
    found = found_in(gated(tmp_path, make_base(), 0.25), study("fixed"), tmp_path)[
        "Landmarks of fixed"
    ]
    assert found.says == (
        "No position leans on one landmark; the weights have 2.00 of 2.00 bits of entropy, and the "
        "position carries less than 0.01 bits of information about the landmark."
    )


def test_study_without_records_has_no_findings() -> None:
    assert found_in([], study()) == {}


def test_listed_joins_as_a_sentence_does() -> None:
    assert [listed("a"), listed("ab"), listed("abc")] == ["a", "a and b", "a, b and c"]
