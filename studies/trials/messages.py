"""The messages between driver, trial and host: plain values, so that no trial needs torch."""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, SupportsIndex, overload

from hylorada.runtime.checksums import digest
from studies.files.typed_json import typed

CHECKPOINT = "checkpoint.safetensors"  # in a trial's folder
OWNER = "job"  # a checkpoint's field for the digest of the job that wrote it
ERROR_LOG = "error.txt"  # in a trial's folder: the traceback of its exception
# The split on which the runs of a stage are evaluated block by block at their end.
LAST_SPLIT = {"confirm": "test", "explain": "explain"}


def split_for(split: str, training: Mapping[str, Any]) -> str:
    """Return the name of the blocks of a split that a training sees: its own, or padded rows."""
    return f"{split}_padded" if training.get("replication_pads") else split


def block_file(split: str) -> str:
    """Return the name of the file, in a trial's folder, of its losses on each block of a split."""
    return f"{split}_block_nll.npy"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One adapter to train.

    Attributes:
        name: Name of the trial, e.g. ``learnable-0042``; unique in the study.
        adapter: Fields of :class:`hylorada.HyLoRADAConfig`.
        training: Fields of :class:`hylorada.TrainingConfig`.
        seed: Seed of the adapter's initial values and dropout.
        data_seed: Seed of the order of blocks.
        report_steps: Optimizer steps after which it is evaluated on the validation split; training
            ends after the last one.
        folder: Folder for its checkpoint, visible to host and driver.
        last_split: Split on which a loss for each block is computed at the end; empty for none.
    """

    name: str
    adapter: Mapping[str, Any]
    training: Mapping[str, Any]
    seed: int
    data_seed: int
    report_steps: tuple[int, ...]
    folder: str
    last_split: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the job as plain values."""
        return asdict(self)

    def digest(self) -> str:
        """Return a digest of the training: a job must not resume from another job's checkpoint."""
        return job_digest(self.name, self.adapter, self.training, (self.seed, self.data_seed))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Job":
        """Return the job that `to_dict` has made plain."""
        return cls(**{**values, "report_steps": tuple(values["report_steps"])})


def job_digest(
    name: str, adapter: Mapping[str, Any], training: Mapping[str, Any], seeds: tuple[int, int]
) -> str:
    """Return a digest of a training: its name, configurations, and seeds of adapter and data."""
    return digest(json.dumps([adapter, training, seeds], sort_keys=True), name)


@dataclass(frozen=True, kw_only=True)
class Report:
    """A trial's state at one of its report steps.

    Attributes:
        step: Number of optimizer steps done.
        metrics: ``train/nll`` (mean since the last report) and the ``eval/...`` metrics.
        boundaries: Sorted boundaries in token positions; empty if none are learned.
        start_boundaries: The same before training.
        seconds: Seconds of training and evaluation so far: this seat's share of its pack's time.
        parameters: Number of trainable parameters of the adapter.
        applied: The configuration in force, read back from adapter and optimizer.
        done: Whether this is the last report.
        time: Time at which the driver stored it, in epoch milliseconds; 0 in folders of earlier
            versions.
        pruned: Whether ASHA ended the trial here; set by the driver before the report is stored.
        diverged: Why the trial can't continue, e.g. ``non-finite training loss at step 2``.
        block_nll: File with the loss on each block of ``last_split``, if the job names one.
        digests: Checksum of every file that belongs to the report, by file name.
    """

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    boundaries: tuple[float, ...] = ()
    start_boundaries: tuple[float, ...] = ()
    seconds: float = 0.0
    parameters: int = 0
    applied: Mapping[str, Any] = field(default_factory=dict)
    done: bool = False
    time: int = 0
    pruned: bool = False
    diverged: str | None = None
    block_nll: str | None = None
    digests: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Report":
        """Return the report that `to_dict` has made plain."""
        tuples = {k: tuple(values[k]) for k in ("boundaries", "start_boundaries")}
        return cls(**{**values, **tuples})

    def to_json(self) -> str:
        """Return the report as a line of JSON."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Return the report of a line of JSON.

        Raises:
            ValueError: The text is not a report.
        """
        values = json.loads(text)
        if isinstance(values, dict):
            values |= {k: _sharing_keys(v) for k, v in values.items() if type(v) is dict}
        report: Report = typed(cls, values)
        return report

    def sharing(self, before: "Report") -> "Report":
        """Return this report, which now shares equal fields with an earlier one, to save memory."""
        for name in ("applied", "start_boundaries"):
            if (value := getattr(before, name)) == getattr(self, name):
                object.__setattr__(self, name, value)  # it is frozen, and remains equal
        return self


class Reports(list[Report]):
    """Reports in order of steps; a line of JSON becomes a report when it is first used.

    Most reports of thousands of trials are never used: a command that shows a study needs the last
    one of a trial.
    """

    def add_line(self, text: str) -> None:
        """Append the report of a line whose checksum has been checked."""
        super().append(text)  # type: ignore[arg-type]

    @overload
    def __getitem__(self, place: SupportsIndex) -> Report: ...
    @overload
    def __getitem__(self, place: slice) -> list[Report]: ...
    def __getitem__(self, place: SupportsIndex | slice) -> Report | list[Report]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        item: Report | str = super().__getitem__(place)
        if isinstance(item, str):
            item, last = Report.from_json(item), super().__getitem__(-1)
            self[place] = item.sharing(last) if isinstance(last, Report) else item
        return item

    def __iter__(self) -> Iterator[Report]:
        return (self[i] for i in range(len(self)))

    def __reversed__(self) -> Iterator[Report]:
        return (self[i] for i in reversed(range(len(self))))

    def __eq__(self, other: object) -> bool:
        return list(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None


def _sharing_keys(values: dict[str, Any]) -> dict[str, Any]:
    """Return equal values; equal keys of many reports are kept in memory once."""
    return dict(zip(_shared(tuple(values)), values.values(), strict=True))


@cache
def _shared(keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(sys.intern, keys))
