"""The progress of a study, and the command that resumes it."""

from collections.abc import Mapping

from studies.spec.study import Study
from studies.trials.records import Record, planned_trials
from studies.trials.reruns import FEWEST_SEEDS, confirm_records, select_records
from studies.trials.winners import counting, wanted_runs


def stage_counts(study: Study, records: Mapping[str, Record]) -> dict[str, tuple[int, int]]:
    """Return for each stage of the study how many of its runs have ended, and how many it has.

    The exact number of runs of a stage is known only once the stage before has ended; until then it
    is the largest possible one.
    """
    ended = {
        s: sum(r.state != "running" for r in counting(study, records, s))
        for s in ("search", "select", "confirm")
    }
    searched = sum(
        planned_trials(study, records, arm, s) for s in range(study.searches) for arm in study.arms
    )
    wanted = {
        "search": searched,
        **{stage: wanted_runs(study, stage) for stage in ("select", "confirm")},
    }
    if ended["search"] >= searched:
        wanted["select"] = len(select_records(study, records))
        if ended["select"] >= wanted["select"]:
            wanted["confirm"] = len(confirm_records(study, records))
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
