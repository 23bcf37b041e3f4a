"""Checks between the files of a study: checksums, and numbers that are stored twice."""

import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hylorada import HyLoRADAConfig, InputError, TrainingConfig
from hylorada.data.perplexity import NUM_BINS
from hylorada.runtime.checksums import SEAL, digest
from studies.files.folder_files import damaged, read_lines
from studies.spec.common_values import rerun_seeds, search_seeds
from studies.trials.messages import CHECKPOINT, LAST_SPLIT, OWNER, Reports

if TYPE_CHECKING:
    from studies.spec.study import Study
    from studies.trials.records import Record

# The field in the trial.json of an ended trial that holds the checksum of its whole reports.jsonl.
CHAIN = "reports_seal"
_LINE = re.compile(rf'(?P<start>.*), "{SEAL}": "(?P<seal>[0-9a-f]{{16}})"\}}\Z')
_DEFAULTS = {"adapter": HyLoRADAConfig().to_dict(), "training": TrainingConfig().to_dict()}
_CLOSE = 1e-9  # relative tolerance between two sums over the same numbers
_TRIAL = re.compile(
    r".+-\d{4,}(-at-\d{4,})?(-x[\d.e+-]+)?(-(select|confirm|explain-[0-9a-f]{8})-\d{2,})?"
)


def seal_line(line: str, chain: str) -> tuple[str, str]:
    """Return a JSON line with its checksum, and the checksum itself; it covers all earlier lines.

    Args:
        line: A report as JSON.
        chain: The checksum of the lines before; for the first line, the owner of the trial's files.
    """
    chain = digest(line, chain)
    return f'{line[:-1]}, "{SEAL}": "{chain}"}}', chain


def read_reports(path: Path | str, owner: str) -> tuple[Reports, str]:
    """Return the reports of a trial and the checksum over all of them.

    Lines of earlier versions have no checksum of their own.

    Raises:
        ValueError: A line is damaged, or was not written after the line before it.
    """
    reports = Reports()
    chain, sealed = owner, False
    for number, line in enumerate(read_lines(path), 1):
        match = _LINE.fullmatch(line)
        text = f"{match['start']}}}" if match else line
        chain = digest(text, chain)
        if match and match["seal"] != chain:
            raise ValueError(
                f"the checksum of line {number} does not match what it and the lines before it hold"
            )
        reports.add_line(text)
        if not match:
            reports[-1]  # raises for a damaged line, which only a checksum rules out
            if sealed:
                raise ValueError(f"line {number} has lost its checksum")
        sealed = match is not None
    if reports:
        reports[-1]  # the one that is used most; another version may have written it
    return reports, chain


def losses_of(content: bytes, record: "Record") -> Any:
    """Return the losses in a ``.npy`` file, after checking their mean against the last report.

    Raises:
        ValueError: The file is damaged, or another run's.
    """
    try:
        losses = np.lib.format.read_array(io.BytesIO(content))
    except Exception as error:  # a garbled header can make numpy raise any
        raise ValueError(str(error)) from error
    if losses.shape[1:] not in ((), (NUM_BINS,)) or losses.dtype.kind != "f" or not losses.size:
        raise ValueError("not an array of losses")
    expected = record.reports[-1].metrics.get(f"{LAST_SPLIT.get(record.stage, 'test')}/nll")
    tokens = len(losses) * (int(record.adapter["max_positions"]) - 1)
    mean = float(losses.sum()) / tokens
    if expected is None or not abs(mean - expected) <= _CLOSE * abs(expected):
        raise ValueError(f"its mean loss is {mean!r}, reports.jsonl holds {expected!r}")
    return losses


def check_place(path: Path, name: object) -> None:
    """Raise for a ``trial.json`` in another trial's folder, or in a copy of its own.

    Raises:
        InputError: It names the folder and the remedy.
    """
    folder = path.parent
    if name == folder.name:
        return
    if _TRIAL.fullmatch(folder.name):
        raise damaged(path, f"it belongs to trial {name!r}")
    is_name = isinstance(name, str) and "\0" not in name
    if is_name and (folder.parent / str(name) / path.name).exists():
        remedy = f"it is a copy of {name!r}: move it out of {folder.parent}"
    else:
        remedy = f"rename it to {name!r}"
    raise InputError(
        f"{folder} is not a trial's folder; its trial.json belongs to trial {name!r}; {remedy}"
    )


