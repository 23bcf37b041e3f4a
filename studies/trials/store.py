"""The folder of a study, written so that a crash at any moment loses nothing.

``study.json`` holds the study. ``trials/NAME/trial.json`` and ``reports.jsonl`` are the truth about
a trial. ``optuna.db`` holds one Optuna study for each arm and search. Opening the folder brings the
database in line with the trial files, or rebuilds it from them.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import optuna

from hylorada import InputError
from studies.files.folder_files import (
    PLANNED,
    STUDY,
    append_line,
    hold_study,
    read_json,
    stored_plan,
    stored_study,
    write_atomically,
    write_json,
)
from studies.process.garbage import collector_paused
from studies.spec.changes import changes, fewer
from studies.spec.common_values import search_seeds
from studies.spec.study import Study
from studies.trials.by_hand.requests import drop_stop
from studies.trials.explanations import read_explanations
from studies.trials.integrity import check_seeds, incomplete_runs, seal_line
from studies.trials.messages import CHECKPOINT, ERROR_LOG, LAST_SPLIT, Job, Report
from studies.trials.optuna_studies import OptunaStudies, Place
from studies.trials.records import (
    Record,
    State,
    best_record,
    check_kinds,
    is_finite,
    owner_of,
    planned_beside,
    read_block_nll,
    read_id,
    read_records,
    records_of,
    space_sizes,
    trial_name,
)

_INPUTS = "inputs"  # owner of the checksum of inputs.json


class Store:
    """Opens or makes the folder of one study and keeps it consistent; one process at a time.

    Args:
        folder: Folder of the study.
        study: The study to run now.
        plan: The study that it may grow to within this run (:meth:`grow`), which has larger counts;
            None if it does not grow.

    Attributes:
        study: The study as far as it is to be run.
        plan: The study that it may grow to, in this run or a later one. What is proposed depends on
            its counts, so that a study which has grown is as one that was large from the start.

    Raises:
        InputError: Another process runs the study, the folder holds a study with other settings, or
            one of its files is lost or damaged; nothing has been written.
    """

    def __init__(self, folder: Path, study: Study, plan: Study | None = None) -> None:
        check_kinds(folder)
        self.folder, self.study, self._requested = folder, study, plan or study
        self._lock = hold_study(folder, study.name)
        drop_stop(folder)  # meant for a run that has died before it could act on it
        self.records: dict[str, Record] = {}
        # Both are asked at every proposal, for all arms and searches.
        self._searched: dict[Place, list[Record]] = {}
        self._sizes = space_sizes(study)
        self.notes: list[str] = []  # what the user must know about the state of the folder
        try:
            self.plan = self._larger_plan()
        except BaseException:
            self._lock.release()
            raise
        self._optuna = OptunaStudies(folder, self.plan, self.notes.append)
        try:
            with collector_paused():
                self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.records = read_records(self.folder)
        self._check_study()
        self.id = self._identify()
        self._check_files()
        for record in sorted(self.records.values(), key=lambda r: r.number):
            self._note_searched(record)
        self._optuna.open(self.records, self._sample)
        self._write_study()
        for record in self.records.values():
            if not record.sealed:  # written by an earlier version
                self._write_record(record)
        for record in self.records.values():
            if record.state != "running":
                self._drop_checkpoint(record)
        for name, loss in incomplete_runs(self.folder, self.study, self.records):
            (self.trial_folder(name) / CHECKPOINT).unlink(missing_ok=True)
            self.notes.append(f"{loss}; {name} is trained again")

    def close(self) -> None:
        """Let another process open the folder."""
        self._optuna.close()
        drop_stop(self.folder)
        self._lock.release()

    def grow(self, study: Study) -> None:
        """Enlarge the study, at most to the planned size."""
        self.study = study
        self._write_study()

    def of(self, stage: str, arm: str, search: int | None = None) -> list[Record]:
        """Return the records of one stage and arm, by search and number."""
        return records_of(self.records, stage, arm, search)

    def searched(self, arm: str, search: int = 0) -> Sequence[Record]:
        """Return the trials of one search of the arm so far, by number."""
        return self._searched.get((arm, search), ())

    def _note_searched(self, record: Record) -> None:
        """Keep a search trial in reach of :meth:`searched`."""
        if record.stage == "search":
            self._searched.setdefault((record.arm, record.search), []).append(record)

    def planned(self, arm: str, search: int = 0) -> int:
        """Return the number of trials that one search of the arm will have in the end."""
        return planned_beside(self.study, self._sizes, arm, self.searched(arm, search))

    def propose(self, arm: str, search: int = 0) -> Record:
        """Ask the arm's Optuna study of a search for its next trial and record it."""
        place = (arm, search)
        return self._sample(place, self._optuna.ask(place))

    def add(self, record: Record) -> None:
        """Write the files of a new record."""
        self.records[record.name] = record
        self._note_searched(record)
        folder = self.trial_folder(record.name)
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in ("reports.jsonl", CHECKPOINT):  # of a trial whose trial.json is lost
            (folder / leftover).unlink(missing_ok=True)
        record.chain = owner_of(self.id, record.name)
        self._write_record(record)

    def report(self, name: str, report: Report) -> bool:
        """Store a report, unless its step is already known (a replay after a crash).

        Returns:
            Whether the report was stored.
        """
        record = self.records[name]
        if report.step <= record.step:
            return False
        line, chain = seal_line(report.to_json(), record.chain)
        append_line(self.trial_folder(name) / "reports.jsonl", line)
        record.chain = chain
        record.reports.append(report.sharing(record.reports[-1]) if record.reports else report)
        self._optuna.report(record, report)
        return True

    def finish(self, name: str, state: State, reason: str | None = None) -> None:
        """End a trial; a trial that has ended already is left as it is."""
        record = self.records[name]
        if record.state != "running":
            return
        if state == "complete" and not is_finite(record.nll):
            state, reason = "diverged", f"non-finite validation loss at step {record.step}"
        record.state, record.reason = state, reason
        self._write_record(record)
        self._optuna.finish(record)
        self._drop_checkpoint(record)

    def add_run_ids(self, service: str, ids: Mapping[str, str]) -> None:
        """Tell Optuna's database which runs a tracking service holds for the search trials."""
        self._optuna.add_run_ids(service, ids)

    def restart(self, name: str) -> None:
        """Count the loss of a trial's process or machine."""
        record = self.records[name]
        record.restarts += 1
        self._write_record(record)

    def write_error(self, name: str, traceback: str) -> Path:
        """Store the traceback of a trial's exception, and return its file."""
        path = self.trial_folder(name) / ERROR_LOG
        write_atomically(path, traceback)
        return path

    def job(self, record: Record) -> Job:
        """Return the job that trains a record on the host."""
        return Job(
            name=record.name,
            adapter=record.adapter,
            training=record.training,
            seed=record.seed,
            data_seed=record.data_seed,
            report_steps=self.study.report_steps(),
            folder=str(self.trial_folder(record.name)),
            last_split=LAST_SPLIT.get(record.stage, ""),
        )

    def bind_inputs(self, inputs: Mapping[str, str]) -> None:
        """Tie the folder to the text and base of its first run.

        Raises:
            InputError: Text or base have changed; the message names what changed.
        """
        path = self.folder / "inputs.json"
        before: Mapping[str, str] = {}
        if self.records or path.exists():
            before = read_json(path, Mapping[str, str], _INPUTS)
        changed = [
            f"{k} was {before[k]}, now {v}" for k, v in inputs.items() if before.get(k, v) != v
        ]
        if changed:
            study = self.study
            raise InputError(
                f"study {study.name!r} ran on other text or another base (model {study.model}, "
                f"data {study.data}): {'; '.join(changed)}. Restore them, or give the new study "
                "another --name"
            )
        if inputs.keys() - before.keys():  # a folder of an earlier version lacks some
            write_json(path, {**before, **inputs}, _INPUTS)

    def trial_folder(self, name: str) -> Path:
        """Return the folder of a trial."""
        return self.folder / "trials" / name

    def best(self, arm: str) -> Record | None:
        """Return the arm's complete trial of lowest finite validation NLL."""
        return best_record(self.records, arm)

    def _check_study(self) -> None:
        """Raise if the folder holds a study with settings that can't become the requested ones."""
        path = self.folder / "study.json"
        if self.records and not path.exists():
            raise InputError(
                f"{path} is missing, though there are trials; restore it from a backup, or choose "
                "another name (--name)"
            )
        if not path.exists():
            return
        before, name = stored_study(path), self.study.name
        differing = changes(before, self.study)
        problems = [f"study {name!r} exists with other settings: {c}" for c in differing]
        if problems:
            problems.append(
                "give the new study another name (--name), or restore the former settings"
            )
        problems += [f"study {name!r}: {f}" for f in fewer(before, self._requested)]
        if problems:
            raise InputError(problems)

    def _check_files(self) -> None:
        """Raise if a file that is used only at the end can't be read, or files disagree."""
        if (path := self.folder / "inputs.json").exists():
            read_json(path, Mapping[str, str], _INPUTS)
        read_explanations(self.folder)
        check_seeds(self.folder, self.study, self.records)
        for record in self.records.values():
            if record.state == "complete" and record.reports[-1].block_nll:
                read_block_nll(self.folder, record)

    def _identify(self) -> str:
        """Return the folder's id, a new one for a study without trials."""
        stored = read_id(self.folder)
        if stored is None and self.records:
            raise InputError(
                f"{self.folder / 'id'} is missing; restore it from a backup, or from MLflow: it is "
                "the tag 'hylorada.study' of the study's run"
            )
        return stored or os.urandom(8).hex()

    def _larger_plan(self) -> Study:
        """Return the requested study, with the counts of the stored plan where they are larger."""
        path = self.folder / "study.json"
        stored = stored_plan(path) if path.exists() else {}
        requested = self._requested
        return replace(
            requested,
            trials=max(requested.trials, stored.get("trials", 0)),
            searches=max(requested.searches, stored.get("searches", 0)),
        )

    def _write_study(self) -> None:
        """Write the study with its plan and a copy of its id, and the id itself if it is lost."""
        planned = {"trials": self.plan.trials, "searches": self.plan.searches}
        plan = {n: count for n, count in planned.items() if count > getattr(self.study, n)}
        values = {**self.study.to_dict(), **({PLANNED: plan} if plan else {}), "id": self.id}
        write_json(self.folder / "study.json", values, STUDY)
        path = self.folder / "id"
        if not path.exists() or path.read_bytes() != self.id.encode():
            write_atomically(path, self.id)

    def _sample(self, place: Place, trial: optuna.Trial) -> Record:
        """Sample the parameters of an Optuna trial and write its record."""
        arm, search = place
        params = self.study.space(arm).sample(trial)
        adapter, training = self.study.configs(arm, params)
        seed, data_seed = search_seeds(self.study, arm, search, trial.number)
        record = Record(
            name=trial_name(arm, search, trial.number),
            arm=arm,
            stage="search",
            number=trial.number,
            params=params,
            adapter=adapter.to_dict(),
            training=training.to_dict(),
            seed=seed,
            data_seed=data_seed,
            search=search,
            block=trial.number if self.study.blocks else None,
        )
        self.add(record)
        return record

    def _drop_checkpoint(self, record: Record) -> None:
        """Delete the checkpoint of an ended trial; that of a confirm run is kept as its adapter."""
        if record.stage != "confirm":
            (self.trial_folder(record.name) / CHECKPOINT).unlink(missing_ok=True)

    def _write_record(self, record: Record) -> None:
        path = self.trial_folder(record.name) / "trial.json"
        write_json(path, record.to_dict(), owner_of(self.id, record.name))
        record.sealed = True
