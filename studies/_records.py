"""What a study folder holds of its trials, read whole and sound or refused in a line naming the file."""

import json
import math
import re
import shlex
import sqlite3
from collections.abc import Mapping, Set
from contextlib import closing, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from hylorada._seals import SEAL, digest, unsealed

from ._files import damaged, is_sqlite, reading, require_kinds, stored_id, train_again
from ._integrity import CHAIN, check_confirms, check_place, losses_of, read_reports
from ._job import Report, job_digest
from ._study import Study
from ._typed import typed

OPEN = "open"  # a file that is there from a run's start to its end, whatever becomes of its process
State = Literal["running", "complete", "pruned", "diverged", "failed"]
_ENDED = (
    "SELECT study_name, number FROM trials JOIN studies USING (study_id) WHERE state IN ('COMPLETE', 'PRUNED', 'FAIL')"
)


@dataclass
class Record:
    """One trial of the search or one run of the confirm stage.

    Attributes:
        name: unique in the study.
        arm: its arm.
        stage: ``search`` or ``confirm``.
        number: of the trial within its arm (search), or of the paired seed (confirm).
        params: what Optuna proposed.
        adapter: the full adapter configuration.
        training: the full training configuration.
        seed: of the adapter.
        data_seed: of the order of blocks.
        state: how it stands; only ``complete`` can be best.
        reason: why it is diverged or failed.
        winner: of a confirm run, the search trial whose configuration it repeats.
        restarts: how often its process or machine was lost.
        reports: all so far, in order of steps.
        chain: checksum over all lines of ``reports.jsonl``.
        sealed: whether ``trial.json`` holds a checksum; those of earlier versions don't.
    """

    name: str
    arm: str
    stage: Literal["search", "confirm"]
    number: int
    params: Mapping[str, Any]
    adapter: Mapping[str, Any]
    training: Mapping[str, Any]
    seed: int
    data_seed: int
    state: State = "running"
    reason: str | None = None
    winner: str = ""
    restarts: int = 0
    reports: list[Report] = field(default_factory=list)
    chain: str = ""
    sealed: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return what ``trial.json`` holds."""
        apart = ("reports", "chain", "sealed")
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in apart}
        return values if self.state == "running" else {**values, CHAIN: self.chain}

    def digest(self) -> str:
        """Identify what is trained, as :meth:`Job.digest` does."""
        return job_digest(self.name, self.adapter, self.training, (self.seed, self.data_seed))

    @property
    def step(self) -> int:
        """Last step reported."""
        return self.reports[-1].step if self.reports else 0

    @property
    def nll(self) -> float | None:
        """Validation NLL at the last report."""
        return self.reports[-1].metrics.get("eval/nll") if self.reports else None


def records_of(records: Mapping[str, Record], stage: str, arm: str) -> list[Record]:
    """Those of one stage and arm, by number."""
    return sorted((r for r in records.values() if (r.stage, r.arm) == (stage, arm)), key=lambda r: r.number)


def planned_trials(study: Study, records: Mapping[str, Record], arm: str) -> int:
    """How many trials an arm's search has in the end: as asked, or fewer where its space has fewer points."""
    searched = records_of(records, "search", arm)
    planned = max(study.trials, len(searched))
    if (points := study.arms[arm].space.size()) is None:
        return planned
    tried = {json.dumps(r.params, sort_keys=True) for r in searched}
    return min(planned, len(searched) + points - len(tried))


def counting(records: Mapping[str, Record], stage: str) -> list[Record]:
    """A stage's records; of the confirm stage those of present winners, for later trials may have overtaken others."""
    found = [r for r in records.values() if r.stage == stage]
    if stage == "search":
        return found
    best = {arm: best_record(records, arm) for arm in {r.arm for r in found}}
    return [r for r in found if confirms(r, best[r.arm])]


def confirms(run: Record, winner: Record | None) -> bool:
    """Whether a confirm run is of this winner (or of an unknown one)."""
    return winner is None or run.winner == winner.name


def best_record(records: Mapping[str, Record], arm: str) -> Record | None:
    """The arm's complete trial of lowest finite validation NLL."""
    done = [r for r in records_of(records, "search", arm) if r.state == "complete" and is_finite(r.nll)]
    return min(done, key=lambda r: (r.nll, r.number)) if done else None


def is_finite(nll: float | None) -> bool:
    return nll is not None and math.isfinite(nll)


def read_records(folder: Path) -> dict[str, Record]:
    """Return all records of a study folder by name.

    Raises:
        InputError: A file is lost, damaged, or does not belong where it lies.
    """
    study_id = read_id(folder)
    records = {p.parent.name: read_record(p, study_id) for p in sorted((folder / "trials").glob("*/trial.json"))}
    check_confirms(folder, records)
    return records


def owner_of(study_id: str | None, trial: str) -> str:
    """Return what the checksums of a trial's files are bound to."""
    return f"{study_id or ''}/{trial}"


