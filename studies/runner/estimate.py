"""What a study is expected to take on this machine, from a few measured steps."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hylorada import InputError
from hylorada.runtime.cores import available_cores
from studies.analysis.forecast.forecast import (
    Forecast,
    Place,
    disk_bytes,
    duration,
    forecast,
    gibibytes,
    megabytes,
)
from studies.analysis.forecast.resolution import Resolution, resolutions, visible_spreads
from studies.analysis.forecast.work import Pace, Work, work_left
from studies.files.folder_files import stored_study
from studies.process.options import Options
from studies.runner.measured import Measured, measure
from studies.runner.run import check_inputs
from studies.spec.changes import changes
from studies.spec.points import first_points
from studies.spec.study import Study
from studies.trials.records import Record, read_records

if TYPE_CHECKING:
    from studies.runner.inputs import Material

_START_S = 12.0  # for Ray, MLflow and the imports, before the first step
_END_S = 10.0  # for the report and the end of Ray
_TRIAL_S = 0.2  # for a trial's start, messages and files, which take cores from training on CPUs
_PROBE_BLOCKS = 10  # trained blocks that take as long as the check of one adapter structure


@dataclass(frozen=True)
class Estimate:
    """What a study is expected to take on this machine.

    Attributes:
        study: Name of the study.
        forecast: Time, device hours, memory and disk.
        measured: What the measurement has shown.
        resolutions: The smallest effect that each comparison is expected to see.
        spreads: The same in standard deviations of a difference between replicates; None for a
            single run of each arm.
        replicates: What these replicates are: "searches" or "seeds".
    """

    study: str
    forecast: Forecast
    measured: Measured
    resolutions: tuple[Resolution, ...]
    spreads: float | None
    replicates: str

    @property
    def seconds(self) -> float:
        """Expected wall time of the run."""
        return self.forecast.seconds

    @property
    def device_hours(self) -> float:
        """Expected hours of all GPUs, or of all CPU cores."""
        return self.forecast.device_hours

    @property
    def memory_bytes(self) -> int:
        """Peak memory of the process that trains: of the GPU's tensors, or all of it on CPUs."""
        return self.measured.peak_bytes

    @property
    def disk_bytes(self) -> int:
        """Bytes that the run is expected to add to the storage folder."""
        return self.forecast.disk

    def __str__(self) -> str:
        """Return the estimate in lines."""
        return "\n".join(self.lines())

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate as plain values."""
        place = self.forecast.place
        return {
            "study": self.study,
            "seconds": self.seconds,
            "device": place.kind,
            "devices": place.units,
            "device_hours": self.device_hours,
            "trials": self.forecast.trials,
            "memory_bytes": self.memory_bytes,
            "memory_limit_bytes": self.measured.limit_bytes,
            "disk_bytes": self.disk_bytes,
            "pack_size": self.measured.seats,
            "stages": [dataclasses.asdict(work) for work in self.forecast.work],
            "measured": dataclasses.asdict(self.measured),
            "smallest_visible": [dataclasses.asdict(r) for r in self.resolutions],
            "smallest_visible_in_sd": self.spreads,
        }

    def lines(self) -> list[str]:
        """Return the estimate for a reader."""
        if not self.forecast.work:
            return [f"{self.study}: nothing is left to train"]
        return [
            f"{self.study}: {self.forecast.line()}",
            *(f"  {_stage_line(work)}" for work in self.forecast.work),
            f"  {_speed_line(self.forecast, self.measured)}",
            f"  {_memory_line(self.measured)}",
            *(f"  {line}" for line in self._resolution_lines()),
        ]

    def _resolution_lines(self) -> list[str]:
        known = [r for r in self.resolutions if r.percent is not None]
        lines = [
            f"smallest visible effect (80 % power): {r.percent:.2f} % for {r.arm} vs "
            f"{r.reference}, by the spread over {r.searches} searches of {r.source}"
            for r in known
        ]
        if len(known) == len(self.resolutions):
            return lines
        if self.spreads is None:
            unknown = "unknown, because a single run of each arm shows no spread"
            return [*lines, f"smallest visible effect: {unknown}"]
        return [
            *lines,
            f"smallest visible effect (80 % power): {self.spreads:.1f} standard deviations of a "
            f"difference between {self.replicates}; run a study on this base and text to learn "
            "how large that is",
        ]


def estimate_study(study: Study, options: Options) -> Estimate:
    """Measure a few steps of full packs, and return what a run of the study is expected to take.

    Nothing of the study is trained or written; only the tokens of a long text are kept in the
    cache. Of a study that has begun, what is left is estimated.

    Args:
        study: checked study, not a grid.
        options: where to run; only the storage folder and the pack size matter.

    Raises:
        InputError: there are problems with the inputs; all are listed.
        StudyStopped: a trial can't be trained here, for example because memory is short.
    """
    if options.address is not None:
        raise InputError(
            f"address {options.address!r}: only this machine can be measured; leave it out, or "
            "run the command on a node of the cluster, without --address"
        )
    material = check_inputs(study, options)
    study = material.settled(study)
    records = _records_so_far(study, options.study_folder(study.name))
    sizes = {split: blocks.num_blocks for split, blocks in material.blocks.items()}
    measured = measure(study, material.blocks, options.seats)
    work = work_left(study, records, sizes)
    return Estimate(
        study=study.name,
        forecast=_forecast(study, records, work, measured, material),
        measured=measured,
        resolutions=resolutions(study, material.inputs(), sizes["test"], options.storage),
        spreads=visible_spreads(study),
        replicates="searches" if study.searches > 1 else "seeds",
    )


def total_line(estimates: Sequence[Estimate]) -> str:
    """Return a line on all cells of a grid together."""
    seconds = sum(e.seconds for e in estimates)
    disk = sum(e.disk_bytes for e in estimates)
    trials = sum(e.forecast.trials for e in estimates)
    memory = max(e.memory_bytes for e in estimates)
    return (
        f"all {len(estimates)} cells: about {duration(seconds)}, {trials} trials, "
        f"{gibibytes(memory)} memory, {megabytes(disk)} disk"
    )


def _forecast(
    study: Study,
    records: Mapping[str, Record],
    work: tuple[Work, ...],
    measured: Measured,
    material: "Material",
) -> Forecast:
    pace = Pace(measured.block_seconds, measured.evaluation_share, measured.report_seconds)
    on_gpu = measured.device == "cuda"
    units = measured.devices if on_gpu else available_cores()
    hosts = 1 if study.device_map != "none" else measured.devices
    place = Place("GPU" if on_gpu else "CPU", hosts, units)
    probed = sum(len(first_points(study, arm)) for arm in study.arms)
    tests = measured.evaluation_share * material.blocks["test"].num_blocks
    once = measured.block_seconds * (_PROBE_BLOCKS * probed + tests)
    beside = 0.0 if on_gpu else _TRIAL_S * sum(w.trials for w in work)
    tokens = int(material.provenance.get("train_tokens", 0))
    disk = disk_bytes(work, measured.parameters, material.blocks["test"].num_blocks, tokens)
    return forecast(
        work,
        pace,
        place,
        disk,
        memory=measured.peak_bytes,
        ended=sum(r.state != "running" for r in records.values()),
        fixed=_START_S + measured.load_seconds + once + beside + _END_S if work else 0.0,
    )


def _records_so_far(study: Study, folder: Path) -> dict[str, Record]:
    """Return the records of a study that has begun.

    Raises:
        InputError: the folder holds a study with other settings.
    """
    path = folder / "study.json"
    if not path.exists():
        return {}
    if differing := changes(stored_study(path), study):
        raise InputError(
            [f"study {study.name!r} exists with other settings: {c}" for c in differing]
        )
    return read_records(folder)


def _stage_line(work: Work) -> str:
    return f"{work.stage}: {work.trials} trials, about {work.steps:,.0f} steps"


def _speed_line(expected: Forecast, measured: Measured) -> str:
    unit = "GPU-hours" if measured.device == "cuda" else "core-hours"
    return (
        f"{expected.device_hours:.2g} {unit}; measured in a pack of {measured.seats}: "
        f"{1 / measured.block_seconds:.3g} blocks/s, an evaluated block takes "
        f"{100 * measured.evaluation_share:.0f} % of a trained one"
    )


def _memory_line(measured: Measured) -> str:
    where = "the GPU's" if measured.device == "cuda" else "this machine's"
    need, limit = gibibytes(measured.peak_bytes), gibibytes(measured.limit_bytes)
    others = "" if measured.device == "cuda" else ", beside Ray, MLflow and this program"
    return f"memory of the process that trains: {need} of {where} {limit}{others}"