def check_confirms(folder: Path, records: Mapping[str, "Record"]) -> None:
    """Raise for a run on fresh seeds whose winner is lost, or has other settings than the run.

    The settings of matched runs and explain runs depend on more than the winner, so only arm and
    search are compared.

    Raises:
        InputError: It names the file.
    """
    for record in records.values():
        if record.stage in ("search", "added"):
            continue
        path, winner = folder / "trials" / record.name / "trial.json", records.get(record.winner)
        if winner is None:
            lost = folder / "trials" / record.winner / "trial.json"
            raise InputError(
                f"{lost} is missing, though {record.name} repeats that trial; restore it from a "
                "backup"
            )
        repeats = record.block is None and record.stage != "explain"
        same = ("arm", "params", "adapter", "training") if repeats else ("arm", "search")
        for field in same:
            if _filled(field, record) != _filled(field, winner):
                raise damaged(path, f"its {field} is not that of its winner {record.winner!r}")


def _filled(field: str, record: "Record") -> Any:
    """Return a field of a record; configurations of earlier versions get later fields' defaults."""
    value = getattr(record, field)
    return {**_DEFAULTS[field], **value} if field in _DEFAULTS else value


def check_seeds(folder: Path, study: "Study", records: Mapping[str, "Record"]) -> None:
    """Raise for a trial whose seeds are not those derived from the study's seed.

    Raises:
        InputError: It names the file.
    """
    for record in records.values():
        if record.stage == "search":
            seeds = search_seeds(study, record.arm, record.search, record.number)
        elif record.stage == "added":
            seeds = _added_seeds(study, records, record)
        else:
            seeds = rerun_seeds(study, record.stage, record.search, record.number)
        if (record.seed, record.data_seed) != seeds:
            path = folder / "trials" / record.name / "trial.json"
            raise damaged(path, f"its seeds are not those of study seed {study.seed}")


def _added_seeds(
    study: "Study", records: Mapping[str, "Record"], record: "Record"
) -> tuple[int, int]:
    """Return the seeds that an added trial must have: its source's, or its arm's first trial's."""
    if not record.winner:
        return search_seeds(study, record.arm, 0, 0)
    source = records.get(record.winner, record)  # a source that is lost is reported elsewhere
    return source.seed, source.data_seed


def incomplete_runs(
    folder: Path, study: "Study", records: Mapping[str, "Record"]
) -> Iterator[tuple[str, str]]:
    """Find the runs that must be retrained because a file is lost; the result will be the same.

    A crash may come between a checkpoint and its report, so a checkpoint may be one report ahead.
    If the checkpoint is lost as well, the run can't be distinguished from one that has just begun:
    both start at step 0.

    Yields:
        The run's name, and what is wrong with which file.
    """
    steps = study.report_steps()
    trials = folder / "trials"
    for name in sorted(os.listdir(trials)) if trials.is_dir() else ():
        record = records.get(name)
        if record is not None and record.state != "running":
            continue
        trial = trials / name
        leftovers = (trial / "reports.jsonl", trial / CHECKPOINT)
        if record is None and any(path.is_file() for path in leftovers):
            yield trial.name, f"{trial / 'trial.json'} is missing"
        if record is not None:
            saved = _saved_step(trial / CHECKPOINT, record)
            if sum(record.step < step <= saved for step in steps) > 1:
                reports, last = trial / "reports.jsonl", record.step
                fault = f"has lost reports: it ends at step {last}, the checkpoint at {saved}"
                yield trial.name, f"{reports} {fault}"


def _saved_step(path: Path, record: "Record") -> int:
    """Return the step of a run's checkpoint; 0 if it has none of its own."""
    from safetensors import SafetensorError, safe_open

    with suppress(OSError, SafetensorError, KeyError, TypeError, ValueError):
        with safe_open(path, framework="np") as file:
            extra = json.loads((file.metadata() or {})["extra"])
        if extra.get(OWNER, record.digest()) == record.digest():
            return int(extra["step"])
    return 0
