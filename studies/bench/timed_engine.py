"""The engine of a study's host, which also notes what its passes spend their time on."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hylorada import Evaluation
from studies.engine.packs import Engine, Occupant, Result

TIMES = "times.jsonl"  # beside the folders of the trials
PARTS = ("evaluation", "checkpoint", "waiting")


class TimedEngine(Engine):
    """An engine that adds a line to a file at every report.

    A line holds the step of the report, the clock, and the seconds so far of each part:
    ``evaluation``; ``checkpoint``, all else that a pass does for a report; and ``waiting``, the
    time between two passes.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._spent = dict.fromkeys(PARTS, 0.0)
        self._left = time.perf_counter()  # the end of the last pass

    def advance(self, names: Sequence[str]) -> dict[str, Result]:
        """Take a step, and count the time since the one before as waiting."""
        self._spent["waiting"] += time.perf_counter() - self._left
        results = super().advance(names)
        self._left = time.perf_counter()
        return results

    def _report(self, due: Mapping[str, Occupant]) -> dict[str, Result]:
        if not due:
            return {}
        began, evaluated = time.perf_counter(), self._spent["evaluation"]
        results = super()._report(due)
        now = time.perf_counter()
        self._spent["checkpoint"] += now - began - (self._spent["evaluation"] - evaluated)
        first = next(iter(due.values()))
        line = json.dumps({"step": first.seat.step, "clock": now, **self._spent})
        folder = Path(first.job.folder).parent
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / TIMES).open("a") as file:
            file.write(f"{line}\n")
        return results

    def _evaluate(
        self, occupants: Mapping[str, Occupant], splits: Mapping[str, str]
    ) -> dict[str, Evaluation]:
        began = time.perf_counter()
        evaluations = super()._evaluate(occupants, splits)
        self._spent["evaluation"] += time.perf_counter() - began
        return evaluations
