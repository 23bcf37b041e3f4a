"""Jobs that a source gets while Tune runs its others, and the check that finds them."""

import pytest
from ray.tune.search import Searcher

from studies.engine.tune_loop import _Judge, _Proposer, _Stopper
from studies.process.errors import Interrupted
from studies.trials.messages import Job, Report


class Jobs:
    """A source with a list of jobs that a test fills."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.arrived = False

    def remaining(self) -> int:
        return len(self.names)

    def next_job(self) -> tuple[Job, int] | None:
        if not self.names:
            return None
        name = self.names.pop(0)
        fields = {"adapter": {}, "training": {}, "report_steps": [1], "folder": ""}
        return Job.from_dict({"name": name, "seed": 0, "data_seed": 0, **fields}), 0

    def on_report(self, name: str, report: Report) -> bool:
        return False

    def on_failure(self, name: str, reason: str, traceback: str) -> None:
        raise AssertionError(name)

    def on_restart(self, name: str) -> None:
        raise AssertionError(name)

    def check(self) -> bool:
        arrived, self.arrived = self.arrived, False
        return arrived


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock's time, which the test sets."""
    time = [100.0]
    monkeypatch.setattr("studies.engine.tune_loop.time.monotonic", lambda: time[0])
    return time


def _proposer(jobs: Jobs) -> tuple[_Proposer, _Stopper]:
    judge = _Judge(jobs, lambda _: None, jobs.check)
    return _Proposer(jobs, judge, lambda: 4, {}), _Stopper(judge)


@pytest.mark.usefixtures("now")
def test_jobs_that_never_start_end_the_run() -> None:
    """Five lost starts for each of the four slots, and one more; an ended trial starts anew."""
    proposer, _ = _proposer(Jobs("one", "two"))
    proposer.suggest("a")
    for _ in range(20):
        proposer.on_trial_complete("a", error=True)
        assert proposer.suggest("a")["name"] == "one"
    proposer.on_trial_complete("a")
    assert proposer.suggest("b")["name"] == "two"
    for _ in range(20):
        proposer.on_trial_complete("b", error=True)
        assert proposer.suggest("b")["name"] == "two"
    proposer.on_trial_complete("b", error=True)
    assert proposer.suggest("b") == Searcher.FINISHED


@pytest.mark.usefixtures("now")
def test_job_that_arrives_after_the_last_is_suggested() -> None:
    jobs = Jobs("one")
    proposer, stopper = _proposer(jobs)
    assert proposer.suggest("a")["name"] == "one"
    assert proposer.suggest("b") is None  # Tune must not end the search while "one" runs
    jobs.names, jobs.arrived = ["two"], True
    assert not stopper.stop_all()
    assert proposer.suggest("b")["name"] == "two"
    proposer.on_trial_complete("a")
    assert proposer.suggest("c") is None
    proposer.on_trial_complete("b")
    assert proposer.suggest("c") == Searcher.FINISHED


def test_check_is_called_once_a_second(now: list[float]) -> None:
    calls: list[float] = []

    def check() -> bool:
        calls.append(now[0])
        return False

    stopper = _Stopper(_Judge(Jobs(), lambda _: None, check))
    for now[0] in (100.0, 100.4, 100.9, 101.0, 101.5, 102.25):
        assert not stopper.stop_all()
    assert calls == [100.0, 101.0, 102.25]


def test_interruption_in_the_check_ends_the_loop() -> None:
    def check() -> bool:
        raise Interrupted

    judge = _Judge(Jobs(), lambda _: None, check)
    with pytest.raises(Interrupted, match=r"^$"):
        _Stopper(judge).stop_all()


def test_fault_in_the_check_stops_all_trials() -> None:
    def check() -> bool:
        raise RuntimeError("disk")

    judge = _Judge(Jobs(), lambda _: None, check)
    assert _Stopper(judge).stop_all()
    assert str(judge.fault) == "disk"
