"""The records of a study folder's trials.

Reading one returns it whole, or raises an error that names the lost or damaged file.
"""

import json
import math
import os
import re
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from hylorada.runtime.checksums import SEAL, digest, unsealed
from studies.files.folder_files import (
    content_of,
    damaged,
    reading,
    require_kinds,
    require_readable,
    stored_id,
    train_again,
)
from studies.files.typed_json import typed
from studies.process.garbage import collector_paused
from studies.spec.study import Study
from studies.trials.integrity import CHAIN, check_confirms, check_place, losses_of, read_reports
from studies.trials.messages import Report, job_digest

OPEN = "open"  # a file that exists until a run has ended, even if its process dies
STOPPED = "stopped by the user"  # the reason of a pruned trial that ASHA has not stopped
Stage = Literal["search", "select", "confirm", "explain", "added"]
ADDED = " / added"  # how the name of an Optuna study of added trials ends
State = Literal["running", "complete", "pruned", "diverged", "failed"]


@dataclass
class Record:
    """A trial of the search, or a run of another stage.

    Attributes:
        name: Name, unique in the study.
        arm: Its arm.
        stage: ``search``, ``select``, ``confirm``, ``explain``, or ``added`` by a user.
        number: Number of the trial within its arm and search, or among those that users have added
            to its arm, or of the seed (all other stages).
        params: Parameters that Optuna proposed, or that a user has set.
        adapter: The full adapter configuration.
        training: The full training configuration.
        seed: Seed of the adapter.
        data_seed: Seed of the order of blocks.
        state: Its state; only a ``complete`` trial can be best.
        reason: Why it has diverged or failed.
        winner: For a select or confirm run, the search trial whose configuration it repeats; for an
            explain run, the search trial that it is compared with. For an added trial, the trial
            that it is a clone of; empty for a change of its arm's defaults.
        search: The one of the study's independent searches that it belongs to.
        block: The matched block whose common values it has; None in a study that is not matched.
        factor: For a confirm run, the factor on its block's learning rate.
        restarts: How often its process or machine was lost.
        reports: All reports so far, in order of steps.
        chain: Checksum over all lines of ``reports.jsonl``.
        sealed: Whether ``trial.json`` holds a checksum; earlier versions wrote none.
    """

    name: str
    arm: str
    stage: Stage
    number: int
    params: Mapping[str, Any]
    adapter: Mapping[str, Any]
    training: Mapping[str, Any]
    seed: int
    data_seed: int
    state: State = "running"
    reason: str | None = None
    winner: str = ""
    search: int = 0
    block: int | None = None
    factor: float = 1.0
    restarts: int = 0
    reports: list[Report] = field(default_factory=list)
    chain: str = ""
    sealed: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``trial.json``."""
        apart = ("reports", "chain", "sealed")
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in apart}
        return values if self.state == "running" else {**values, CHAIN: self.chain}

    def digest(self) -> str:
        """Return a digest of the training, as :meth:`Job.digest` does."""
        return job_digest(self.name, self.adapter, self.training, (self.seed, self.data_seed))

    @property
    def step(self) -> int:
        """Step of the last report; 0 before the first."""
        return self.reports[-1].step if self.reports else 0

    @property
    def nll(self) -> float | None:
        """Validation NLL of the last report; None before the first."""
        return self.reports[-1].metrics.get("eval/nll") if self.reports else None


def place_name(arm: str, search: int) -> str:
    """Return the name of an arm in one search, which in the first search is the arm's own.

    It seeds random streams, and earlier versions gave it to the arm's Optuna study.
    """
    return f"{arm}#{search}" if search else arm  # no arm's name holds a '#'


def study_title(study: str, arm: str, search: int) -> str:
    """Return the name of an arm's Optuna study in one search, as Optuna's tools show it."""
    return f"{study} / {arm} / search {search}"  # no name of a study or an arm holds a '/'


def place_of(title: str) -> str:
    """Return the :func:`place_name` that an Optuna study's name stands for."""
    found = re.fullmatch(r"[^/]+ / ([^/]+) / search (\d+)", title)
    return place_name(found[1], int(found[2])) if found else title


def trial_name(arm: str, search: int, number: int) -> str:
    """Return the name of a search trial; it has no search number in the first search."""
    return f"{arm}-s{search}-{number:04d}" if search else f"{arm}-{number:04d}"


