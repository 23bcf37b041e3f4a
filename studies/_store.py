"""The study folder: what a study knows, written so that a crash at any moment loses nothing.

``study.json`` is the study; ``trials/NAME/trial.json`` and ``reports.jsonl`` are the truth about a trial; ``optuna.db``
holds one Optuna study for each arm, brought in line with the trial files whenever the study is opened.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import optuna
from filelock import Timeout
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from hylorada import InputError, derive_seed

from ._common import common_values
from ._files import append_line, read_json, require_database, stored_study, study_lock, write_atomically
from ._job import CHECKPOINT, ERROR_LOG, Job, Report
from ._records import (
    Record,
    State,
    best_record,
    check_kinds,
    is_finite,
    lost_trials,
    optuna_name,
    planned_trials,
    read_block_nll,
    read_id,
    read_records,
    records_of,
    sound_database,
    trial_name,
)
from ._sampler import make_sampler
from ._study import GROWING, Study

_FREE = (*GROWING, "subject", "margin", "looks")  # what a study that has been run may change
_FREE = (*GROWING, "subject", "margin", "looks")  # what may change of a study that has been run
_LOCK_S = 5.0  # `status` holds the lock while it ends the runs of a dead process
_OPTUNA_STATES = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "diverged": TrialState.FAIL,
    "failed": TrialState.FAIL,
}


class Store:
    """Opens or makes the folder of one study and keeps it consistent; one process at a time.

    Args:
        folder: of the study.
        study: what is asked for now.

    Raises:
        InputError: another process runs the study, the folder holds a study of other settings, or a file of it is
            lost or damaged; nothing has been written.
    """

    def __init__(self, folder: Path, study: Study) -> None:
        check_kinds(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.study = folder, study
        self._lock = study_lock(folder)
        try:
            self._lock.acquire(timeout=_LOCK_S)
        except Timeout as error:
            raise InputError(f"study {study.name!r} is being run by another process ({folder})") from error
        self.records: dict[str, Record] = {}
        self._storage: optuna.storages.RDBStorage | None = None
        self._optuna: dict[tuple[str, int], optuna.Study] = {}  # by arm and search
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.records = read_records(self.folder)
        self._check_study()
        self._check_files()
        with sound_database(self.folder / "optuna.db") as path:
            self._storage = optuna.storages.RDBStorage(
                f"sqlite:///{path}", engine_kwargs={"connect_args": {"timeout": 60}}
            )
            places = [(arm, search) for search in range(self.study.searches) for arm in self.study.arms]
            self._optuna = {place: self._open_optuna(*place) for place in places}
            if lost := self._lost():
                raise InputError(lost)
            write_atomically(self.folder / "study.json", json.dumps(self.study.to_dict(), indent=1))
            self._reconcile()
        for record in self.records.values():
            if record.state != "running":
                self._drop_checkpoint(record)

    def close(self) -> None:
        """Let another process open the folder."""
        if self._storage is not None:
            self._storage.remove_session()
            self._storage.engine.dispose()
        self._lock.release()

    def of(self, stage: str, arm: str, search: int | None = None) -> list[Record]:
        """The records of one stage and arm, by search and number."""
        return records_of(self.records, stage, arm, search)

    def planned(self, arm: str, search: int = 0) -> int:
        """How many trials one search of the arm has in the end."""
        return planned_trials(self.study, self.records, arm, search)

    def propose(self, arm: str, search: int = 0) -> Record:
        """Ask the arm's Optuna study of a search for its next trial and write it down."""
        study = self._optuna[arm, search]
        number = sum(t.state != TrialState.WAITING for t in study.get_trials(deepcopy=False))
        given = self.study.start(arm) if number == 0 else {}
        if self.study.blocks:  # every arm of the block gets these; its sampler proposes the rest
            given |= self.study.labels(arm, common_values(self.study, search, number))
        if given:
            study.enqueue_trial(given, skip_if_exists=True)
        study.sampler = self._sampler(arm, search, number)
        return self._sampled(arm, search, study.ask())

    def add(self, record: Record) -> None:
        """Write a new record down."""
        self.records[record.name] = record
        self.trial_folder(record.name).mkdir(parents=True, exist_ok=True)
        self._write_record(record)

    def report(self, name: str, report: Report) -> bool:
        """Keep a report; a step that is known already (a replay after a crash) is left alone and answered False."""
        record = self.records[name]
        if report.step <= record.step:
            return False
        append_line(self.trial_folder(name) / "reports.jsonl", report.to_json())
        record.reports.append(report.sharing(record.reports[-1]) if record.reports else report)
        self._report_to_optuna(record, report)
        return True

    def finish(self, name: str, state: State, reason: str | None = None) -> None:
        """End a trial; told twice, the first stays."""
        record = self.records[name]
        if record.state != "running":
            return
        if state == "complete" and not is_finite(record.nll):
            state, reason = "diverged", f"non-finite validation loss at step {record.step}"
        record.state, record.reason = state, reason
        self._write_record(record)
        self._tell_optuna(record)
        self._drop_checkpoint(record)

    def restart(self, name: str) -> None:
        """Note that a trial's process or machine was lost."""
        record = self.records[name]
        record.restarts += 1
        self._write_record(record)

    def write_error(self, name: str, traceback: str) -> Path:
        """Keep what a trial raised; the file."""
        path = self.trial_folder(name) / ERROR_LOG
        write_atomically(path, traceback)
        return path

    def job(self, record: Record) -> Job:
        """What the host has to do for a record."""
        return Job(
            name=record.name,
            adapter=record.adapter,
            training=record.training,
            seed=record.seed,
            data_seed=record.data_seed,
            report_steps=self.study.report_steps(),
            folder=str(self.trial_folder(record.name)),
            test=record.stage == "confirm",
        )

    def bind_inputs(self, inputs: Mapping[str, str]) -> None:
        """Tie the folder to the text and base of its first run.

        Raises:
            InputError: text or base are not what they were, naming what changed.
        """
        path = self.folder / "inputs.json"
        before = read_json(path, Mapping[str, str]) if path.exists() else {}
        changed = [f"{k} was {before[k]}, now {v}" for k, v in inputs.items() if before.get(k, v) != v]
        if changed:
            raise InputError(
                f"study {self.study.name!r} ran on other text or another base (model {self.study.model}, data "
                f"{self.study.data}): {'; '.join(changed)}. Bring them back, or give the new study another --name"
            )
        if inputs.keys() - before.keys():  # a folder of an earlier version lacks some
            write_atomically(path, json.dumps({**before, **inputs}, indent=1))

    def trial_folder(self, name: str) -> Path:
        return self.folder / "trials" / name

    def best(self, arm: str) -> Record | None:
        """The arm's complete trial of lowest finite validation NLL."""
        return best_record(self.records, arm)

    def _check_study(self) -> None:
        path = self.folder / "study.json"
        if self.records and not path.exists():
            raise InputError(f"{path} is missing, though there are trials; put it back, or take another name (--name)")
        if not path.exists():
            return
        before, name = stored_study(path), self.study.name
        problems = [f"study {name!r} exists with other settings: {c}" for c in _changes(before, self.study)]
        if problems:
            problems.append("give the new study another name (--name), or set what it had")
        problems += [f"study {name!r}: {f}" for f in _fewer(before, self.study)]
        if problems:
            raise InputError(problems)

    def _check_files(self) -> None:
        """See that what is used only at the end can be read."""
        if self.records:
            require_database(self.folder / "optuna.db")
        if (path := self.folder / "inputs.json").exists():
            read_json(path, Mapping[str, str])
        read_id(self.folder)
        for record in self.records.values():
            if record.state == "complete" and record.reports[-1].block_nll:
                read_block_nll(self.folder, record)

    def _open_optuna(self, arm: str, search: int) -> optuna.Study:
        return optuna.create_study(
            storage=self._storage, study_name=optuna_name(arm, search), direction="minimize", load_if_exists=True
        )

    def _sampler(self, arm: str, search: int, number: int) -> BaseSampler:
        study = self.study
        points = None if study.blocks else study.space(arm).size()
        return make_sampler(study.seed, optuna_name(arm, search), number, trials=study.trials, points=points)

    def _sampled(self, arm: str, search: int, trial: optuna.Trial) -> Record:
        params = self.study.space(arm).sample(trial)
        adapter, training = self.study.configs(arm, params)
        record = Record(
            name=trial_name(arm, search, trial.number),
            arm=arm,
            stage="search",
            number=trial.number,
            params=params,
            adapter=adapter.to_dict(),
            training=training.to_dict(),
            seed=trial_seed(self.study, arm, search, trial.number),
            data_seed=derive_seed(self.study.seed, "data", *([search] if search else [])),
            search=search,
            block=trial.number if self.study.blocks else None,
        )
        self.add(record)
        return record

    def _lost(self) -> list[str]:
        """Files that must have been there: without them a search would start anew, or repeat itself."""
        problems, ended = [], {}
        for (arm, search), study in self._optuna.items():
            trials = study.get_trials(deepcopy=False)
            ended[optuna_name(arm, search)] = {t.number for t in trials if t.state.is_finished()}
            if unknown := sorted({r.number for r in self.of("search", arm, search)} - {t.number for t in trials}):
                problems.append(f"{self.folder / 'optuna.db'} has lost trials of arm {arm!r}: {unknown}; put it back")
        return problems + lost_trials(self.folder, ended, self.records)

    def _reconcile(self) -> None:
        """Bring Optuna in line with the trial files: a crash may have come between the two."""
        for (arm, search), study in self._optuna.items():
            for frozen in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                record = self.records.get(trial_name(arm, search, frozen.number))
                if record is None:  # asked, but not yet written down
                    study.sampler = self._sampler(arm, search, frozen.number)
                    self._sampled(arm, search, optuna.Trial(study, frozen._trial_id))
                    continue
                for report in record.reports:
                    self._report_to_optuna(record, report)
                if record.state != "running":
                    self._tell_optuna(record)

    def _drop_checkpoint(self, record: Record) -> None:
        """Delete the checkpoint of an ended trial, which nothing resumes; that of a confirm run is the adapter."""
        if record.stage != "confirm":
            (self.trial_folder(record.name) / CHECKPOINT).unlink(missing_ok=True)

    def _report_to_optuna(self, record: Record, report: Report) -> None:
        nll = report.metrics.get("eval/nll")
        if record.stage == "search" and nll is not None:
            study = self._optuna[record.arm, record.search]
            frozen = study.get_trials(deepcopy=False)[record.number]
            if not frozen.state.is_finished() and report.step not in frozen.intermediate_values:
                optuna.Trial(study, frozen._trial_id).report(nll, report.step)

    def _tell_optuna(self, record: Record) -> None:
        if record.stage == "search":
            state = _OPTUNA_STATES[record.state]
            value = record.nll if state == TrialState.COMPLETE else None
            self._optuna[record.arm, record.search].tell(record.number, value, state=state, skip_if_finished=True)

    def _write_record(self, record: Record) -> None:
        values = {k: v for k, v in asdict(record).items() if k != "reports"}
        write_atomically(self.trial_folder(record.name) / "trial.json", json.dumps(values, indent=1))


