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

NUM_BINS = 10  # tenths of the positions of a block
OPEN = "open"  # a file that is there from a run's start to its end, whatever becomes of its process
Stage = Literal["search", "select", "confirm"]
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
        stage: ``search``, ``select`` or ``confirm``.
        number: of the trial within its arm and search, or of the seed (select, confirm).
        params: what Optuna proposed.
        adapter: the full adapter configuration.
        training: the full training configuration.
        seed: of the adapter.
        data_seed: of the order of blocks.
        state: how it stands; only ``complete`` can be best.
        reason: why it is diverged or failed.
        winner: of a select or confirm run, the search trial whose configuration it repeats.
        search: which of the study's independent searches it belongs to.
        block: the matched block whose common values it has; None in a study that is not matched.
        factor: of a confirm run, what its block's learning rate is multiplied by.
        restarts: how often its process or machine was lost.
        reports: all so far, in order of steps.
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

    @property
    def step(self) -> int:
        """Last step reported."""
        return self.reports[-1].step if self.reports else 0

    @property
    def nll(self) -> float | None:
        """Validation NLL at the last report."""
        return self.reports[-1].metrics.get("eval/nll") if self.reports else None


def optuna_name(arm: str, search: int) -> str:
    """Return the name of the Optuna study of one arm in one search; the first search's is the arm's own."""
    return f"{arm}#{search}" if search else arm  # no arm's name holds a '#'


def trial_name(arm: str, search: int, number: int) -> str:
    """Return the name of a search trial; those of the first search don't name it."""
    return f"{arm}-s{search}-{number:04d}" if search else f"{arm}-{number:04d}"


def records_of(records: Mapping[str, Record], stage: str, arm: str, search: int | None = None) -> list[Record]:
    """Return those of one stage and arm, by search and number; of one search alone where it is given."""
    found = [r for r in records.values() if (r.stage, r.arm) == (stage, arm) and search in (None, r.search)]
    return sorted(found, key=lambda r: (r.search, r.number))


def planned_trials(study: Study, records: Mapping[str, Record], arm: str, search: int = 0) -> int:
    """Return how many trials one search of an arm has in the end: as asked, or fewer where there are fewer points."""
    searched = records_of(records, "search", arm, search)
    planned = max(study.trials, len(searched))
    if study.blocks:  # every arm has one trial in each block, the last ones too
        points = [study.space(name).size() for name in study.arms]
        return planned if None in points else max(len(searched), min(planned, max(p or 0 for p in points)))
    if (size := study.space(arm).size()) is None:
        return planned
    tried = {json.dumps(r.params, sort_keys=True) for r in searched}
    return min(planned, len(searched) + size - len(tried))


def best_record(records: Mapping[str, Record], arm: str, search: int | None = None) -> Record | None:
    """Return the arm's complete trial of lowest finite validation NLL, of one search or of all."""
    done = ranked(records, arm, search)
    return done[0] if done else None


def ranked(records: Mapping[str, Record], arm: str, search: int | None = None) -> list[Record]:
    """Return the arm's complete search trials with a finite validation NLL, the lowest first."""
    done = [r for r in records_of(records, "search", arm, search) if r.state == "complete" and is_finite(r.nll)]
    return sorted(done, key=lambda r: (r.nll, r.search, r.number))


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


def read_block_bins(folder: Path, record: Record) -> Any:
    """Return the test split's NLL sums of a complete confirm run: [N, 10] by block and tenth of the positions.

    Folders of earlier versions hold [N], without tenths.
    """
    path = folder / "trials" / record.name / Path(record.reports[-1].block_nll or "").name
    with reading(path), path.open("rb") as file:
        found = np.lib.format.read_array(file)
        if found.dtype.kind != "f" or found.shape[1:] not in ((), (NUM_BINS,)):
            raise ValueError("no list of losses")
        return found


def read_block_nll(folder: Path, record: Record) -> Any:
    """Return the test split's NLL sum of each block, of a complete confirm run."""
    found = read_block_bins(folder, record)
    return found if found.ndim == 1 else found.sum(axis=1)


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
    """Numbers of the ended trials by Optuna study, as Optuna's database holds them; empty while it can't be asked."""
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
    for name, numbers in ended.items():
        arm, _, search = name.partition("#")
        index = int(search or 0)
        if gone := sorted(numbers - {r.number for r in records_of(records, "search", arm, index)}):
            path = folder / "trials" / trial_name(arm, index, gone[0]) / "trial.json"
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
