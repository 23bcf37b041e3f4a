"""What a study folder holds of its trials, read whole and sound or refused in a line naming the file."""

import json
import math
import re
import sqlite3
from collections.abc import Iterator, Mapping, Set
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sqlalchemy.exc import DatabaseError  # Optuna's own database library

from ._files import damaged, read_json, read_lines, reading, require_database, require_kinds
from ._job import Report
from ._study import Study

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
    """All records of a study folder, by name."""
    return {p.parent.name: read_record(p) for p in sorted((folder / "trials").glob("*/trial.json"))}


def read_record(path: Path) -> Record:
    """A record from its ``trial.json`` and the ``reports.jsonl`` beside it.

    Raises:
        InputError: a file is damaged, or lacks what a record in this state has.
    """
    record: Record = read_json(path, Record)
    if record.name != path.parent.name:
        raise damaged(path, f"it is of trial {record.name!r}")
    lines = path.with_name("reports.jsonl")
    needed = record.state == "complete" or (record.state == "pruned" and record.stage == "search")
    with reading(lines):
        if needed or lines.exists():
            record.reports = [Report.from_json(line) for line in read_lines(lines)]
        if needed and not record.reports:
            raise ValueError(f"it is empty, though the trial is {record.state}")
        if record.state == "complete" and not (record.reports[-1].done and is_finite(record.nll)):
            raise ValueError("its last report is lost, though the trial is complete")
    return record


def read_block_nll(folder: Path, record: Record) -> Any:
    """The test split's loss of each block, of a complete confirm run."""
    path = folder / "trials" / record.name / Path(record.reports[-1].block_nll or "").name
    with reading(path), path.open("rb") as file:
        found = np.lib.format.read_array(file)
        if found.ndim != 1 or found.dtype.kind != "f":
            raise ValueError("no list of losses")
        return found


def read_id(folder: Path) -> str | None:
    """What ties the folder to its MLflow run; None before its first run."""
    path = folder / "id"
    if not path.exists():
        return None
    with reading(path):
        if not re.fullmatch("[0-9a-f]{16}", found := path.read_text(encoding="utf-8").strip()):
            raise ValueError("no id")
        return found


def check_kinds(folder: Path) -> None:
    """Raise for a folder in the place of one of the study's files, or the other way round."""
    names = ("study.json", "results.json", "report.html", "inputs.json", "base.json", "optuna.db", "id", "lock", OPEN)
    require_kinds(files=[folder / n for n in names], folders=[folder.parent, folder, folder / "trials"])


def ended_trials(folder: Path) -> dict[str, set[int]]:
    """Numbers of the ended trials of each arm, as Optuna's database holds them; empty while it can't be asked."""
    path = folder / "optuna.db"
    found: dict[str, set[int]] = {}
    if any((folder / "trials").glob("*/trial.json")):
        require_database(path)
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with (
        sound_database(path),
        suppress(sqlite3.OperationalError),  # it is locked, or still without tables
        closing(sqlite3.connect(uri, uri=True)) as database,
    ):
        for arm, number in database.execute(_ENDED):
            found.setdefault(arm, set()).add(number)
    return found


def lost_trials(folder: Path, ended: Mapping[str, Set[int]], records: Mapping[str, Record]) -> list[str]:
    """A line for each arm of which files of ended trials are gone."""
    problems = []
    for arm, numbers in ended.items():
        if gone := sorted(numbers - {r.number for r in records_of(records, "search", arm)}):
            path = folder / "trials" / f"{arm}-{gone[0]:04d}" / "trial.json"
            others = f", and those of {len(gone) - 1} other trials" if len(gone) > 1 else ""
            problems.append(f"{path} is missing{others}; put it back from a copy")
    return problems


@contextmanager
def sound_database(path: Path) -> Iterator[Path]:
    """A database, and one line naming it where it turns out to be none."""
    try:
        yield path
    except Exception as error:
        for cause in (error, error.__cause__):  # Optuna wraps what it passes on
            if type(cause) in (DatabaseError, sqlite3.DatabaseError):
                raise damaged(path, str(getattr(cause, "orig", cause))) from error
        raise
