"""The training that a study still needs, and how fast its trials have trained so far.

Both are counted in text blocks. An evaluated block takes a fixed share of the time of a trained
one, so a few reports tell how long all other runs will take.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median

from studies.analysis.forecast.stopping import expected_trial
from studies.spec.study import Study
from studies.trials.messages import LAST_SPLIT, Report
from studies.trials.records import Record, planned_trials, records_of
from studies.trials.winners import counting, wanted_runs

# Measured on SmolLM2-135M and on the built-in base with blocks of 128 and 512 tokens: 0.29 to 0.31.
EVALUATION_SHARE = 0.3
_FEWEST_PACES = 4  # stretches between reports that tell the pace

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
        reports: Expected number of their reports.
    """

    stage: str
    trials: int
    steps: float
    trained: float
    evaluated: float
    reports: float


@dataclass(frozen=True)
class Pace:
    """The speed of a device with a full pack.

    Attributes:
        block_seconds: Seconds for one block of one trial: its share of the pack's time.
        evaluation_share: Time of an evaluated block as a share of that.
        report_seconds: Seconds that a report of one trial takes beyond its evaluation; 0 where
            ``block_seconds`` includes them.
    """

    block_seconds: float
    evaluation_share: float = EVALUATION_SHARE
    report_seconds: float = 0.0

    def seconds(self, work: Iterable[Work]) -> float:
        """Return the seconds that one device takes for all this work."""
        return sum(
            self.block_seconds * (w.trained + self.evaluation_share * w.evaluated)
            + self.report_seconds * w.reports
            for w in work
        )


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

    The pace is measured between two reports of a trial, because its first steps also allocate
    memory and compile layers. The start of one trial also holds up the others of its pack, so
    stretches that took more than twice the usual time are left out.

    Args:
        records: The study's records by name.
        sizes: Number of blocks of each split.
    """
    paces = [pace for record in records.values() for pace in _later_paces(record, sizes)]
    if len(paces) >= _FEWEST_PACES:
        usual = 2 * median(paces)
        return Pace(mean(pace for pace in paces if pace <= usual))
    if any(r.state != "running" for r in records.values()):
        return pace_of(records.values(), sizes)  # there are few trials, or each has one report
    return None


def pace_of(records: Iterable[Record], sizes: Sizes) -> Pace | None:
    """Return the pace over all reports of some trials; None if there are none.

    Args:
        records: The records of the trials.
        sizes: Number of blocks of each split.
    """
    seconds = blocks = 0.0
    for record in records:
        if record.reports and not record.reports[-1].diverged:
            seconds += record.reports[-1].seconds
            blocks += _blocks(record, record.reports[-1], sizes)
    return Pace(seconds / blocks) if blocks and seconds > 0 else None


def _later_paces(record: Record, sizes: Sizes) -> Iterator[float]:
    """Yield the seconds per trained block between the reports of a trial."""
    for before, report in pairwise(record.reports):
        seconds = report.seconds - before.seconds
        if seconds > 0 and not report.diverged:
            yield seconds / (_blocks(record, report, sizes) - _blocks(record, before, sizes))


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
    trials, steps, trained, reports = 0, 0.0, 0.0, 0.0
    running = [r for r in records.values() if r.stage == "search" and r.state == "running"]
    for record in (r for r in running if r.search < study.searches):
        left = study.max_steps - record.step
        trials, steps = trials + 1, steps + left
        trained += left * _batch_size(record)
        reports += sum(s > record.step for s in study.report_steps())
    for arm in study.arms:
        batch = int(study.fields(arm)["batch_size"])
        for search in range(study.searches):
            planned = planned_trials(study, records, arm, search)
            new = planned - len(records_of(records, "search", arm, search))
            expected, reported = expected_trial(
                planned, study.report_steps(), study.rungs(), study.reduction_factor
            )
            trials, steps = trials + new, steps + new * expected
            trained += new * expected * batch
            reports += new * reported
    return Work("search", trials, steps, trained, reports * sizes["validation"], reports)


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
    reports = trials * len(study.report_steps())
    evaluated = reports * sizes["validation"] + trials * last
    return Work(stage, trials, steps, steps * sum(batches) / len(batches), evaluated, reports)
