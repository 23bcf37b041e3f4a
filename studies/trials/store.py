"""The study folder: what a study knows, written so that a crash at any moment loses nothing.

``study.json`` is the study; ``trials/NAME/trial.json`` and ``reports.jsonl`` are the truth about a trial; ``optuna.db``
holds one Optuna study for each arm. Opening the study brings it in line with the trial files, or rebuilds it from them.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import optuna
from filelock import Timeout
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from hylorada import InputError
from studies.files.folder_files import (
    STUDY,
    append_line,
    damaged,
    read_json,
    stored_study,
    study_lock,
    write_atomically,
    write_json,
)
from studies.spec.changes import changes, fewer
from studies.spec.common_values import common_values, search_seeds
from studies.spec.study import Study
from studies.trials.explanations import read_explanations
from studies.trials.integrity import check_seeds, incomplete_runs, seal_line
from studies.trials.messages import CHECKPOINT, ERROR_LOG, LAST_SPLIT, Job, Report
from studies.trials.optuna_database import (
    OPTUNA_STATES,
    check_pages,
    connect,
    differing,
    disconnect,
    expected,
    fault_of,
    rebuild,
)
from studies.trials.optuna_database import fault as fault_before
from studies.trials.records import (
    Record,
    State,
    best_record,
    check_kinds,
    is_finite,
    lost_trials,
    optuna_name,
    owner_of,
    planned_trials,
    read_block_nll,
    read_id,
    read_records,
    records_of,
    trial_name,
)
from studies.trials.sampler import make_sampler

_LOCK_S = 5.0  # `status` holds the lock while it ends the runs of a dead process
_INPUTS = "inputs"  # owner of the checksum of inputs.json


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
            raise InputError(
                f"study {study.name!r} is being run by another process ({folder})"
            ) from error
        self.records: dict[str, Record] = {}
        self.notes: list[str] = []  # what the user must know of how the folder was found
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
        self.id = self._identify()
        self._check_files()
        if fault := self._open_database():
            self._rebuild_database(fault)
        self._write_study()
        for record in self.records.values():
            if not record.sealed:  # of an earlier version
                self._write_record(record)
        for record in self.records.values():
            if record.state != "running":
                self._drop_checkpoint(record)
        for name, loss in incomplete_runs(self.folder, self.study, self.records):
            (self.trial_folder(name) / CHECKPOINT).unlink(missing_ok=True)
            self.notes.append(f"{loss}; {name} is trained again")

    def close(self) -> None:
        """Let another process open the folder."""
        self._close_database()
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
        trials = study.get_trials(deepcopy=False)
        number = sum(t.state != TrialState.WAITING for t in trials)
        given = self.study.start(arm) if number == 0 else {}
        if self.study.blocks:  # every arm of the block gets these; its sampler proposes the rest
            given |= self.study.labels(arm, common_values(self.study, search, number))
        if given and number == len(trials):  # else a crash came between this line and the next
            study.enqueue_trial(given)
        study.sampler = self._sampler(arm, search, number)
        return self._sampled(arm, search, study.ask())

    def add(self, record: Record) -> None:
        """Write a new record down."""
        self.records[record.name] = record
        folder = self.trial_folder(record.name)
        folder.mkdir(parents=True, exist_ok=True)
        for left in ("reports.jsonl", CHECKPOINT):  # of a trial whose trial.json is lost
            (folder / left).unlink(missing_ok=True)
        record.chain = owner_of(self.id, record.name)
        self._write_record(record)

    def report(self, name: str, report: Report) -> bool:
        """Keep a report; a step that is known already (a replay after a crash) is left alone and answered False."""
        record = self.records[name]
        if report.step <= record.step:
            return False
        line, chain = seal_line(report.to_json(), record.chain)
        append_line(self.trial_folder(name) / "reports.jsonl", line)
        record.chain = chain
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
            last_split=LAST_SPLIT.get(record.stage, ""),
        )

    def bind_inputs(self, inputs: Mapping[str, str]) -> None:
        """Tie the folder to the text and base of its first run.

        Raises:
            InputError: text or base are not what they were, naming what changed.
        """
        path = self.folder / "inputs.json"
        before = (
            read_json(path, Mapping[str, str], _INPUTS) if self.records or path.exists() else {}
        )
        changed = [
            f"{k} was {before[k]}, now {v}" for k, v in inputs.items() if before.get(k, v) != v
        ]
        if changed:
            raise InputError(
                f"study {self.study.name!r} ran on other text or another base (model {self.study.model}, data "
                f"{self.study.data}): {'; '.join(changed)}. Bring them back, or give the new study another --name"
            )
        if inputs.keys() - before.keys():  # a folder of an earlier version lacks some
            write_json(path, {**before, **inputs}, _INPUTS)

    def trial_folder(self, name: str) -> Path:
        return self.folder / "trials" / name

    def best(self, arm: str) -> Record | None:
        """The arm's complete trial of lowest finite validation NLL."""
        return best_record(self.records, arm)

    def _check_study(self) -> None:
        path = self.folder / "study.json"
        if self.records and not path.exists():
            raise InputError(
                f"{path} is missing, though there are trials; restore it from a backup, or take another name (--name)"
            )
        if not path.exists():
            return
        before, name = stored_study(path), self.study.name
        problems = [
            f"study {name!r} exists with other settings: {c}" for c in changes(before, self.study)
        ]
        if problems:
            problems.append("give the new study another name (--name), or set what it had")
        problems += [f"study {name!r}: {f}" for f in fewer(before, self.study)]
        if problems:
            raise InputError(problems)

    def _check_files(self) -> None:
        """See that what is used only at the end can be read, and that the files agree with each other."""
        if (path := self.folder / "inputs.json").exists():
            read_json(path, Mapping[str, str], _INPUTS)
        read_explanations(self.folder)
        check_seeds(self.folder, self.study, self.records)
        for record in self.records.values():
            if record.state == "complete" and record.reports[-1].block_nll:
                read_block_nll(self.folder, record)

    def _identify(self) -> str:
        """Return the folder's id, which a study without trials gets here."""
        found = read_id(self.folder)
        if found is None and self.records:
            raise InputError(
                f"{self.folder / 'id'} is missing; restore it from a backup, or from MLflow: it is the tag "
                "'hylorada.study' of the study's run"
            )
        return found or os.urandom(8).hex()

    def _write_study(self) -> None:
        """Write the study, with a copy of its id, and the id itself where it is lost."""
        write_json(self.folder / "study.json", {**self.study.to_dict(), "id": self.id}, STUDY)
        path = self.folder / "id"
        if not path.exists() or path.read_bytes() != self.id.encode():
            write_atomically(path, self.id)

    def _open_database(self) -> str | None:
        """Open Optuna's database and bring it in line with the trial files; what is wrong with it, if anything is.

        Raises:
            InputError: Another version of Optuna made it, or trials are lost or damaged; it is left as it was.
        """
        path = self.folder / "optuna.db"
        if fault := fault_before(path, expected=bool(self.records)):
            return fault
        try:
            self._connect()
            assert self._storage is not None
            check_pages(self._storage)
            if lost := self._lost():
                raise InputError(lost)
            if fault := self._lacking():
                return fault
            self._reconcile()
            return self._difference()
        except InputError:
            raise
        except Exception as error:  # whatever a garbled database leads to
            if (fault := fault_of(error)) is None:
                raise
            return fault

    def _rebuild_database(self, fault: str) -> None:
        self._close_database()
        path = self.folder / "optuna.db"
        rebuild(path, self.study, self.records)
        self._connect()
        self.notes.append(f"{path} {fault}; rebuilt it from the trial files")

    def _connect(self) -> None:
        self._storage = connect(self.folder / "optuna.db")
        places = [(arm, search) for search in range(self.study.searches) for arm in self.study.arms]
        self._optuna = {place: self._open_optuna(*place) for place in places}

    def _close_database(self) -> None:
        if self._storage is not None:
            disconnect(self._storage)
        self._storage, self._optuna = None, {}

    def _lacking(self) -> str | None:
        for (arm, search), study in self._optuna.items():
            known = {t.number for t in study.get_trials(deepcopy=False)}
            if not known >= {r.number for r in self.of("search", arm, search)}:
                return f"lacks trials of arm {arm!r}"
        return None

    def _difference(self) -> str | None:
        """Return in what the database differs from the trial files.

        Raises:
            InputError: The files have no checksums, so that either may be damaged.
        """
        for (arm, search), study in self._optuna.items():
            stored = study.get_trials(deepcopy=False)
            for record in self.of("search", arm, search):
                wanted = expected(self.folder, self.study, record)
                if name := differing(stored[record.number], wanted):
                    self._settle(record, name, stored[record.number], wanted)
                    return f"holds other {name.replace('_', ' ')} of {record.name} than its trial files"
        return None

    def _settle(self, record: Record, name: str, stored: FrozenTrial, wanted: FrozenTrial) -> None:
        """Decide for the trial files where these are whole; a trial that has lost reports is trained again."""
        folder = self.trial_folder(record.name)
        if not record.sealed:
            there, here = getattr(stored, name), getattr(wanted, name)
            raise damaged(folder, f"{name} is {here}, but {there} in {self.folder / 'optuna.db'}")
        if (
            record.state == "running"
            and stored.intermediate_values.keys() - wanted.intermediate_values.keys()
        ):
            (folder / CHECKPOINT).unlink(missing_ok=True)
            self.notes.append(
                f"{folder / 'reports.jsonl'} has lost reports; {record.name} is trained again"
            )

    def _open_optuna(self, arm: str, search: int) -> optuna.Study:
        return optuna.create_study(
            storage=self._storage,
            study_name=optuna_name(arm, search),
            direction="minimize",
            load_if_exists=True,
        )

    def _sampler(self, arm: str, search: int, number: int) -> BaseSampler:
        study = self.study
        points = None if study.blocks else study.space(arm).size()
        return make_sampler(
            study.seed, optuna_name(arm, search), number, trials=study.trials, points=points
        )

    def _sampled(self, arm: str, search: int, trial: optuna.Trial) -> Record:
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

    def _lost(self) -> list[str]:
        """Return a line for each arm with ended trials of which no files are left: a search would repeat itself."""
        ended = {
            optuna_name(*place): {
                t.number for t in study.get_trials(deepcopy=False) if t.state.is_finished()
            }
            for place, study in self._optuna.items()
        }
        return lost_trials(self.folder, ended, self.records)

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
            state = OPTUNA_STATES[record.state]
            value = record.nll if state == TrialState.COMPLETE else None
            self._optuna[record.arm, record.search].tell(
                record.number, value, state=state, skip_if_finished=True
            )

    def _write_record(self, record: Record) -> None:
        path = self.trial_folder(record.name) / "trial.json"
        write_json(path, record.to_dict(), owner_of(self.id, record.name))
        record.sealed = True
