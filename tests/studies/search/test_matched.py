"""Matched blocks, independent searches, selection and the profile: values and seeds of trials."""

import math
from typing import Any

import pytest
from campaigns import BUCKETS, MATCHED, VALUES, Folder, report, train

from hylorada import TrainingConfig
from studies.search.campaign import Campaign, Confirm, Search, Select, find_winners
from studies.search.ledger import Ledger
from studies.spec.common_values import common_values
from studies.spec.study import Study
from studies.trials.messages import Report
from studies.trials.winners import best_block


def _study(**changes: Any) -> Study:
    return Study.from_dict(VALUES | MATCHED | changes)


def _searched(folder: Folder, **changes: Any) -> Ledger:
    ledger = folder.open(**MATCHED | changes)
    train(Search(ledger), lambda name: {"0000": 3.0, "0001": 2.0, "0002": 2.5}[name[-4:]])
    return ledger


def test_arms_of_a_block_share_common_values_and_seeds(folder: Folder) -> None:
    store = _searched(folder, searches=2).store
    for search in (0, 1):
        baseline, fixed = (store.of("search", arm, search) for arm in ("baseline", "fixed"))
        assert [r.block for r in baseline] == [0, 1, 2]
        for a, b in zip(baseline, fixed, strict=True):
            assert (
                a.params["learning_rate"]
                == b.params["learning_rate"]
                == b.training["learning_rate"]
            )
            assert (a.seed, a.data_seed) == (b.seed, b.data_seed)
        assert {"num_buckets"} == {name for r in fixed for name in r.params} - {"learning_rate"}


def test_searches_share_no_seed_and_no_common_value_but_the_start(folder: Folder) -> None:
    store = _searched(folder, searches=2).store
    first, second = (store.of("search", "baseline", search) for search in (0, 1))
    assert not {r.seed for r in first} & {r.seed for r in second}
    assert not {r.data_seed for r in first} & {r.data_seed for r in second}
    rates = [{r.params["learning_rate"] for r in records} for records in (first, second)]
    assert rates[0] & rates[1] == {TrainingConfig().learning_rate}


def test_search_added_later_equals_one_that_was_there_from_the_start(folder: Folder) -> None:
    def drawn(ledger: Ledger) -> dict[str, Any]:
        records = ledger.store.records.values()
        return {
            r.name: (r.params, r.seed, r.data_seed, r.training)
            for r in records
            if r.stage == "search"
        }

    ledger = _searched(folder, searches=1)
    train(Campaign(ledger))
    later = drawn(_searched(folder, searches=2))
    folder.renew()
    assert drawn(_searched(folder, searches=2)) == later


def test_common_values_fill_the_range_evenly() -> None:
    """Any 4 successive points of a scrambled Sobol sequence have one in each quarter of the log."""
    study, low, high = _study(), 1e-4, 1e-2
    for search in range(5):
        rates = [common_values(study, search, block)["learning_rate"] for block in range(1, 5)]
        assert {int(4 * math.log(r / low) / math.log(high / low)) for r in rates} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("parameter", "values"),
    [
        ({"r": {"choice": [4, 8]}}, {4, 8}),
        ({"batch_size": {"low": 1, "high": 3}}, {1, 2, 3}),
        ({"batch_size": {"low": 1, "high": 4, "log": True}}, {1, 2, 3, 4}),
    ],
)
def test_common_values_reach_every_value(parameter: dict[str, Any], values: set[int]) -> None:
    study = _study(common={"space": parameter})
    (name,) = parameter
    assert {common_values(study, 0, block)[name] for block in range(1, 65)} == values


def test_best_block_has_the_lowest_mean_over_arms_at_the_last_step_all_have_reported(
    folder: Folder,
) -> None:
    ledger = folder.open(**MATCHED)
    search = Search(ledger)
    losses = {"baseline": (3.0, 2.0, 2.6), "fixed": (3.0, 2.8, 2.0)}  # means 3.0, 2.4, 2.3
    train(search, lambda name: losses[name.split("-")[0]][int(name[-4:])])
    assert best_block(ledger.store.study, ledger.store.records, 0) == 2