def trial_seed(study: Study, arm: str, search: int, number: int) -> int:
    """Return the seed of a search trial's adapter; the arms of a matched block share theirs."""
    if study.blocks:
        return derive_seed(study.seed, "block", search, number)
    return derive_seed(study.seed, *([search] if search else []), arm, number)


def _changes(before: Mapping[str, Any], study: Study) -> list[str]:
    """Return what differs between a stored study and one asked for, but for what may change."""
    then, now = dict(_leaves(before)), dict(_leaves(json.loads(json.dumps(study.to_dict()))))
    for key in ("model", "data"):  # a path may have been told from elsewhere, or all of it moved: see `bind_inputs`
        if os.path.exists(now[key]) and os.path.basename(str(then.get(key))) == os.path.basename(now[key]):
            then[key] = now[key]
    return [
        f"{key} was {_shown(then, key)}, now {_shown(now, key)}"
        for key in sorted(then.keys() | now.keys())
        if key not in _FREE and (key in then, then.get(key)) != (key in now, now.get(key))
    ]


def _shown(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "absent"


def _fewer(before: Mapping[str, Any], study: Study) -> list[str]:
    """What is asked for less than a stored study has."""
    return [
        f"{key} was {before[key]}, now {now}; what has been run stays: ask for as many or more"
        for key, now in ((key, getattr(study, key)) for key in GROWING)
        if now < before.get(key, 0)
    ]


def _leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The values that are no mappings, by their dotted path."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value
