"""The run that is exported: which arm, which search and which seed."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hylorada import InputError, nearest
from studies.analysis.notes import repeated_faults, sees_future
from studies.analysis.results import ArmResult, Results, read_results
from studies.files.folder_files import stored_study
from studies.spec.common_values import seed_name
from studies.spec.study import Study
from studies.trials.loading import load_records
from studies.trials.messages import CHECKPOINT, split_for
from studies.trials.records import Record


@dataclass(frozen=True)
class Winner:
    """The confirm run that is exported.

    Attributes:
        study: The study.
        results: Its results.
        arm: Result of the winner's arm.
        run: Record of the confirm run.
        checkpoint: Checkpoint of the run, with its adapter.
    """

    study: Study
    results: Results
    arm: ArmResult
    run: Record
    checkpoint: Path

    @property
    def ppl(self) -> float:
        """Test perplexity of this run."""
        return self.arm.ppl_by_seed[run_names(self.arm).index(self.run.name)]

    @property
    def on_padded_rows(self) -> bool:
        """Whether this run was trained and tested on padded rows instead of blocks of text."""
        return split_for("test", self.run.training) != "test"

    @property
    def seed(self) -> int:
        """Paired seed of this run: its name if the study names its seeds, or its number."""
        return seed_name(self.study.seed_list, self.run.number)


def find_winner(folder: Path, arm: str | None, seed: int | None) -> Winner:
    """Return the confirm run of an arm and seed, of that arm's best search.

    Args:
        folder: Folder of the study.
        arm: Name of the arm; None chooses the arm of lowest mean validation NLL.
        seed: Paired seed, by name if the study names its seeds, or by number; None chooses the
            first.

    Raises:
        InputError: The arm or seed is unknown, no arm has finished, or the checkpoint is missing.
    """
    study = Study.from_dict(stored_study(folder / "study.json"))
    results = read_results(folder / "results.json")
    arms = {a.arm: a for a in results.arms}
    if not arms:
        raise InputError(
            f"study {study.name!r}: no arm has finished the confirm stage, so there is no winner"
        )
    if arm is not None and arm not in arms:
        raise InputError(f"arm {arm!r} has no confirmed winner; {nearest(arm, arms)}")
    records = load_records(folder)
    # Don't choose an arm that repeats a published fault, unless the caller names it or all do.
    honest = [a for a in results.arms if not _is_faulty(records[a.trial])] or results.arms
    chosen = (
        arms[arm]
        if arm is not None
        else min(honest, key=lambda a: _mean_nll(run_names(a), records))
    )
    finished = _best_search(chosen, records)
    runs = {seed_name(study.seed_list, number): finished[number] for number in sorted(finished)}
    name = next(iter(runs.values())) if seed is None else runs.get(seed)
    if name is None:
        raise InputError(
            f"seed {seed} of arm {chosen.arm!r} has not finished; "
            f"one of: {', '.join(map(str, runs))}"
        )
    run = records.get(name)
    checkpoint = folder / "trials" / name / CHECKPOINT
    if run is None or not checkpoint.is_file():
        raise InputError(
            f"{checkpoint} is missing; restore it from a backup, or export another seed (--seed)"
        )
    return Winner(study, results, chosen, run, checkpoint)


def _is_faulty(record: Record) -> bool:
    return sees_future(record) or bool(repeated_faults(record))


def run_names(arm: ArmResult) -> tuple[str, ...]:
    """Return the names of an arm's runs, which results of earlier versions do not store."""
    return arm.runs or tuple(f"{arm.trial}-confirm-{seed:02d}" for seed in arm.seeds)


def _best_search(arm: ArmResult, records: Mapping[str, Record]) -> dict[int, str]:
    """Return the run names of the arm's search with the lowest mean validation NLL, by seed."""
    searches: dict[int, dict[int, str]] = {}
    for seed, name in zip(arm.seeds, run_names(arm), strict=True):
        record = records.get(name)
        searches.setdefault(record.search if record else 0, {})[seed] = name
    return min(searches.values(), key=lambda runs: _mean_nll(runs.values(), records))


def _mean_nll(names: Iterable[str], records: Mapping[str, Record]) -> float:
    losses = [nll for name in names if name in records and (nll := records[name].nll) is not None]
    return sum(losses) / len(losses) if losses else math.inf