def test_best_block_prefers_blocks_that_got_further(folder: Folder) -> None:
    ledger = folder.open(**MATCHED | {"grace_steps": 2})
    search = Search(ledger)
    for number in range(2):
        for _ in ("baseline", "fixed"):
            job, _ = search.next_job() or pytest.fail("no job")
            steps = (2,) if job.name == "fixed-0001" else (2, 4, 6, 8)
            for step in steps:
                search.on_report(
                    job.name,
                    report(step, 3.0 if number == 0 else 2.0 if job.name[0] == "b" else 3.5),
                )
    assert ledger.store.records["fixed-0001"].state == "pruned"
    assert best_block(ledger.store.study, ledger.store.records, 0) == 0


def test_confirm_trains_all_arms_at_the_blocks_common_values_and_their_own_best(
    folder: Folder,
) -> None:
    ledger = folder.open(**MATCHED)
    # The best block is 1, but fixed's own best is 0.
    losses = {"baseline": (3.0, 2.0, 2.6), "fixed": (2.2, 2.3, 2.5)}
    train(Search(ledger), lambda name: losses[name.split("-")[0]][int(name[-4:])])
    train(Confirm(ledger))
    rate = common_values(ledger.store.study, 0, 1)["learning_rate"]
    runs = ledger.store.of("confirm", "fixed")
    assert [r.name for r in runs] == [
        "fixed-0000-at-0001-confirm-00",
        "fixed-0000-at-0001-confirm-01",
    ]
    own = ledger.store.records["fixed-0000"].params["num_buckets"]
    for run in (*runs, *ledger.store.of("confirm", "baseline")):
        assert run.training["learning_rate"] == run.params["learning_rate"] == rate
        assert run.block == 1
    assert {r.adapter["num_buckets"] for r in runs} == {own}


def test_profile_trains_the_winners_at_each_factor_on_the_same_seeds(folder: Folder) -> None:
    ledger = _searched(folder, searches=2, profile=[0.5, 1.0, 2.0])
    names = train(Confirm(ledger))
    assert (
        len(names)
        == 2 * 2 * 3 * 2
        == Campaign(folder.open(**MATCHED, searches=2, profile=[0.5, 1.0, 2.0])).remaining() + 24
    )
    runs = folder.ledger.store.of("confirm", "fixed", 1)
    rate = common_values(folder.ledger.store.study, 1, 1)["learning_rate"]
    assert {(r.factor, r.training["learning_rate"] / rate) for r in runs} == {
        (0.5, 0.5),
        (1.0, 1.0),
        (2.0, 2.0),
    }
    seeds = {f: [(r.seed, r.data_seed) for r in runs if r.factor == f] for f in (0.5, 1.0, 2.0)}
    assert seeds[0.5] == seeds[1.0] == seeds[2.0]
    other = folder.ledger.store.of("confirm", "fixed", 0)
    assert not {r.seed for r in runs} & {r.seed for r in other}


def test_selection_seeds_decide_and_are_never_confirm_seeds(folder: Folder) -> None:
    ledger = _searched(folder, finalists=2, selection_seeds=2)
    select = Select(ledger)
    names = train(select, lambda name: 2.0 if name.startswith("fixed-0002") else 2.5)
    # The baseline has no parameters of its own, so all its finalists would be the same.
    assert names == [f"fixed-{n}-at-0001-select-{s:02d}" for s in (0, 1) for n in ("0001", "0002")]
    assert find_winners(ledger.store).winners[0, "fixed"].record.name == "fixed-0002"
    train(Confirm(ledger))
    stages = {
        stage: {r.seed for r in ledger.store.of(stage, "fixed")}
        for stage in ("search", "select", "confirm")
    }
    assert not stages["select"] & stages["confirm"]
    assert not any(
        job.last_split for job in (ledger.store.job(r) for r in ledger.store.of("select", "fixed"))
    )


