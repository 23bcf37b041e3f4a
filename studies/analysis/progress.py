"""The progress of a study, what it shows before its end, and the command that resumes it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from studies.spec.study import Study
from studies.trials.records import Record, is_finite, planned_trials, records_of
from studies.trials.reruns import FEWEST_SEEDS, select_records
from studies.trials.winners import counting, wanted_runs, winners

_NO_VERDICT = (
    "no verdict yet: arms are compared on the test split only after all runs on fresh seeds have "
    "ended, because a comparison that is read early, and again later, errs more often than in 5 % "
    "of the cases"
)


@dataclass(frozen=True)
class Leader:
    """A trial that leads its arm in a search, or one that a user has added.

    Attributes:
        arm: Its arm.
        search: Its search.
        trial: Its name.
        state: Its state; a running one may still be overtaken or stopped.
        step: Step of its last report.
        ppl: Validation PPL at this step; None before its first report.
        params: Its searched parameters.
    """

    arm: str
    search: int
    trial: str
    state: str
    step: int
    ppl: float | None
    params: Mapping[str, Any]


@dataclass(frozen=True)
class Partial:
    """What a study shows before its end: validation figures only.

    Attributes:
        study: Name of the study.
        stages: For each stage, how many of its runs have ended, and how many it has.
        best: The leading trial of each arm and search: of those that have come furthest, the one
            with the lowest validation loss.
        added: The trials that users have added.
        missing: What is still to come, in sentences.
        notes: What the reader should also know.
    """

    study: str
    stages: Mapping[str, tuple[int, int]]
    best: tuple[Leader, ...]
    added: tuple[Leader, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, marked as partial."""
        return {"partial": True, **asdict(self)}


def partial_results(study: Study, records: Mapping[str, Record], notes: Sequence[str]) -> Partial:
    """Return what a study shows before its end.

    Args:
        study: The study.
        records: All of its records so far.
        notes: Further notes.
    """
    counts = stage_counts(study, records)
    best, missing = [], [_rest(stage, *count) for stage, count in counts.items()]
    for arm in study.arms:
        for search in range(study.searches):
            trials = records_of(records, "search", arm, search)
            if leader := _leader(trials):
                best.append(leader)
            else:
                where = f" in search {search}" if study.searches > 1 else ""
                missing.append(f"arm {arm!r} has no trial with a report{where}")
    added = [_shown(r) for arm in study.arms for r in records_of(records, "added", arm)]
    all_missing = (*filter(None, missing), _NO_VERDICT)
    return Partial(study.name, counts, tuple(best), tuple(added), all_missing, tuple(notes))


def _rest(stage: str, ended: int, wanted: int) -> str:
    """Return what is left of a stage; "" if all of its runs have ended."""
    if stage != "search" and not ended:
        return f"{stage}: not begun; at most {wanted} runs"
    return f"{stage}: {wanted - ended} of {wanted} still to end" if ended < wanted else ""


def _leader(trials: Sequence[Record]) -> Leader | None:
    """Return the best of the trials that have come furthest; trials that can't win are left out."""
    going = [r for r in trials if r.state in ("running", "complete") and is_finite(r.nll)]
    first = min(going, key=lambda r: (-r.step, r.nll, r.number), default=None)
    return None if first is None else _shown(first)


def _shown(r: Record) -> Leader:
    ppl = r.reports[-1].metrics.get("eval/ppl") if r.reports else None
    return Leader(r.arm, r.search, r.name, r.state, r.step, ppl, r.params)


def stage_counts(study: Study, records: Mapping[str, Record]) -> dict[str, tuple[int, int]]:
    """Return for each stage of the study how many of its runs have ended, and how many it has.

    The exact number of runs of a stage is known only once the stage before has ended; until then it
    is the largest possible one.
    """
    best = winners(study, records)
    counted = {
        "search": counting(study, records, "search"),
        "select": counting(study, records, "select") if study.finalists > 1 else [],
        "confirm": [r for w in best.values() for r in w.runs(records, "confirm")],
    }
    ended = {s: sum(r.state != "running" for r in runs) for s, runs in counted.items()}
    searched = sum(
        planned_trials(study, records, arm, s) for s in range(study.searches) for arm in study.arms
    )
    wanted = {
        "search": searched,
        **{stage: wanted_runs(study, stage) for stage in ("select", "confirm")},
    }
    if ended["search"] >= searched:
        wanted["select"] = len(select_records(study, records)) if study.finalists > 1 else 0
        if ended["select"] >= wanted["select"]:
            wanted["confirm"] = len(best) * study.seeds * len(study.factors)
    return {stage: (ended[stage], count) for stage, count in wanted.items() if count}


def stage_lines(study: Study, records: Mapping[str, Record]) -> list[str]:
    """Return one line per stage with its number of ended runs."""
    lines = [
        f"{stage}: {ended} of {count} ended"
        for stage, (ended, count) in stage_counts(study, records).items()
    ]
    if added := counting(study, records, "added"):
        done = sum(r.state != "running" for r in added)
        lines.append(f"added by users: {done} of {len(added)} ended")
    if begun := [r.state for r in records.values() if r.stage == "explain"]:
        lines.append(
            f"explain: {len(begun) - begun.count('running')} of {len(begun)} started runs ended"
        )
    return lines


def resume_command(name: str, records: Mapping[str, Record]) -> list[str]:
    """Return the command that resumes a study, or the explanation of one of its winners."""
    begun = [r for r in records.values() if r.state == "running"]
    if not begun or any(r.stage != "explain" for r in begun):
        return ["hylorada", "run", name]
    arm, search = begun[0].arm, begun[0].search
    seeds = 1 + max(
        r.number for r in records.values() if (r.stage, r.arm, r.search) == ("explain", arm, search)
    )
    # at least as many seeds as there are runs of
    seeds_option = ["--seeds", str(seeds)] if seeds > FEWEST_SEEDS else []
    return ["hylorada", "explain", name, "--arm", arm, "--search", str(search), *seeds_option]
