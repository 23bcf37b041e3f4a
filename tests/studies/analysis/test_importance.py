from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_records import named, record, study

from studies.analysis.importance import FEWEST, Importance, importance, rung_step
from studies.trials.records import Record

Loss = Callable[[dict[str, Any]], float]


def trials(count: int, ppl: Loss, **fields: Any) -> dict[str, Record]:
    """Trials at random points, of which ASHA has stopped all at its first rung."""
    draws, found = np.random.default_rng(0), []
    for number in range(count):
        params = {
            "learning_rate": float(10 ** draws.uniform(-3, -1)),
            "num_buckets": int(draws.choice([8, 16])),
        }
        if params["num_buckets"] == 8:
            params["lora_dropout"] = float(draws.uniform(0, 0.5))
        found.append(
            record("fixed", number, [ppl(params) + 0.01 * draws.random()], params=params, **fields)
        )
    return named(*found)


def measured(records: dict[str, Record]) -> Importance:
    found = importance(records, study(), "fixed", Path("own"))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "ppl"),
    [
        ("num_buckets", lambda p: p["num_buckets"]),
        ("learning_rate", lambda p: 14 + abs(np.log(p["learning_rate"] / 0.01))),
        # matters where it exists only, and there more than whether it exists
        ("lora_dropout", lambda p: 14 + abs(p.get("lora_dropout", 1) - 0.1)),
    ],
)
def test_planted_parameter_stands_out_among_stopped_trials(name: str, ppl: Loss) -> None:
    shares = measured(trials(80, ppl)).shares
    assert next(iter(shares)) == name
    assert shares[name].stands_out
    assert sum(s.share for s in shares.values()) == pytest.approx(1)


def test_noise_makes_no_parameter_stand_out() -> None:
    found = measured(trials(40, lambda _: 14.0))
    assert found.trials == 40
    assert len(found.shares) == 3
    assert not any(s.stands_out for s in found.shares.values())


def test_loss_at_the_first_rung_counts_not_the_last() -> None:
    records = trials(40, lambda p: p["num_buckets"])
    for r in records.values():  # at later rungs the other number of buckets wins
        r.reports += record("fixed", 0, [9.0, 30.0 - r.reports[0].metrics["eval/ppl"]]).reports[1:]
    assert measured(records).shares == measured(trials(40, lambda p: p["num_buckets"])).shares


def test_diverged_trials_rank_last() -> None:
    records = trials(40, lambda p: 14.0)
    for r in records.values():
        if r.params["num_buckets"] == 16:
            r.state, r.reports = "diverged", []
    found = measured(records)
    assert found.trials == 40
    assert found.shares["num_buckets"].stands_out


def test_searches_are_pooled_and_too_few_trials_give_no_shares() -> None:
    records = trials(FEWEST, lambda p: p["num_buckets"])
    for r in list(records.values())[: FEWEST // 2]:
        r.search = 1
    assert measured(records).shares
    lost = list(records.values())[-1]
    lost.state, lost.reports = "failed", []  # it says nothing about its parameters
    assert measured(records) == Importance(FEWEST - 1, {})


def test_arm_with_one_searched_parameter_has_none() -> None:
    space = {
        "learning_rate": {"low": 1e-3, "high": 1e-1, "log": True},
        "num_buckets": {"choice": [8]},
    }
    records = trials(FEWEST, lambda _: 14.0)
    assert (
        importance(records, study(arms={"fixed": {"space": space}}), "fixed", Path("own")) is None
    )


def test_step_is_the_first_rung_or_the_last_step() -> None:
    assert rung_step(study()) == 20
    assert rung_step(study(grace_steps=0)) == 60
