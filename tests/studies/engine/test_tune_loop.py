"""What Tune's scheduler does with the source's decisions."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.schedulers import TrialScheduler

from studies.engine.tune_loop import _Judge
from studies.trials.messages import Job, Report


class Impatient:
    """A source that stops each trial at step 4."""

    def remaining(self) -> int:
        return 0

    def next_job(self) -> tuple[Job, int] | None:
        return None

    def on_report(self, name: str, report: Report) -> bool:
        return report.step == 4

    def on_failure(self, name: str, reason: str, traceback: str) -> None:
        raise AssertionError(name)

    def on_restart(self, name: str) -> None:
        raise AssertionError(name)


@pytest.mark.parametrize(
    ("step", "code", "freed"),
    [(3, TrialScheduler.CONTINUE, []), (4, TrialScheduler.STOP, ["one"])],
)
def test_stopped_trial_loses_its_seat_at_once(step: int, code: str, freed: list[str]) -> None:
    calls: list[str] = []
    judge = _Judge(Impatient(), calls.append, lambda: False)
    trial: Any = SimpleNamespace(config={"name": "one"})
    result = {"report": Report(step=step).to_json()}
    assert judge.on_trial_result(None, trial, result) == code
    assert (calls, judge.fault) == (freed, None)
