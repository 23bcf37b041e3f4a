"""The two stages: who trains next, what ends a trial, and what a restart finds; with a real store, MLflow recorded."""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import optuna
import pytest

from studies._campaign import Campaign, Confirm, Ledger, Search, winners
from studies._job import Report
from studies._panel import Panel
from studies._records import Record
from studies._store import Store
from studies._study import Study
from studies._tracking import Tracker

_RATE = {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
_VALUES: dict[str, Any] = {
    "definition": "learnable_bucketing",
    "name": "try",
    "trials": 2,
    "seeds": 2,
    "eval_every": 2,
    "grace_steps": 2,
    "defaults": {"max_steps": 8},
    "arms": {"baseline": {"config": {"landmarks": False}, "space": _RATE}, "fixed": {"space": _RATE}},
}


class _Tracker:
    """What MLflow was told, and what the store said at that moment."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def catch_up(self, records: Iterable[Record]) -> None:
        self.calls.append(("catch_up", [r.name for r in records]))

    def tell(self, record: Record) -> None:
        self.calls.append((record.name, record.step, record.state))


class _Panel:
    """Counts how often it is drawn, and keeps what it says."""

    def __init__(self) -> None:
        self.drawn = 0
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def begin(self, stage: str, total: int) -> None:
        self.said.append(f"{stage} of {total}")

    def update(self) -> None:
        self.drawn += 1


class _Folder:
    """One study folder, opened again as by a new process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.store: Store | None = None
        self.tracker, self.panel = _Tracker(), _Panel()

    def open(self, **changes: Any) -> Ledger:
        self.close()
        self.store = Store(self._path, Study.from_dict(_VALUES | changes))
        self.tracker, self.panel = _Tracker(), _Panel()
        return Ledger(self.store, cast(Tracker, self.tracker), cast(Panel, self.panel))

    def close(self) -> None:
        if self.store:
            self.store.close()


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Optuna's empty tables: to make them takes longer than most tests."""
    path = tmp_path_factory.mktemp("database") / "optuna.db"
    optuna.storages.RDBStorage(f"sqlite:///{path}").engine.dispose()
    return path


@pytest.fixture
def folder(tmp_path: Path, database: Path) -> Iterator[_Folder]:
    (tmp_path / "try").mkdir()
    shutil.copy(database, tmp_path / "try")
    opened = _Folder(tmp_path / "try")
    yield opened
    opened.close()


def _report(step: int, nll: float = 3.0, **changes: Any) -> Report:
    return Report(step=step, metrics={"eval/nll": nll}, **{"done": step == 8, **changes})


def _train(stage: Search | Confirm | Campaign, loss: Callable[[str], float] = lambda _: 3.0) -> list[str]:
    """Run every job of a stage to its end, one by one."""
    names = []
    while given := stage.next_job():
        job, seen = given
        names.append(job.name)
        for step in (s for s in job.report_steps if s > seen):
            if stage.on_report(job.name, _report(step, loss(job.name))):
                break
    return names


def test_search_interleaves_the_arms_equally(folder: _Folder) -> None:
    search = Search(folder.open(grace_steps=0))
    assert search.remaining() == 4
    assert _train(search) == ["baseline-0000", "fixed-0000", "baseline-0001", "fixed-0001"]
    assert search.remaining() == 0
    assert search.next_job() is None


def test_search_tells_store_then_mlflow_then_panel(folder: _Folder) -> None:
    search = Search(folder.open(grace_steps=0, trials=1))
    _train(search)
    of_one = [c for c in folder.tracker.calls if c[0] == "fixed-0000"]
    steps = [("fixed-0000", s, "running") for s in (0, 2, 4, 6, 8)]
    assert of_one == [*steps, ("fixed-0000", 8, "complete")]
    assert folder.panel.drawn == 2 * 6


def test_reports_keep_the_time_at_which_they_came(folder: _Folder) -> None:
    before = int(1000 * time.time())
    ledger = folder.open(grace_steps=0, trials=1)
    _train(Search(ledger))
    times = [r.time for r in ledger.store.records["fixed-0000"].reports]
    assert before <= times[0] <= times[-1] <= 1000 * time.time()
    again = folder.open(grace_steps=0, trials=1)
    assert [r.time for r in again.store.records["fixed-0000"].reports] == times


def test_search_ends_a_diverged_trial_with_its_reason(folder: _Folder) -> None:
    ledger = folder.open()
    search = Search(ledger)
    job, _ = search.next_job() or pytest.fail("no job")
    report = Report(step=3, done=True, diverged="non-finite training loss at step 3")
    assert not search.on_report(job.name, report)
    record = ledger.store.records[job.name]
    assert (record.state, record.reason) == ("diverged", "non-finite training loss at step 3")
    assert folder.tracker.calls[-1] == (job.name, 3, "diverged")


def test_search_prunes_what_is_worse_at_a_rung(folder: _Folder) -> None:
    ledger = folder.open(trials=3)
    search = Search(ledger)
    jobs = [search.next_job() or pytest.fail("no job") for _ in range(6)]
    of_fixed = [job.name for job, _ in jobs if job.name.startswith("fixed")]
    assert [search.on_report(name, _report(2, nll)) for name, nll in zip(of_fixed, (3.0, 2.0, 4.0), strict=True)] == [
        False,
        False,
        True,
    ]
    assert ledger.store.records[of_fixed[2]].state == "pruned"
    assert folder.tracker.calls[-1] == (of_fixed[2], 2, "pruned")
    assert not search.on_report(jobs[0][0].name, _report(2, 99.0))  # another arm's first


def test_search_without_asha_prunes_nothing(folder: _Folder) -> None:
    ledger = folder.open(grace_steps=0)
    _train(Search(ledger), lambda name: 3.0 + int(name[-1]))
    assert {r.state for r in ledger.store.records.values()} == {"complete"}


def test_search_takes_failures_once(folder: _Folder) -> None:
    ledger = folder.open()
    search = Search(ledger)
    job, _ = search.next_job() or pytest.fail("no job")
    search.on_report(job.name, _report(2))
    search.on_failure(job.name, "out of memory", "Traceback of the first")
    calls = len(folder.tracker.calls)
    assert not search.on_report(job.name, _report(4))
    search.on_failure(job.name, "again", "another")
    record = ledger.store.records[job.name]
    assert (record.state, record.reason, record.step) == ("failed", "out of memory", 2)
    assert (ledger.store.trial_folder(job.name) / "error.txt").read_text() == "Traceback of the first"
    assert len(folder.tracker.calls) == calls


def test_search_ignores_a_step_it_has_seen(folder: _Folder) -> None:
    ledger = folder.open()
    search = Search(ledger)
    job, _ = search.next_job() or pytest.fail("no job")
    search.on_report(job.name, _report(4, 3.0))
    calls = len(folder.tracker.calls)
    assert not search.on_report(job.name, _report(4, 9.0))
    assert not search.on_report(job.name, _report(2, 9.0))
    assert ledger.store.records[job.name].nll == 3.0
    assert len(folder.tracker.calls) == calls


def test_search_goes_on_with_unfinished_trials_first(folder: _Folder) -> None:
    search = Search(folder.open(grace_steps=0))
    first, second = (search.next_job() or pytest.fail("no job") for _ in range(2))
    search.on_report(second[0].name, _report(2))
    search.on_report(second[0].name, _report(4))
    again = Search(folder.open(grace_steps=0))
    assert again.remaining() == 4
    assert again.next_job() == (first[0], 0)
    assert again.next_job() == (second[0], 4)
    assert _train(again) == ["baseline-0001", "fixed-0001"]


@pytest.mark.parametrize(
    ("last", "state"),
    [(_report(8), "complete"), (Report(step=3, done=True, diverged="non-finite gradient at step 3"), "diverged")],
)
def test_search_ends_what_a_crash_left_at_its_last_report(folder: _Folder, last: Report, state: str) -> None:
    ledger = folder.open(trials=1)
    job, _ = Search(ledger).next_job() or pytest.fail("no job")
    ledger.store.report(job.name, last)  # and then the process dies
    ledger = folder.open(trials=1)
    assert folder.tracker.calls == [("catch_up", [job.name])]
    search = Search(ledger)
    assert ledger.store.records[job.name].state == state
    assert folder.tracker.calls[1:] == [(job.name, last.step, "running"), (job.name, last.step, state)]
    assert _train(search) == ["fixed-0000"]


def test_search_rebuilds_the_rungs(folder: _Folder) -> None:
    def after(ledger: Ledger, nll: float) -> bool:
        search = Search(ledger)
        job, _ = search.next_job() or pytest.fail("no job")
        assert job.name == "baseline-0003"
        return search.on_report(job.name, _report(2, nll))

    losses = {"0000": 3.0, "0001": 2.0, "0002": 1.0}
    study = {"arms": {"baseline": _VALUES["arms"]["baseline"]}}
    _train(Search(folder.open(**study, trials=3)), lambda name: losses[name[-4:]])
    assert after(folder.open(**study, trials=4), 2.5)  # 2.0 is the middle of those before
    ledger = folder.open(**study, trials=5)
    search = Search(ledger)
    job, _ = search.next_job() or pytest.fail("no job")
    assert not search.on_report(job.name, _report(2, 1.9))


def test_search_does_not_repeat_a_finished_study(folder: _Folder) -> None:
    _train(Search(folder.open(grace_steps=0)))
    again = Search(folder.open(grace_steps=0))
    assert (again.remaining(), again.next_job()) == (0, None)
    more = Search(folder.open(grace_steps=0, trials=3))
    assert _train(more) == ["baseline-0002", "fixed-0002"]


def _loss(name: str) -> float:
    """Each arm's second trial is its best."""
    return {"0000": 3.0, "0001": 2.0, "0002": 1.0}[name.split("-")[1]]


def _searched(folder: _Folder, **changes: Any) -> Ledger:
    ledger = folder.open(grace_steps=0, **changes)
    _train(Search(ledger), _loss)
    return ledger


def test_confirm_gives_all_arms_the_same_fresh_seeds(folder: _Folder) -> None:
    ledger = _searched(folder)
    confirm = Confirm(ledger, winners(ledger.store).records)
    assert confirm.remaining() == 4
    assert _train(confirm) == [f"{arm}-0001-confirm-{s:02d}" for s in (0, 1) for arm in ("baseline", "fixed")]
    runs = {arm: ledger.store.of("confirm", arm) for arm in ("baseline", "fixed")}
    seeds = {arm: [(r.seed, r.data_seed) for r in found] for arm, found in runs.items()}
    assert seeds["baseline"] == seeds["fixed"]
    every = [r.seed for r in ledger.store.of("search", "baseline")] + [s for s, _ in seeds["baseline"]]
    assert len(set(every)) == 4
    assert len({d for _, d in seeds["baseline"]}) == 2


def test_confirm_trains_the_winner_to_full_length_on_the_test_split(folder: _Folder) -> None:
    ledger = _searched(folder, arms={"baseline": _VALUES["arms"]["baseline"]})
    winner = winners(ledger.store).records[0]
    confirm = Confirm(ledger, [winner])
    job, seen = confirm.next_job() or pytest.fail("no job")
    assert (job.test, seen, job.report_steps) == (True, 0, (2, 4, 6, 8))
    assert (job.adapter, job.training) == (winner.adapter, winner.training)
    # as bad as it may be, it isn't stopped
    assert not any(confirm.on_report(job.name, _report(step, 99.0)) for step in job.report_steps)
    assert ledger.store.records[job.name].state == "complete"
    assert ledger.store.best("baseline") == winner  # the search's, not a confirm run


def test_confirm_repeats_nothing_and_adds_seeds(folder: _Folder) -> None:
    ledger = _searched(folder)
    confirm = Confirm(ledger, winners(ledger.store).records)
    job, _ = confirm.next_job() or pytest.fail("no job")
    _train(confirm)
    ledger = folder.open(grace_steps=0)
    assert Confirm(ledger, winners(ledger.store).records).next_job() == (job, 0)  # given, but never ended
    _train(Confirm(ledger, winners(ledger.store).records))
    ledger = folder.open(grace_steps=0, seeds=3)
    more = Confirm(ledger, winners(ledger.store).records)
    assert _train(more) == ["baseline-0001-confirm-02", "fixed-0001-confirm-02"]


def test_confirm_trains_a_new_winner_of_a_longer_search(folder: _Folder) -> None:
    ledger = _searched(folder)
    _train(Confirm(ledger, winners(ledger.store).records))
    ledger = _searched(folder, trials=3)
    assert [r.name for r in winners(ledger.store).records] == ["baseline-0002", "fixed-0002"]
    again = Confirm(ledger, winners(ledger.store).records)
    names = [f"{arm}-0002-confirm-{seed:02d}" for seed in range(2) for arm in ("baseline", "fixed")]
    assert _train(again) == names


def test_winners_explain_missing_arms(folder: _Folder) -> None:
    ledger = folder.open(trials=3, grace_steps=0)
    search = Search(ledger)
    reports = {
        "baseline-0000": Report(step=1, done=True, diverged="non-finite gradient at step 1"),
        "baseline-0001": _report(8, float("nan")),
    }
    while given := search.next_job():
        name = given[0].name
        if name == "baseline-0002":
            search.on_failure(name, "crashed", "Traceback")
        else:
            search.on_report(name, reports.get(name, _report(8)))
    found = winners(ledger.store)
    assert [r.arm for r in found.records] == ["fixed"]
    assert found.missing == ("arm 'baseline' has no finished trial with a finite eval/ppl (2 diverged, 1 failed)",)


_SEARCHED = ["baseline-0000", "fixed-0000", "baseline-0001", "fixed-0001"]
_CONFIRMED = [f"{arm}-0001-confirm-{seed:02d}" for seed in (0, 1) for arm in ("baseline", "fixed")]


def test_campaign_searches_and_then_confirms(folder: _Folder) -> None:
    campaign = Campaign(folder.open(grace_steps=0))
    assert (campaign.searches, campaign.remaining()) == (True, 8)
    assert _train(campaign, _loss) == _SEARCHED + _CONFIRMED
    assert (campaign.searches, campaign.remaining()) == (False, 0)
    assert folder.panel.said == ["confirm: baseline-0001, fixed-0001 x 2 fresh paired seeds", "confirm of 4"]


def test_campaign_confirms_nothing_before_the_last_trial_has_ended(folder: _Folder) -> None:
    campaign = Campaign(folder.open(grace_steps=0))
    *ended, last = (campaign.next_job() or pytest.fail("no job") for _ in range(4))
    for job, _ in ended:
        campaign.on_report(job.name, _report(8))
    assert (campaign.next_job(), campaign.searches, campaign.remaining()) == (None, True, 4)
    campaign.on_report(last[0].name, _report(8, 2.0))
    job, seen = campaign.next_job() or pytest.fail("no job")
    assert (job.name, seen, campaign.remaining()) == ("baseline-0000-confirm-00", 0, 3)


def test_campaign_goes_on_in_either_stage(folder: _Folder) -> None:
    def given(campaign: Campaign, count: int) -> list[str]:
        return [(campaign.next_job() or pytest.fail("no job"))[0].name for _ in range(count)]

    assert given(Campaign(folder.open(grace_steps=0)), 3) == _SEARCHED[:3]
    campaign = Campaign(folder.open(grace_steps=0))
    assert campaign.remaining() == 8
    assert given(campaign, 4) == sorted(_SEARCHED)
    assert _train(Campaign(folder.open(grace_steps=0)), _loss) == sorted(_SEARCHED) + _CONFIRMED
    assert Campaign(folder.open(grace_steps=0)).remaining() == 0
    assert folder.panel.said == []  # a study that is done says nothing
    more = Campaign(folder.open(grace_steps=0, seeds=3))
    assert not more.searches
    assert _train(more) == ["baseline-0001-confirm-02", "fixed-0001-confirm-02"]


def test_campaign_ends_where_no_arm_has_a_winner(folder: _Folder) -> None:
    few = {"arms": {"one": {"space": {"r": {"choice": [4, 8]}}}}, "trials": 5}
    campaign = Campaign(folder.open(**few))
    while given := campaign.next_job():
        campaign.on_failure(given[0].name, "crashed", "Traceback")
    assert (campaign.remaining(), campaign.searches) == (0, False)
    assert folder.panel.said[-1] == "one: search space exhausted: 2 of 2 points evaluated"
    assert [text for text in folder.panel.said if "confirm" in text] == []
    Campaign(folder.open(**few))
    assert folder.panel.said == []
