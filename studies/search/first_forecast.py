"""The line near the start of a run that says what the rest of it is expected to take."""

from collections.abc import Callable
from dataclasses import replace

from studies.analysis.forecast.forecast import Forecast, disk_bytes, forecast
from studies.analysis.forecast.work import Work, pace_so_far, work_left
from studies.search.ledger import Callbacks
from studies.search.open_study import OpenStudy
from studies.trials.records import Record


def with_forecast(opened: OpenStudy, say: Callable[[str], None], explain: int) -> Callbacks:
    """Return the study's callbacks, preceded by one that prints a forecast once.

    The first reports tell the pace, so the forecast costs no time and changes no trial.

    Args:
        opened: the study.
        say: prints a line about the study.
        explain: number of runs that explain a winner.
    """
    theirs, told = opened.callbacks, False

    def on_report(record: Record) -> None:
        nonlocal told
        if not told and (expected := _forecast(opened, explain)):
            told = True
            say(expected.line())
        if theirs.on_report is not None:
            theirs.on_report(record)

    return replace(theirs, on_report=on_report)


def _forecast(opened: OpenStudy, explain: int) -> Forecast | None:
    """Return the forecast of what is left; None before a trial has told the pace."""
    store, sizes = opened.store, opened.sizes
    place = opened.cluster.place
    pace = pace_so_far(store.records, sizes)
    if pace is None:
        return None
    study = store.study if opened.ends is None else store.plan
    work = work_left(study, store.records, sizes, explain)
    return forecast(
        work,
        pace,
        place,
        _disk(opened, work),
        memory=opened.cluster.peak_memory(),
        ended=sum(r.state != "running" for r in store.records.values()),
    )


def _disk(opened: OpenStudy, work: tuple[Work, ...]) -> int:
    """Return the bytes that the rest of the run adds to the storage folder."""
    reported = [r.reports[-1] for r in opened.store.records.values() if r.reports]
    parameters = max((report.parameters for report in reported), default=0)
    tokens = int(opened.material.provenance.get("train_tokens", 0))
    return disk_bytes(work, parameters, opened.sizes["test"], tokens)