class Records(dict[str, Record]):
    """All records of a study by name, with those of a stage, arm and search within reach."""

    def __init__(self) -> None:
        super().__init__()
        self._groups: dict[tuple[str, str], dict[int, dict[str, Record]]] = {}

    def __setitem__(self, name: str, record: Record) -> None:
        super().__setitem__(name, record)
        by_search = self._groups.setdefault((record.stage, record.arm), {})
        by_search.setdefault(record.search, {})[name] = record

    def group(self, stage: str, arm: str, search: int | None) -> list[Record]:
        """Return the records of a stage and arm, in all searches or one."""
        by_search = self._groups.get((stage, arm), {})
        groups = by_search.values() if search is None else [by_search.get(search, {})]
        return [record for group in groups for record in group.values()]


def records_of(
    records: Mapping[str, Record], stage: str, arm: str, search: int | None = None
) -> list[Record]:
    """Return the records of a stage and arm, in all searches or one, by search and number."""
    if isinstance(records, Records):
        among = records.group(stage, arm, search)
    else:
        among = [r for r in records.values() if (r.stage, r.arm) == (stage, arm)]
        among = [r for r in among if search in (None, r.search)]
    return sorted(among, key=lambda r: (r.search, r.number))


def planned_trials(study: Study, records: Mapping[str, Record], arm: str, search: int = 0) -> int:
    """Return the final number of an arm's trials in a search: fewer than set if points run out."""
    searched = records_of(records, "search", arm, search)
    return planned_beside(study, space_sizes(study), arm, searched)


def space_sizes(study: Study) -> dict[str, int | None]:
    """Return the number of distinct points of each arm's space; None if a range is infinite."""
    return {arm: study.space(arm).size() for arm in study.arms}


def planned_beside(
    study: Study, sizes: Mapping[str, int | None], arm: str, searched: Sequence[Record]
) -> int:
    """Return the final number of an arm's trials in a search that has these so far.

    Args:
        study: The study.
        sizes: The sizes of its spaces, by :func:`space_sizes`.
        arm: The arm.
        searched: Its trials in the search.
    """
    planned = max(study.trials, len(searched))
    if study.blocks:  # every arm has one trial in each block, the last ones too
        if None in sizes.values():
            return planned
        return max(len(searched), min(planned, max(p or 0 for p in sizes.values())))
    if (size := sizes[arm]) is None:
        return planned
    tried = {json.dumps(r.params, sort_keys=True) for r in searched}
    return min(planned, len(searched) + size - len(tried))


def best_record(
    records: Mapping[str, Record], arm: str, search: int | None = None
) -> Record | None:
    """Return the arm's complete trial of lowest finite validation NLL, in one search or in all."""
    done = ranked(records, arm, search)
    return done[0] if done else None


def ranked(records: Mapping[str, Record], arm: str, search: int | None = None) -> list[Record]:
    """Return the arm's complete search trials with a finite validation NLL, the lowest first."""
    done = [
        r
        for r in records_of(records, "search", arm, search)
        if r.state == "complete" and is_finite(r.nll)
    ]
    return sorted(done, key=lambda r: (r.nll, r.search, r.number))


def is_finite(nll: float | None) -> bool:
    """Return whether there is a finite loss."""
    return nll is not None and math.isfinite(nll)


