"""The check of the arms before a search: what it shows, and what ends it."""

import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from campaigns import VALUES, RecordingTracker
from rich.console import Console

from studies.process.errors import Interrupted, StudyStopped
from studies.search.ledger import NO_CALLBACKS
from studies.search.open_study import OpenStudy, _interrupted
from studies.search.stages import search_and_confirm
from studies.spec.study import Study
from studies.trials.by_hand.requests import request_stop
from studies.trials.messages import Job
from studies.trials.store import Store


@dataclass
class Probing:
    """A cluster that only probes; each second of that is one of a clock of the test's own."""

    seconds: int
    each_second: Callable[[], None]
    probed: int = 0

    def probe(self, jobs: Sequence[Job], check: Callable[[], object]) -> None:
        self.probed = len(jobs)
        for _ in range(self.seconds):
            self.each_second()
            check()
        raise RuntimeError("the probe has ended")


class Opened:
    """A study open in this process, with a cluster that only probes.

    Args:
        folder: folder of the study.
        check: raises if the process should end.
        limit: seconds of its time limit; None for none.
        seconds: seconds that the probe takes.
    """

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        check: Callable[[], None] = lambda: None,
        *,
        limit: float | None = None,
        seconds: int = 200,
    ) -> None:
        self.now = time.monotonic()
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        self.store = Store(folder, Study.from_dict(VALUES))
        self.cluster = Probing(seconds, self._tick)
        self._page = io.StringIO()
        self._check, self._ends = check, None if limit is None else self.now + limit

    def run(self) -> None:
        """Run the stages until the check of the arms ends."""
        opened: Any = SimpleNamespace(
            store=self.store,
            tracker=RecordingTracker(),
            cluster=self.cluster,
            console=Console(file=self._page, width=200),
            progress="auto",
            callbacks=NO_CALLBACKS,
            check=self._check,
            ends=self._ends,
            sizes={"train": 8, "validation": 4, "test": 4},
            max_failures=None,
        )
        try:
            search_and_confirm(cast(OpenStudy, opened))
        finally:
            self.store.close()

    @property
    def lines(self) -> list[str]:
        """What was printed."""
        return self._page.getvalue().splitlines()

    def _tick(self) -> None:
        self.now += 1


def test_check_of_the_arms_is_announced_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(tmp_path, monkeypatch)
    with pytest.raises(RuntimeError, match="the probe has ended"):
        opened.run()
    stage = "try: checking 2 arms on the base before training"
    assert opened.lines[0].startswith("try: 2 trials for each of baseline, fixed; ")
    assert opened.lines[1:] == [stage, *(f"{stage}: {s} s" for s in (60, 120, 180))]
    assert opened.cluster.probed == 2


def test_time_limit_ends_the_check_of_the_arms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(tmp_path, monkeypatch, limit=0)
    began = opened.now
    with pytest.raises(StudyStopped, match="has come before any two arms could be compared; the s"):
        opened.run()
    assert opened.now - began == 1
    assert (tmp_path / "study.json").exists()
    assert opened.store.records == {}


def test_request_to_stop_ends_the_check_of_the_arms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with _interrupted(tmp_path, said.append) as check:
        opened = Opened(tmp_path, monkeypatch, check)
        began = opened.now
        request_stop(tmp_path)
        with pytest.raises(Interrupted):
            opened.run()
    assert opened.now - began == 1
    assert said == ["hylorada: `hylorada stop` has asked this study to stop"]
