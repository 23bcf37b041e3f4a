"""The Optuna studies of a study folder, one for each arm and search, kept in its ``optuna.db``."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from hylorada import InputError
from studies.files.folder_files import damaged
from studies.spec.common_values import given_values, search_seeds
from studies.spec.study import Study
from studies.trials.by_hand.added_studies import added_study, keep_added
from studies.trials.messages import CHECKPOINT, Report
from studies.trials.optuna_database import (
    OPTUNA_STATES,
    attributes,
    check_pages,
    connect,
    create_study,
    differing,
    disconnect,
    expected,
    fault_of,
    final_value,
    known_attributes,
    losses,
    rebuild,
)
from studies.trials.optuna_database import fault as fault_before
from studies.trials.optuna_writes import write_attributes, write_end, write_loss, write_proposal
from studies.trials.records import (
    Record,
    lost_trials,
    place_name,
    place_of,
    records_of,
    study_title,
    trial_name,
)
from studies.trials.sampling.sampler import SampledArm, make_sampler
from studies.trials.sampling.search_memory import SearchMemory

Place = tuple[str, int]  # an arm and a search


class OptunaStudies:
    """Proposes trials and keeps Optuna's database in line with the trial files.

    Samplers read trials from memory. The database is only written while a study runs: a proposal in
    one transaction, before its trial file, and each report and end after theirs.

    Args:
        folder: Folder of the study.
        study: The study.
        note: Called with a line for the user about each repair.
    """

    def __init__(self, folder: Path, study: Study, note: Callable[[str], None]) -> None:
        self._folder, self._study, self._note = folder, study, note
        self._path = folder / "optuna.db"
        self._storage: optuna.storages.RDBStorage | None = None
        self._studies: dict[Place, optuna.Study] = {}
        self._memories: dict[Place, SearchMemory] = {}  # of the searches that have been asked
        self._ids: dict[str, int] = {}  # Optuna's ids of the trials that this process has begun

    def open(
        self, records: Mapping[str, Record], add: Callable[[Place, optuna.Trial], object]
    ) -> None:
        """Open the database, or rebuild it from the records if it is lost or damaged.

        Args:
            records: All records of the study folder.
            add: Samples and records a trial that Optuna created just before a crash.

        Raises:
            InputError: Another version of Optuna made the database, or trials are lost or damaged;
                the database is left as it was.
        """
        if fault := self._open_sound(records, add):
            self.close()
            rebuild(self._path, self._study, records)
            self._connect()
            self._note(f"{self._path} {fault}; rebuilt it from the trial files")
        for record in records.values():  # a crash may have come before one was written here
            if record.stage == "added" and record.state != "running":
                self.finish(record)

    def close(self) -> None:
        """Close all connections to the database."""
        if self._storage is not None:
            disconnect(self._storage)
        self._storage, self._studies = None, {}
        self._memories, self._ids = {}, {}

    def ask(self, place: Place) -> optuna.Trial:
        """Return the next trial of an arm and search, with all of its parameters."""
        arm, search = place
        memory, study = self._memory(place), self._studies[place]
        number = memory.count
        given = given_values(self._study, arm, search, number)
        seed, _ = search_seeds(self._study, arm, search, number)
        name = trial_name(arm, search, number)
        trial = memory.ask(self._sampler(place, number), given, known_attributes(name, seed))
        self._study.space(arm).sample(trial)
        self._ids[name] = write_proposal(self._database, study._study_id, memory.trial(number))
        return trial

    def _memory(self, place: Place) -> SearchMemory:
        """Return the memory of an arm and search, read from the database at the first proposal."""
        if place not in self._memories:
            trials = self._studies[place].get_trials(deepcopy=False)
            self._memories[place] = SearchMemory(trials)
        return self._memories[place]

    def report(self, record: Record, report: Report) -> None:
        """Report the validation NLL of a running search trial to Optuna, which lacks it."""
        if record.stage == "search" and record.state == "running":
            self._report(record, report)

    def _report(self, record: Record, report: Report) -> None:
        nll = report.metrics.get("eval/nll")
        if nll is not None:
            write_loss(self._database, self._trial_id(record), report.step, float(nll))

    def _trial_id(self, record: Record) -> int:
        """Return Optuna's id of a search trial, without reading the trial."""
        if record.name not in self._ids:
            study = self._studies[record.arm, record.search]
            self._ids[record.name] = study._storage.get_trial_id_from_study_id_trial_number(
                study._study_id, record.number
            )
        return self._ids[record.name]

    def finish(self, record: Record) -> None:
        """End a search trial in Optuna's database as its record ended; add one of a user's."""
        if record.stage == "added":
            keep_added(self._database, self._study, record)
        if record.stage == "search":
            place, trial_id = (record.arm, record.search), self._trial_id(record)
            state, value = OPTUNA_STATES[record.state], final_value(record)
            write_end(self._database, trial_id, state, value, attributes(record))
            if place in self._memories:
                last = max(losses(record).items(), default=None)
                self._memories[place].end(record.number, state, value, last)

    def add_run_ids(self, service: str, ids: Mapping[str, str]) -> None:
        """Store which runs a tracking service holds for the trials in the database.

        Services are written in the background, so these ids are known only after a trial's end.

        Args:
            service: Name of the service, e.g. ``MLflow``.
            ids: Id of each known run, by name of the trial.
        """
        key = f"{service.lower().replace(' ', '_')}_run"
        new: dict[int, dict[str, str]] = {}
        for name, frozen in self._named_trials():
            run = ids.get(name)
            if run is not None and frozen.user_attrs.get(key) != run:
                new[frozen._trial_id] = {key: run}
        write_attributes(self._database, new)

    def _named_trials(self) -> Iterator[tuple[str, FrozenTrial]]:
        """Yield all trials of the database with their names."""
        for (arm, search), study in self._studies.items():
            for frozen in study.get_trials(deepcopy=False):
                yield trial_name(arm, search, frozen.number), frozen
        for arm in self._study.arms:
            if (added := added_study(self._database, self._study, arm)) is not None:
                for frozen in added.get_trials(deepcopy=False):
                    yield frozen.user_attrs["name"], frozen

    @property
    def _database(self) -> optuna.storages.RDBStorage:
        assert self._storage is not None, "the database is not open"
        return self._storage

    def _open_sound(
        self, records: Mapping[str, Record], add: Callable[[Place, optuna.Trial], object]
    ) -> str | None:
        """Open the database and bring it in line with the records; return its fault, if any."""
        if fault := fault_before(self._path, expected=bool(records)):
            return fault
        try:
            check_pages(self._connect())
            if problems := lost_trials(self._folder, self._ended(), records):
                raise InputError(problems)
            if fault := self._lacking(records):
                return fault
            self._reconcile(records, add)
            return self._difference(records)
        except InputError:
            raise
        except Exception as error:  # a garbled database can lead to any
            if (fault := fault_of(error)) is None:
                raise
            return fault

    def _connect(self) -> optuna.storages.RDBStorage:
        self._storage = connect(self._path)
        # Studies of earlier versions keep their names.
        titles = {place_of(t): t for t in optuna.get_all_study_names(self._storage)}
        for search in range(self._study.searches):
            for arm in self._study.arms:
                title = titles.get(place_name(arm, search))
                self._studies[arm, search] = (
                    create_study(self._storage, study_title(self._study.name, arm, search))
                    if title is None
                    else optuna.load_study(study_name=title, storage=self._storage)
                )
        return self._storage

    def _sampler(self, place: Place, number: int) -> BaseSampler:
        arm, search = place
        study = self._study
        space = study.arms[arm].space if study.blocks else study.space(arm)
        sampled = SampledArm(
            seed=study.seed,
            name=place_name(arm, search),
            names=tuple(space.parameters),
            trials=study.trials,
            points=None if study.blocks else space.size(),
        )
        return make_sampler(study.sampler, sampled, number)

    def _ended(self) -> dict[str, set[int]]:
        """Return the numbers of the ended trials by Optuna study.

        A search whose ended trials had lost their files would repeat itself.
        """
        ended = {}
        for place, study in self._studies.items():
            trials = study.get_trials(deepcopy=False)
            ended[place_name(*place)] = {t.number for t in trials if t.state.is_finished()}
        return ended

    def _lacking(self, records: Mapping[str, Record]) -> str | None:
        for (arm, search), study in self._studies.items():
            known = {t.number for t in study.get_trials(deepcopy=False)}
            if not known >= {r.number for r in records_of(records, "search", arm, search)}:
                return f"lacks trials of arm {arm!r}"
        return None

    def _reconcile(
        self, records: Mapping[str, Record], add: Callable[[Place, optuna.Trial], object]
    ) -> None:
        """Bring Optuna in line with the trial files: a crash may have come between the two."""
        for study in self._studies.values():
            # Earlier versions queued a trial before they asked for it, with a crash in between.
            if study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
                study.ask()
        for place, frozen in self._running():
            study = self._studies[place]
            record = records.get(trial_name(*place, frozen.number))
            if record is None:  # the crash came before the trial's file was written
                study.sampler = self._sampler(place, frozen.number)
                add(place, optuna.Trial(study, frozen._trial_id))
                continue
            for report in record.reports:
                if report.step not in frozen.intermediate_values:
                    self._report(record, report)
            if record.state != "running":
                self.finish(record)

    def _running(self) -> Iterator[tuple[Place, FrozenTrial]]:
        for place, study in self._studies.items():
            for frozen in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                yield place, frozen

    def _difference(self, records: Mapping[str, Record]) -> str | None:
        """Return how the database differs from the trial files; None if it does not.

        Raises:
            InputError: The files have no checksums, so either side may be damaged.
        """
        for (arm, search), study in self._studies.items():
            stored = study.get_trials(deepcopy=False)
            for record in records_of(records, "search", arm, search):
                wanted = expected(self._folder, self._study, record)
                if field := differing(stored[record.number], wanted):
                    self._settle(record, field, stored[record.number], wanted)
                    values = field.replace("_", " ")
                    return f"holds other {values} of {record.name} than its trial files"
        return None

    def _settle(self, record: Record, field: str, stored: FrozenTrial, wanted: FrozenTrial) -> None:
        """Decide for the trial files if they are sealed; retrain a trial that has lost reports."""
        folder = self._folder / "trials" / record.name
        if not record.sealed:
            there, here = getattr(stored, field), getattr(wanted, field)
            raise damaged(folder, f"{field} is {here}, but {there} in {self._path}")
        lost = stored.intermediate_values.keys() - wanted.intermediate_values.keys()
        if record.state == "running" and lost:
            (folder / CHECKPOINT).unlink(missing_ok=True)
            reports = folder / "reports.jsonl"
            self._note(f"{reports} has lost reports; {record.name} is trained again")
