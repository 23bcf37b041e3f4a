"""The winners of an earlier study as the first configurations of a new one."""

from pathlib import Path
from typing import Any

import pytest
from made_studies import VALUES, make, report

from hylorada import InputError
from studies.search.campaign import find_winners
from studies.spec.common_values import common_values, given_values
from studies.spec.study import Study
from studies.trials.store import Store
from studies.trials.warm_start import with_winners
from studies.trials.winners import Winner

_RATE = {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
_MATCHED: dict[str, Any] = {
    "common": {"space": _RATE},
    "arms": {
        "fixed": {"space": {"num_buckets": {"choice": [4, 8, 16]}}},
        "baseline": {"config": {"landmarks": False}},
    },
}
_Winners = dict[tuple[int, str], Winner]


def _make(storage: Path, name: str, **changes: Any) -> tuple[Study, _Winners]:
    """Make a finished study, and return it with its winners."""
    store = make(storage / "studies" / name, "end", name=name, **changes)
    store.close()
    return store.study, find_winners(store).winners


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage folder with a finished matched study of two searches, and an unfinished one."""
    folder = tmp_path_factory.mktemp("storage")
    make(folder / "studies" / "broken off", "search", name="broken off").close()
    return folder


@pytest.fixture(scope="module")
def earlier(storage: Path) -> tuple[Study, _Winners]:
    return _make(storage, "earlier", **_MATCHED)


def _new(*start: Any, **changes: Any) -> Study:
    return Study.from_dict({**VALUES, **_MATCHED, "name": "new", "start": list(start), **changes})


def test_blocks_begin_with_the_winners_of_all_arms(
    storage: Path, earlier: tuple[Study, _Winners]
) -> None:
    study, winners = earlier
    started, notes = with_winners(_new({"from": "earlier"}), storage)
    assert notes == ()
    (entry,) = started.start
    assert entry["from"] == "earlier"
    block = winners[0, "fixed"].block
    assert block is not None
    assert common_values(started, 1, 0) == common_values(study, 0, block)
    buckets = winners[0, "fixed"].record.params["num_buckets"]
    assert given_values(started, "fixed", 1, 0)["num_buckets"] == buckets
    assert given_values(started, "baseline", 1, 0) == common_values(study, 0, block)


@pytest.mark.usefixtures("earlier")
def test_study_may_be_named_by_its_folder_from_other_storage(storage: Path, tmp_path: Path) -> None:
    by_name, _ = with_winners(_new({"from": "earlier"}), storage)
    by_folder, _ = with_winners(_new({"from": f"{storage}/studies/earlier/"}), tmp_path)
    assert by_folder == by_name


@pytest.mark.usefixtures("earlier")
def test_begun_study_keeps_its_entries_without_the_earlier_study(
    storage: Path, tmp_path: Path
) -> None:
    asked = _new({"learning_rate": 1e-3}, {"from": f"{storage}/studies/earlier"})
    started, _ = with_winners(asked, tmp_path)
    store = Store(tmp_path / "studies" / "new", started)
    records = [store.propose(arm) for _ in range(3) for arm in started.arms]
    store.close()
    gone = _new({"learning_rate": 1e-3}, {"from": "/gone/earlier"})
    assert with_winners(gone, tmp_path) == (started, ())
    assert with_winners(started, tmp_path) == (started, ())
    rates = [r.params["learning_rate"] for r in records]
    assert rates[:2] == [1e-3] * 2
    assert rates[2:4] == [started.start[1]["learning_rate"]] * 2


def test_arms_searched_alone_meet_at_each_others_common_values(storage: Path) -> None:
    _, winners = _make(storage, "alone")
    rates = {arm: winners[0, arm].record.params["learning_rate"] for arm in ("fixed", "baseline")}
    started, notes = with_winners(_new({"from": "alone"}), storage)
    assert [e["learning_rate"] for e in started.start] == [rates["fixed"], rates["baseline"]]
    buckets = winners[0, "fixed"].record.params["num_buckets"]
    assert [e["arms"]["fixed"]["num_buckets"] for e in started.start] == [buckets] * 2
    assert len(notes) == 1
    assert "arm 'fixed' does not search target_modules" in notes[0]


def _make_twice(storage: Path) -> tuple[Study, _Winners]:
    """Make a finished study of two searches."""
    store = make(storage / "studies" / "twice", "end", name="twice", searches=2, **_MATCHED)
    for arm in store.study.arms:
        for _ in range(3):
            record = store.propose(arm, 1)
            for step in (2, 4, 6, 8):
                store.report(record.name, report(record, step))
            store.finish(record.name, "complete")
    store.close()
    return store.study, find_winners(store).winners


def test_best_winners_enter_where_trials_are_few(storage: Path) -> None:
    study, winners = _make_twice(storage)
    losses = {
        search: sum(winners[search, arm].record.nll or 0 for arm in study.arms) for search in (0, 1)
    }
    best = min(losses, key=lambda search: losses[search])
    every, _ = with_winners(_new({"from": "twice"}), storage)
    few, notes = with_winners(_new({"from": "twice"}, trials=2), storage)
    assert (len(every.start), few.start) == (2, every.start[:1])
    block = winners[best, "fixed"].block
    assert block is not None
    assert few.start[0]["learning_rate"] == common_values(study, best, block)["learning_rate"]
    assert notes == ("start from 'twice': the best 1 of 2 winning configurations, for 2 trials",)


def test_values_outside_the_space_are_left_to_the_defaults_with_a_note(
    storage: Path, earlier: tuple[Study, _Winners]
) -> None:
    _, winners = earlier
    buckets = winners[0, "fixed"].record.params["num_buckets"]
    narrow = {**_MATCHED["arms"], "fixed": {"space": {"num_buckets": {"choice": [2, 32]}}}}
    started, notes = with_winners(_new({"from": "earlier"}, arms=narrow), storage)
    assert notes == (
        f"start from 'earlier': num_buckets {buckets} is outside the searched range 2 | 32 of arm "
        "'fixed', so the default takes its place",
    )
    assert given_values(started, "fixed", 0, 0)["num_buckets"] == 32


@pytest.mark.usefixtures("earlier")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("earlyer", r"start: no study 'earlyer' has been run; did you mean 'earlier'\?"),
        ("broken off", "study 'broken off' has not finished"),
        ("/nowhere/x", "start: no study '/nowhere/x' has been run; one of: "),
    ],
)
def test_study_without_winners_is_refused(storage: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        with_winners(_new({"from": name}), storage)


@pytest.mark.usefixtures("earlier")
@pytest.mark.usefixtures("earlier")
def test_two_studies_of_one_name_are_refused(storage: Path, tmp_path: Path) -> None:
    make(tmp_path / "studies" / "earlier", "end", name="earlier").close()
    study = _new({"from": "earlier"}, {"from": f"{tmp_path}/studies/earlier"})
    with pytest.raises(InputError, match="start: two studies are named 'earlier'"):
        with_winners(study, storage)


def test_study_that_shares_no_value_is_refused(storage: Path) -> None:
    other = {"other": {"space": {"r": {"choice": [4, 8]}}}}
    with pytest.raises(
        InputError, match=r"no arm searches a value .* its arms are fixed, baseline"
    ):
        with_winners(_new({"from": "earlier"}, arms=other, comparisons=[]), storage)
