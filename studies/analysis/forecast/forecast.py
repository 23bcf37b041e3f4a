"""What a run is expected to take: time, device hours, memory and disk, in numbers and a line."""

from collections.abc import Sequence
from dataclasses import dataclass

from studies.analysis.forecast.work import Pace, Work

# Bytes on disk, as measured on studies of the built-in base.
_ADAM_BYTES = 12  # of a trained number with both of its moments, in the checkpoint of a confirm run
_TRIAL_BYTES = 120_000  # of a trial: its files, and its rows and artifacts in MLflow
_STUDY_BYTES = 2_000_000  # of a study: the report, its copy in MLflow, Optuna's database
_BLOCK_BYTES = 160  # of a test block in a confirm run: ten losses, and their copy in MLflow
_TOKEN_BYTES = 4  # of a token of the training split in the cache
# Handing trials over and waiting for the last ones of a stage, on top of the hosts' own time.
OVERHEAD = 1.05


@dataclass(frozen=True)
class Place:
    """The devices on which a run trains its trials.

    Attributes:
        kind: "GPU" or "CPU".
        hosts: Number of devices with a base of their own: GPUs, or nodes without one.
        units: Number of GPUs, or of CPU cores on all nodes.
    """

    kind: str
    hosts: int
    units: int

    def __str__(self) -> str:
        """Return the place in words, such as "2 CPU cores"."""
        name = "GPU" if self.kind == "GPU" else "CPU core"
        return f"{self.units} {name}{'s' * (self.units > 1)}"


@dataclass(frozen=True)
class Forecast:
    """What a run is expected to take.

    Attributes:
        work: Work that is left, by stage.
        seconds: Wall time.
        device_hours: Hours of all devices together: GPU-hours, or hours of CPU cores.
        place: Where it trains.
        memory: Peak bytes of the process that trains: of the GPU's tensors, or of the whole process
            on CPUs; None if it was not measured.
        disk: Bytes that the run adds to the storage folder.
        ended: Number of trials and runs that have ended before.
    """

    work: tuple[Work, ...]
    seconds: float
    device_hours: float
    place: Place
    memory: int | None
    disk: int
    ended: int = 0

    @property
    def trials(self) -> int:
        """Number of trials and runs left to train."""
        return sum(w.trials for w in self.work)

    def line(self) -> str:
        """Return the forecast on one line."""
        more, counted = "", f"{self.trials} trials"
        if self.ended:
            more, counted = " more", f"{self.trials} of {self.trials + self.ended} trials left"
        memory = "" if self.memory is None else f", {gibibytes(self.memory)} memory"
        return (
            f"about {duration(self.seconds)}{more} on {self.place}: {counted}{memory}, "
            f"{megabytes(self.disk)} disk"
        )


def forecast(
    work: Sequence[Work],
    pace: Pace,
    place: Place,
    disk: int,
    *,
    memory: int | None = None,
    ended: int = 0,
    fixed: float = 0.0,
) -> Forecast:
    """Return what a run is expected to take.

    Args:
        work: Work that is left, by stage.
        pace: Pace of one device.
        place: Where it trains.
        disk: Bytes that the run adds to the storage folder.
        memory: Peak bytes of the process that trains, if they were measured.
        ended: Number of trials and runs that have ended before.
        fixed: Seconds that do not depend on the pace, such as those of the start.
    """
    seconds = fixed + OVERHEAD * pace.seconds(work) / place.hosts
    return Forecast(tuple(work), seconds, seconds * place.units / 3600, place, memory, disk, ended)


def disk_bytes(work: Sequence[Work], parameters: int, test_blocks: int, train_tokens: int) -> int:
    """Return the bytes that a run is expected to add to the storage folder.

    Args:
        work: Work that is left, by stage.
        parameters: Number of trained parameters of the largest adapter.
        test_blocks: Number of test blocks.
        train_tokens: Number of tokens of the training split.
    """
    runs = sum(w.trials for w in work if w.stage == "confirm")
    kept = runs * (_ADAM_BYTES * parameters + _BLOCK_BYTES * test_blocks)
    trials = sum(w.trials for w in work)
    return int(kept + trials * _TRIAL_BYTES + _STUDY_BYTES + _TOKEN_BYTES * train_tokens)


def duration(seconds: float) -> str:
    """Return a time in its two largest units, such as "40 s", "3 min" or "1 h 20 min"."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(hours + minutes / 60), 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def gibibytes(size: float) -> str:
    """Return bytes in GiB, such as "0.4 GiB"."""
    return f"{size / 2**30:.1f} GiB"


def megabytes(size: float) -> str:
    """Return bytes in MB, or in GB from one on."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{max(1, round(size / 1e6))} MB"