def read_record(path: Path, study_id: str | None = None) -> Record:
    """Return a record from its ``trial.json`` and the ``reports.jsonl`` beside it.

    Args:
        path: The ``trial.json``.
        study_id: The study folder's id; None reads it.

    Raises:
        InputError: A file is damaged, or lacks what a record in this state has.
    """
    owner = owner_of(study_id or read_id(path.parents[2]), path.parent.name)
    with reading(path):
        stored = typed(Mapping[str, Any], json.loads(path.read_text(encoding="utf-8")))
        check_place(path, stored.get("name"))
        values = unsealed(stored, owner)
        chain = values.pop(CHAIN, None)
        record: Record = typed(Record, values)
        record.sealed = SEAL in stored
    lines = path.with_name("reports.jsonl")
    needed = record.state == "complete" or (record.state == "pruned" and record.stage == "search")
    with reading(lines, train_again(lines) if record.state == "running" else ""):
        record.chain = owner
        if needed or lines.exists():
            record.reports, record.chain = read_reports(lines, owner)
        if needed and not record.reports:
            raise ValueError(f"it is empty, though the trial is {record.state}")
        if record.state == "complete" and not (record.reports[-1].done and is_finite(record.nll)):
            raise ValueError("its last report is lost, though the trial is complete")
        if chain not in (None, record.chain):
            raise ValueError("its reports are not those that the trial ended with")
    return record


def read_block_nll(folder: Path, record: Record) -> Any:
    """Return the test split's loss of each block, of a complete confirm run.

    Raises:
        InputError: The file is lost, damaged, or another run's.
    """
    report = record.reports[-1]
    path = folder / "trials" / record.name / Path(report.block_nll or "").name
    with reading(path):
        content = path.read_bytes()
        if report.digests.get(path.name, digest(content)) != digest(content):
            raise ValueError("its checksum is not the one that reports.jsonl holds")
        return losses_of(content, record)


def read_id(folder: Path) -> str | None:
    """Return what ties the folder to its MLflow run; None before its first run.

    ``study.json`` keeps a copy, so a lost or unreadable ``id`` costs nothing.

    Raises:
        InputError: The id can't be read, or the copy is another one.
    """
    path, study = folder / "id", folder / "study.json"
    kept = stored_id(study) if study.exists() else None
    if not path.exists():
        return kept
    with reading(path):
        found = path.read_bytes().decode(errors="replace").strip()
        if not re.fullmatch("[0-9a-f]{16}", found):
            if kept is None:
                raise ValueError("no id")
            return kept
    if kept not in (None, found):
        reason = f"it holds {found}, but study.json holds {kept}"
        raise damaged(path, reason, "if study.json belongs here, delete id: it is written again; else restore both")
    return found


def check_kinds(folder: Path) -> None:
    """Raise for a folder in the place of one of the study's files, or the other way round."""
    names = ("study.json", "results.json", "report.html", "inputs.json", "base.json", "optuna.db", "id", "lock", OPEN)
    require_kinds(files=[folder / n for n in names], folders=[folder.parent, folder, folder / "trials"])


def ended_trials(folder: Path) -> dict[str, set[int]]:
    """Return the numbers of each arm's ended trials in Optuna's database; empty while it can't be read."""
    found: dict[str, set[int]] = {}
    uri = f"{(folder / 'optuna.db').absolute().as_uri()}?mode=ro"
    with (
        suppress(sqlite3.DatabaseError, UnicodeDecodeError),  # lost, locked, damaged: `run` sees to it
        closing(sqlite3.connect(uri, uri=True)) as database,
    ):
        for arm, number in database.execute(_ENDED):
            found.setdefault(arm, set()).add(number)
    return found


def database_fault(folder: Path, records: Mapping[str, Record]) -> str | None:
    """Return a line about a database that is lost or damaged, for commands that only read."""
    path = folder / "optuna.db"
    if not records or (is_sqlite(path) and not _unreadable(path)):
        return None
    return f"{path} is missing or damaged; `hylorada run {shlex.quote(folder.name)}` rebuilds it from the trial files"


def _unreadable(path: Path) -> bool:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as database:
            database.execute(_ENDED).fetchall()
    except sqlite3.OperationalError:
        return False  # it is locked
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return True
    return False


def lost_trials(folder: Path, ended: Mapping[str, Set[int]], records: Mapping[str, Record]) -> list[str]:
    """Return a line for each arm that has lost trials: Optuna knows of them, or of later ones there are files."""
    problems = []
    for arm in dict.fromkeys([*ended, *(r.arm for r in records.values())]):
        known = {r.number for r in records_of(records, "search", arm)}
        if gone := sorted((ended.get(arm, set()) | set(range(max(known, default=0)))) - known):
            path = folder / "trials" / f"{arm}-{gone[0]:04d}" / "trial.json"
            others = f", and those of {len(gone) - 1} other trials" if len(gone) > 1 else ""
            problems.append(f"{path} is missing{others}; restore it from a backup")
    return problems