def test_diverged_finalist_does_not_win(folder: Folder) -> None:
    ledger = _searched(folder, finalists=2)
    select = Select(ledger)
    while given := select.next_job():
        name = given[0].name
        lost = name.startswith("fixed-0001")
        select.on_report(
            name, Report(step=1, done=True, diverged="loss") if lost else report(8, 9.0)
        )
    assert find_winners(ledger.store).winners[0, "fixed"].record.name == "fixed-0002"


def test_campaign_goes_through_all_stages_and_a_restart_repeats_none(folder: Folder) -> None:
    settings = MATCHED | {"searches": 2, "finalists": 2, "profile": [0.5, 1.0]}
    campaign = Campaign(folder.open(**settings))
    names = train(campaign)
    stages = [folder.ledger.store.records[n].stage for n in names]
    assert stages == ["search"] * 12 + ["select"] * 4 + ["confirm"] * 16
    assert Campaign(folder.open(**settings)).remaining() == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"common": {"spaces": {}}}, "common must hold space"),
        (
            {"common": {"space": {"learning_rat": 1e-3}}},
            "common.space: unknown field 'learning_rat'",
        ),
        ({"common": {"space": {"max_steps": {"choice": [8, 16]}}}}, "max_steps is not searched"),
        ({"common": {"space": BUCKETS}}, "arms.fixed: num_buckets is in common.space"),
        ({"profile": [0.5, 2.0]}, "profile must hold 1"),
        ({"profile": [1.0, -1.0]}, "profile must be a list of positive factors"),
        ({"looks": [5, 3]}, "looks must be at most 10 ascending"),
        ({"searches": 0}, "searches must be at least 1"),
    ],
)
def test_wrong_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _study(**changes)


def test_condition_may_name_a_common_parameter() -> None:
    arms = {"fixed": {"space": {"bucket_spacing": {"choice": ["log", "linear"], "when": {"r": 8}}}}}
    study = _study(common={"space": {"r": {"choice": [4, 8]}}}, arms=arms)
    assert study.point("fixed", {"r": 4}).keys() == {"r"}
    assert study.point("fixed", {"r": 8}).keys() == {"r", "bucket_spacing"}


def test_study_that_is_not_matched_searches_everything_apart(folder: Folder) -> None:
    store = _searched(folder, matched=False).store
    rates = {
        arm: [r.params["learning_rate"] for r in store.of("search", arm)]
        for arm in ("baseline", "fixed")
    }
    assert rates["baseline"][1:] != rates["fixed"][1:]
    assert {r.block for r in store.records.values()} == {None}


def test_values_that_repeat_still_reach_every_arm_of_a_block(folder: Folder) -> None:
    common = {"space": {"r": {"choice": [2, 4]}}}
    store = _searched(folder, common=common, trials=3).store
    for search in (store.study.searches - 1,):
        drawn = [common_values(store.study, search, block)["r"] for block in range(3)]
        assert len(set(drawn)) < 3
        for arm in ("baseline", "fixed"):
            assert [t.adapter["r"] for t in store.of("search", arm, search)] == drawn


def test_search_without_a_block_that_all_arms_finished_confirms_nothing(folder: Folder) -> None:
    ledger = folder.open(**MATCHED | {"trials": 2})
    search = Search(ledger)
    lost = {"fixed-0000", "baseline-0001"}
    while given := search.next_job():
        name = given[0].name
        search.on_report(
            name, Report(step=1, done=True, diverged="loss") if name in lost else report(8)
        )
    outcome = find_winners(ledger.store)
    assert (outcome.winners, outcome.missing) == (
        {},
        ("search 0 has no block that all its arms have finished",),
    )


@pytest.mark.parametrize("profile", [[1.0, 0.5, 0.50000001], [1.0, 2.0, 2.0]])
def test_factors_that_would_share_a_name_are_refused(profile: list[float]) -> None:
    with pytest.raises(ValueError, match="no factor twice"):
        _study(profile=profile)


def test_arms_whose_trials_would_share_a_name_are_refused() -> None:
    with pytest.raises(ValueError, match="arms 'a' and 'a-s1' would give trials of the same name"):
        _study(arms={"a": {}, "a-s1": {}})