def read_records(folder: Path) -> Records:
    """Return all records of a study folder by name.

    Raises:
        InputError: A file is lost, damaged, or in the wrong place.
    """
    study_id, records = read_id(folder), Records()
    with collector_paused():
        for path in trial_files(folder / "trials"):
            try:
                content = content_of(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                with reading(path):
                    raise
            record = _parsed(path, content, study_id)
            records[record.name] = record
    check_confirms(folder, records)
    return records


def trial_files(trials: Path) -> list[str]:
    """Return the place of each trial's ``trial.json``, which may be missing, by name."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(trials) as entries:
        return [f"{trials}/{name}/trial.json" for name in sorted(entry.name for entry in entries)]
    return []


def owner_of(study_id: str | None, trial: str) -> str:
    """Return the name that the checksums of a trial's files are bound to."""
    return f"{study_id or ''}/{trial}"


def read_record(path: Path, study_id: str | None = None) -> Record:
    """Return a record from its ``trial.json`` and the ``reports.jsonl`` beside it.

    Args:
        path: The ``trial.json``.
        study_id: The study folder's id; None reads it.

    Raises:
        InputError: A file is damaged, or lacks data that a record in this state must have.
    """
    with reading(path):
        content = content_of(path)
    return _parsed(str(path), content, study_id or read_id(path.parents[2]))


def _parsed(path: str, content: bytes, study_id: str | None) -> Record:
    """Return the record of a ``trial.json``, with the reports beside it."""
    trial = os.path.dirname(path)
    name = os.path.basename(trial)
    owner = owner_of(study_id, name)
    with reading(path):
        stored = typed(Mapping[str, Any], json.loads(content.decode()))
        if stored.get("name") != name:
            check_place(Path(path), stored.get("name"))
        values = unsealed(stored, owner)
        chain = values.pop(CHAIN, None)
        record: Record = typed(Record, values)
        record.sealed = SEAL in stored
    lines = f"{trial}/reports.jsonl"
    needed = record.state == "complete" or (record.state == "pruned" and record.stage == "search")
    with reading(lines, train_again(Path(lines)) if record.state == "running" else ""):
        record.chain = owner
        if needed or os.path.exists(lines):
            record.reports, record.chain = read_reports(lines, owner)
        if needed and not record.reports:
            raise ValueError(f"it is empty, though the trial is {record.state}")
        if record.state == "complete" and not (record.reports[-1].done and is_finite(record.nll)):
            raise ValueError("its last report is lost, though the trial is complete")
        if chain not in (None, record.chain):
            raise ValueError("its checksum differs from the one in trial.json")
    return record


def read_block_bins(folder: Path, record: Record) -> Any:
    """Return a complete run's NLL sums on the last split of its stage, by block and tenth of it.

    Their shape is [N, 10]; folders of earlier versions hold [N], without tenths.

    Raises:
        InputError: The file is lost, damaged, or another run's.
    """
    report = record.reports[-1]
    path = folder / "trials" / record.name / Path(report.block_nll or "").name
    with reading(path):
        content = path.read_bytes()
        if report.digests.get(path.name, digest(content)) != digest(content):
            raise ValueError("its checksum differs from the one in reports.jsonl")
        return losses_of(content, record)


def read_block_nll(folder: Path, record: Record) -> Any:
    """Return a complete run's NLL sum on each block of the last split of its stage, [N]."""
    losses = read_block_bins(folder, record)
    return losses if losses.ndim == 1 else losses.sum(axis=1)


def read_id(folder: Path) -> str | None:
    """Return the id that ties the folder to its MLflow run; None before its first run.

    ``study.json`` holds a copy, which replaces a lost or unreadable ``id``.

    Raises:
        InputError: The id can't be read, or the copy differs.
    """
    path, study = folder / "id", folder / "study.json"
    copy = stored_id(study) if study.exists() else None
    if not path.exists():
        return copy
    with reading(path):
        study_id = path.read_bytes().decode(errors="replace").strip()
        if not re.fullmatch("[0-9a-f]{16}", study_id):
            if copy is None:
                raise ValueError("no id")
            return copy
    if copy not in (None, study_id):
        reason = f"it holds {study_id}, but study.json holds {copy}"
        remedy = "if study.json belongs here, delete id: it is written again; else restore both"
        raise damaged(path, reason, remedy)
    return study_id


def check_kinds(folder: Path) -> None:
    """Raise if a folder stands where a file of the study belongs, or a file where a folder does."""
    results = ("study.json", "results.json", "report.html", "explain.json")
    names = (*results, "inputs.json", "base.json", "optuna.db", "id", "lock", OPEN)
    require_readable(folder, folder / "trials")
    require_kinds(
        files=[folder / n for n in names],
        folders=[folder.parent, folder, folder / "trials", folder / "requests"],
    )


def lost_trials(
    folder: Path, ended: Mapping[str, Set[int]], records: Mapping[str, Record]
) -> list[str]:
    """Return a line for each arm and search that has lost trials.

    A trial is lost if it has no files though Optuna holds it, or though a later trial has files.
    """
    problems = []
    places = dict.fromkeys([*ended, *(place_name(r.arm, r.search) for r in records.values())])
    for name in places:
        arm, _, search = name.partition("#")
        index = int(search or 0)
        known = {r.number for r in records_of(records, "search", arm, index)}
        if lost := sorted((ended.get(name, set()) | set(range(max(known, default=0)))) - known):
            path = folder / "trials" / trial_name(arm, index, lost[0]) / "trial.json"
            others = f", and those of {len(lost) - 1} other trials" if len(lost) > 1 else ""
            problems.append(f"{path} is missing{others}; restore it from a backup")
    return problems
