"""The training that a study still needs, and how fast its trials have trained so far.

Both are counted in text blocks. An evaluated block takes a fixed share of the time of a trained
one, so a few reports tell how long all other runs will take.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from studies.analysis.forecast.stopping import expected_trial
from studies.spec.study import Study
from studies.trials.messages import LAST_SPLIT, Report
from studies.trials.records import Record, planned_trials, records_of
from studies.trials.winners import counting, wanted_runs

# Measured on SmolLM2-135M and on the built-in base with blocks of 128 and 512 tokens: 0.29 to 0.31.
EVALUATION_SHARE = 0.3

Sizes = Mapping[str, int]  # number of blocks of each split that the study uses


@dataclass(frozen=True)
class Work:
    """The training that one stage still needs.

    Attributes:
        stage: Name of the stage.
        trials: Number of trials or runs to train or to finish.
        steps: Expected number of their optimizer steps.
        trained: Expected number of blocks that they train on.
        evaluated: Expected number of blocks that they are evaluated on.
    """

    stage: str
    trials: int
    steps: float
    trained: float
    evaluated: float


@dataclass(frozen=True)
class Pace:
    """The speed of a device with a full pack.

    Attributes:
        block_seconds: Seconds for one block of one trial: its share of the pack's time.
        evaluation_share: Time of an evaluated block as a share of that.
    """

    block_seconds: float
    evaluation_share: float = EVALUATION_SHARE

    def seconds(self, work: Iterable[Work]) -> float:
        """Return the seconds that one device takes for all this work."""
        blocks = sum(w.trained + self.evaluation_share * w.evaluated for w in work)
        return self.block_seconds * blocks


def work_left(
    study: Study, records: Mapping[str, Record], sizes: Sizes, explain: int = 0
) -> tuple[Work, ...]:
    """Return the work that is left in each stage, without stages that have ended.

    Args:
        study: The study.
        records: Its records so far, by name.
        sizes: Number of blocks of each split.
        explain: Number of runs that explain a winner.
    """
    left = [_search(study, records, sizes)]
    for stage, count in (
        ("select", wanted_runs(study, "select")),
        ("confirm", wanted_runs(study, "confirm")),
        ("explain", explain),
        ("added", sum(r.stage == "added" for r in records.values())),
    ):
        left.append(_reruns(study, records, sizes, stage, count))
    return tuple(work for work in left if work.trials)


def pace_so_far(records: Mapping[str, Record], sizes: Sizes) -> Pace | None:
    """Return the pace of a study's trials; None before their reports tell it.

    First reports are left out where there are others, because the first steps also allocate memory
    and compile layers.

    Args:
        records: The study's records by name.
        sizes: Number of blocks of each split.
    """
    steady = pace_of(records.values(), sizes, without_first=True)
    if steady is None and any(r.state != "running" for r in records.values()):
        return pace_of(records.values(), sizes)  # trials with a single report
    return steady


def pace_of(records: Iterable[Record], sizes: Sizes, *, without_first: bool = False) -> Pace | None:
    """Return the pace over all reports of some trials; None if there are none.

    Args:
        records: The records of the trials.
        sizes: Number of blocks of each split.
        without_first: Whether to leave out each trial up to its first report.
    """
    seconds = blocks = 0.0
    for record in records:
        if not record.reports or record.reports[-1].diverged:
            continue
        first = record.reports[0] if without_first else None
        if first is record.reports[-1]:
            continue
        last = record.reports[-1]
        seconds += last.seconds - (first.seconds if first else 0.0)
        blocks += _blocks(record, last, sizes) - (_blocks(record, first, sizes) if first else 0.0)
    return Pace(seconds / blocks) if blocks and seconds > 0 else None


def _blocks(record: Record, report: Report, sizes: Sizes) -> float:
    """Return the blocks of a trial up to a report, in trained blocks."""
    reports = sum(r.step <= report.step for r in record.reports)
    evaluated = reports * sizes["validation"]
    if report.done:
        evaluated += sizes.get(LAST_SPLIT.get(record.stage, ""), 0)
    return report.step * _batch_size(record) + EVALUATION_SHARE * evaluated


def _batch_size(record: Record) -> int:
    return int(record.training["batch_size"])


def _search(study: Study, records: Mapping[str, Record], sizes: Sizes) -> Work:
    trials, steps, trained, evaluated = 0, 0.0, 0.0, 0.0
    running = [r for r in records.values() if r.stage == "search" and r.state == "running"]
    for record in (r for r in running if r.search < study.searches):
        left = study.max_steps - record.step
        trials, steps = trials + 1, steps + left
        trained += left * _batch_size(record)
        evaluated += sizes["validation"] * sum(s > record.step for s in study.report_steps())
    for arm in study.arms:
        batch = int(study.fields(arm)["batch_size"])
        for search in range(study.searches):
            planned = planned_trials(study, records, arm, search)
            new = planned - len(records_of(records, "search", arm, search))
            expected, reports = expected_trial(
                planned, study.report_steps(), study.rungs(), study.reduction_factor
            )
            trials, steps = trials + new, steps + new * expected
            trained += new * expected * batch
            evaluated += new * reports * sizes["validation"]
    return Work("search", trials, steps, trained, evaluated)


def _reruns(
    study: Study, records: Mapping[str, Record], sizes: Sizes, stage: str, wanted: int
) -> Work:
    """Return the work of a stage whose runs all train to their end."""
    begun = [r for r in records.values() if r.stage == stage]
    if begun and stage != "explain":
        begun = counting(study, records, stage)
    trials = max(0, wanted - sum(r.state != "running" for r in begun))
    batches = [int(study.fields(arm)["batch_size"]) for arm in study.arms]
    steps = trials * study.max_steps
    last = sizes.get(LAST_SPLIT.get(stage, ""), 0)
    evaluated = trials * (len(study.report_steps()) * sizes["validation"] + last)
    return Work(stage, trials, steps, steps * sum(batches) / len(batches), evaluated)
