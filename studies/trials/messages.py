"""What passes between the driver, a trial and the host: plain values only, so that a trial process needs no torch."""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hylorada.runtime.checksums import digest
from studies.files.typed_json import typed

# in a trial's folder
CHECKPOINT = "checkpoint.safetensors"
OWNER = "job"  # a checkpoint's field for the digest of the job that wrote it
ERROR_LOG = "error.txt"  # what it raised
LAST_SPLIT = {
    "confirm": "test",
    "explain": "explain",
}  # what the runs of a stage read at their end, by block


def block_file(split: str) -> str:
    """Return the name of the file in a trial's folder that holds its losses on each block of a split."""
    return f"{split}_block_nll.npy"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One adapter to train.

    Attributes:
        name: of the trial, e.g. ``learnable-0042``; unique in the study.
        adapter: fields of :class:`hylorada.HyLoRADAConfig`.
        training: fields of :class:`hylorada.TrainingConfig`.
        seed: of the adapter's initial values and dropout.
        data_seed: of the order of blocks.
        report_steps: optimizer steps after which it is evaluated on validation; the last ends it.
        folder: for its checkpoint, seen by host and driver.
        last_split: the split to read at the end, with a loss for each block; empty for none.
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
        return asdict(self)

    def digest(self) -> str:
        """Identify what is trained: a checkpoint of any other job must not be continued."""
        return job_digest(self.name, self.adapter, self.training, (self.seed, self.data_seed))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Job":
        return cls(**{**values, "report_steps": tuple(values["report_steps"])})


def job_digest(
    name: str, adapter: Mapping[str, Any], training: Mapping[str, Any], seeds: tuple[int, int]
) -> str:
    """Identify what is trained."""
    return digest(json.dumps([adapter, training, seeds], sort_keys=True), name)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a trial tells at a report.

    Attributes:
        step: optimizer steps done.
        metrics: ``train/nll`` (mean since the last report) and the ``eval/...`` figures.
        boundaries: sorted, in token positions; empty where none are learned.
        start_boundaries: where they started.
        seconds: of training and evaluation so far: this seat's share of its pack's time.
        parameters: trainable numbers of the adapter.
        applied: the configuration in force, read back from adapter and optimizer.
        done: whether this was the last report.
        time: epoch milliseconds at which the driver kept it; 0 in folders of earlier versions.
        pruned: whether ASHA ended the trial here; set by the driver before the report is kept.
        diverged: why the trial can't go on, e.g. ``non-finite training loss at step 2``.
        block_nll: file with the losses on each block of ``last_split``, if the job names one.
        digests: checksum of every file that belongs to the report, by file name.
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
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Report":
        tuples = {k: tuple(values[k]) for k in ("boundaries", "start_boundaries")}
        return cls(**{**values, **tuples})

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Back from :meth:`to_json`.

        Raises:
            ValueError: the text is no report's.
        """
        found: Report = typed(cls, json.loads(text, object_pairs_hook=_with_shared_keys))
        return found

    def sharing(self, before: "Report") -> "Report":
        """The same, with what is as in an earlier report held once: the driver keeps thousands."""
        same = {
            f: getattr(before, f)
            for f in ("applied", "start_boundaries")
            if getattr(before, f) == getattr(self, f)
        }
        return replace(self, **same)


def _with_shared_keys(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {sys.intern(key): value for key, value in pairs}
