"""The timeline of one run: seconds of each phase, apart for the driver and its other processes."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

COMMAND = "command line"  # the outermost phase of the driver
TUNE = "Tune"  # the phase that the reports divide
AROUND = "Python's start and end"


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A phase as a process has noted it; times in seconds of the epoch.

    Attributes:
        name: name of the phase.
        began: its begin.
        ended: its end.
        process: id of the process.
        main: whether its main thread was in this phase.
        born: time at which the process began.
    """

    name: str
    began: float
    ended: float
    process: int = 0
    main: bool = True
    born: float = 0.0

    @property
    def seconds(self) -> float:
        """Length of the interval."""
        return self.ended - self.began


@dataclass(frozen=True)
class Row:
    """A phase in the table.

    Attributes:
        phase: its name.
        begins: seconds from the start of the command to its first begin.
        seconds: its length, without phases inside it.
    """

    phase: str
    begins: float
    seconds: float


@dataclass(frozen=True)
class Timeline:
    """Where the time of a run goes.

    Attributes:
        wall: seconds from the start of the command to its end.
        driver: the phases of the driver's main thread; their seconds add up to ``wall``.
        beside: phases of other threads and processes, which run at the same time.
    """

    wall: float
    driver: tuple[Row, ...]
    beside: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the timeline as JSON types."""
        return asdict(self)


def read_intervals(path: Path) -> list[Interval]:
    """Return all phases in a file that a run has noted them in."""
    return [Interval(**json.loads(line)) for line in path.read_text().splitlines()]


def timeline(noted: Iterable[Interval], whole: Interval, reports: Sequence[float]) -> Timeline:
    """Return the timeline of a run.

    Args:
        noted: the phases of all its processes, one of them named `COMMAND`.
        whole: the whole run, as seen from outside.
        reports: times of all reports.
    """
    intervals = list(noted)
    driver = next(i.process for i in intervals if i.name == COMMAND)
    ours = [i for i in intervals if i.process == driver and i.main]
    others = [i for i in intervals if not (i.process == driver and i.main)]
    divided = [part for i in ours for part in _divided(i, reports)]
    for process in {i.process for i in others} - {driver}:
        others.append(_start([i for i in others if i.process == process]))
    others.sort(key=lambda i: i.began)
    return Timeline(
        whole.seconds,
        tuple(_rows([whole, *divided], whole.began)),
        tuple(Row(i.name, i.began - whole.began, i.seconds) for i in others),
    )


def _rows(intervals: Iterable[Interval], start: float) -> list[Row]:
    """Return a row for each name; each moment counts for the innermost of nested intervals."""
    begins: dict[str, float] = {}
    seconds: dict[str, float] = {}
    around: list[Interval] = []
    for interval in sorted(intervals, key=lambda i: (i.began, -i.ended)):
        while around and around[-1].ended <= interval.began:
            around.pop()
        if around:
            seconds[around[-1].name] -= interval.seconds
        begins.setdefault(interval.name, interval.began - start)
        seconds[interval.name] = seconds.get(interval.name, 0.0) + interval.seconds
        around.append(interval)
    return [Row(name, begins[name], seconds[name]) for name in seconds]


def _divided(interval: Interval, reports: Sequence[float]) -> list[Interval]:
    """Return the run of Tune in parts: before the first report, between reports, after the last."""
    inside = [t for t in reports if interval.began < t < interval.ended]
    if interval.name != TUNE or not inside:
        return [interval]
    times = [interval.began, min(inside), max(inside), interval.ended]
    names = ("Tune to the first report", "first to last report", "Tune after the last report")
    return [Interval(name=name, began=times[k], ended=times[k + 1]) for k, name in enumerate(names)]


def _start(phases: Sequence[Interval]) -> Interval:
    """Return the time from the start of a process to its first phase."""
    first = min(phases, key=lambda i: i.began)
    name = f"{first.name.partition(':')[0]}: process and imports"
    return Interval(name=name, began=first.born, ended=first.began, process=first.process)
