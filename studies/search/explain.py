"""The work of ``hylorada explain``: training to find out why a winner differs from the defaults."""

import json
import shlex
from collections.abc import Collection, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hylorada import InputError, nearest
from hylorada.runtime.checksums import digest
from studies.analysis.explanation import Losses, measure, step_between
from studies.files.folder_files import study_command
from studies.reporting.terminal import say
from studies.spec.common_values import common_values, rerun_seeds
from studies.spec.study import Study
from studies.trials.ablation import Move, Point, neighbours, path
from studies.trials.explanations import Effect, Explanation, write_explanation
from studies.trials.messages import LAST_SPLIT, split_for
from studies.trials.records import Record, planned_trials, records_of
from studies.trials.reruns import FEWEST_SEEDS, confirm_records, select_records
from studies.trials.winners import Winner, winners

if TYPE_CHECKING:
    from studies.search.open_study import OpenStudy
    from studies.trials.store import Store

_MOST_SEEDS = 1000


@dataclass(frozen=True)
class Request:
    """A request to explain a winner.

    Attributes:
        arm: the winner's arm; None means the arm of the first comparison.
        search: the winner's search.
        seeds: number of paired seeds; None means the study's own number, but at least 3.
    """

    arm: str | None = None
    search: int = 0
    seeds: int | None = None


@dataclass(frozen=True)
class Plan:
    """All configurations to train to explain a winner.

    Attributes:
        winner: the winner to explain.
        seeds: number of paired seeds.
        start: the defaults, with the winner's common values.
        goal: the winner's configuration.
        path: moves from the start to the goal, one parameter each.
        neighbours: moves of one step away from the winner.
        unchanged: searched parameters whose value in the winner is the default.
    """

    winner: Winner
    seeds: int
    start: Point
    goal: Point
    path: tuple[Move, ...]
    neighbours: tuple[Move, ...]
    unchanged: tuple[str, ...]

    def points(self) -> dict[str, Point]:
        """Return every configuration once, by its key."""
        points = [self.start, *(m.end for m in (*self.path, *self.neighbours)), self.goal]
        return {_key(p): p for p in points}


def make_plan(study: Study, records: Mapping[str, Record], request: Request) -> Plan:
    """Return the plan that explains a winner of a finished study.

    Args:
        study: the study as it was run.
        records: all records of the study.
        request: which winner to explain.

    Raises:
        InputError: the study has not finished, there is no such winner, or its arm has no searched
            parameter of its own.
    """
    arm = request.arm if request.arm is not None else _first_arm(study)
    _check(study, request, arm)
    if _unfinished(study, records):
        run = shlex.join(["hylorada", "run", study.name])
        raise InputError(f"study {study.name!r} has not finished; run it to its end: `{run}`")
    winner = winners(study, records).get((request.search, arm))
    if winner is None:
        raise InputError(
            f"arm {arm!r} has no winner in search {request.search} of study {study.name!r}"
        )
    return plan_around(study, winner, request.seeds or max(FEWEST_SEEDS, study.seeds))


def plan_around(study: Study, winner: Winner, seeds: int) -> Plan:
    """Return the path from the defaults to a winner and its neighbours."""
    arm, space = winner.record.arm, study.space(winner.record.arm)
    common = (
        {} if winner.block is None else common_values(study, winner.record.search, winner.block)
    )
    start, goal, names = study.point(arm, common), winner.params(study), own_parameters(study, arm)
    return Plan(
        winner,
        seeds,
        start,
        goal,
        path(space, names, start, goal),
        neighbours(space, names, goal, study.fields(arm)),
        tuple(n for n in names if n in goal and n in start and goal[n] == start[n]),
    )


def own_parameters(study: Study, arm: str) -> list[str]:
    """Return the parameters searched for an arm alone; in an unmatched study, all of them."""
    space = study.arms[arm].space if study.blocks else study.space(arm)
    return [name for name, p in space.parameters.items() if p.values.size != 1]


def plan_records(study: Study, plan: Plan) -> list[Record]:
    """Return the records of all runs of a plan, seed by seed, so that a stopped stage has pairs."""
    return [
        _record(study, plan.winner, point, seed)
        for seed in range(plan.seeds)
        for point in plan.points().values()
    ]


def refuse_seen_rows(winner: Winner, unseen: Collection[str]) -> None:
    """Raise if a winner would be explained on padded rows that its search has read.

    Blocks of text that the search has read are used where there are too few others, and the
    explanation says so. Padded rows only show what a fault of the published code does, so they are
    not.

    Args:
        winner: the winner to explain.
        unseen: names of the blocks and rows that the search has not read.

    Raises:
        InputError: there are too few other rows.
    """
    split = _last_split(winner)
    if split != LAST_SPLIT["explain"] and split not in unseen:
        raise InputError(
            f"arm {winner.record.arm!r} is evaluated on padded rows (replication_pads), and the "
            "search has left too few of those of the validation split unread to explain it on "
            "others; use a study with a smaller eval_blocks, or more text"
        )


def _last_split(winner: Winner) -> str:
    """Return the name of the blocks or rows that a winner is explained on."""
    return split_for(LAST_SPLIT["explain"], winner.record.training)


def explain_winner(opened: "OpenStudy", request: Request) -> Explanation:
    """Train the configurations of a plan, then write the explanation and the report with it.

    Args:
        opened: a finished study.
        request: which winner to explain.

    Raises:
        InputError: there is nothing to explain, or ``results.json`` is missing.
    """
    from studies.search.stages import publish, results_so_far, search_and_confirm

    store, study = opened.store, opened.store.study
    plan = make_plan(study, store.records, request)
    records = plan_records(study, plan)
    if any(r.name not in store.records for r in records):
        say(opened.console, f"explain: {_describe(plan)}")
    search_and_confirm(opened, records)
    unseen = _last_split(plan.winner) in opened.material.unseen
    explanation = explanation_of(plan, store, unseen=unseen)
    explanation = replace(explanation, provenance=opened.material.provenance)
    write_explanation(store.folder, explanation)
    results = results_so_far(store)
    if results is None:
        path = store.folder / "results.json"
        raise InputError(f"{path} is missing; `{study_command(store.folder)}` computes it again")
    publish(results, store, opened.tracker)
    return explanation


def _describe(plan: Plan) -> str:
    steps, neighbours = _count(plan.path, "step"), _count(plan.neighbours, "neighbour")
    configurations = _count(plan.points(), "configuration")
    seeds = _count(range(plan.seeds), "fresh paired seed")
    return (
        f"{plan.winner.record.name} from the defaults ({steps}) and {neighbours} of it; "
        f"{configurations} x {seeds}"
    )


def _count(things: Sized, word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"


def _first_arm(study: Study) -> str:
    return study.comparisons[0][0] if study.comparisons else next(iter(study.arms))


def _check(study: Study, request: Request, arm: str) -> None:
    """Raise an `InputError` with all problems of a request."""
    problems = []
    if arm not in study.arms:
        problems.append(f"study {study.name!r} has no arm {arm!r}; {nearest(arm, study.arms)}")
    elif not own_parameters(study, arm):
        others = [name for name in study.arms if own_parameters(study, name)]
        hint = f"arms that do: {', '.join(others)}" if others else "no arm of this study does"
        problems.append(
            f"arm {arm!r} searches no parameter of its own, so there is nothing to explain; {hint}"
        )
    if not 0 <= request.search < study.searches:
        problems.append(f"search must be 0 to {study.searches - 1}, got {request.search}")
    if request.seeds is not None and not 1 <= request.seeds <= _MOST_SEEDS:
        problems.append(f"seeds must be 1 to {_MOST_SEEDS}, got {request.seeds}")
    if problems:
        raise InputError(problems)


def _unfinished(study: Study, records: Mapping[str, Record]) -> bool:
    """Return whether a stage other than `explain` has runs left."""
    counted = [r for r in records.values() if r.stage not in ("explain", "added")]
    if any(r.state == "running" for r in counted):
        return True
    places = [(arm, search) for search in range(study.searches) for arm in study.arms]
    if any(
        len(records_of(records, "search", *p)) < planned_trials(study, records, *p) for p in places
    ):
        return True
    return any(
        r.name not in records
        for r in (*select_records(study, records), *confirm_records(study, records))
    )


def _key(point: Point) -> str:
    """Return the key of a configuration in the names of its runs."""
    return digest(json.dumps(point, sort_keys=True), "explain")[:8]


def _record(study: Study, winner: Winner, point: Point, number: int) -> Record:
    source = winner.record
    adapter, training = study.configs(source.arm, point)
    seed, data_seed = rerun_seeds(study, "explain", source.search, number)
    return Record(
        name=winner.name(f"explain-{_key(point)}", number),
        arm=source.arm,
        stage="explain",
        winner=source.name,
        number=number,
        params=point,
        adapter=adapter.to_dict(),
        training=training.to_dict(),
        seed=seed,
        data_seed=data_seed,
        search=source.search,
        block=winner.block,
    )


def explanation_of(plan: Plan, store: "Store", *, unseen: bool) -> Explanation:
    """Compute the explanation of a winner from the runs of its plan, all of which have ended.

    Args:
        plan: the winner's plan.
        store: the study's store.
        unseen: whether no trial of the search has been evaluated on the last split of these runs.
    """
    study = store.study
    names = {
        key: [plan.winner.name(f"explain-{key}", s) for s in range(plan.seeds)]
        for key in plan.points()
    }
    losses = Losses(
        store.folder,
        {key: [store.records[n] for n in runs] for key, runs in names.items()},
        study.block_size,
    )
    whole = [step_between(plan.start, plan.goal)] if plan.path else []
    return Explanation(
        arm=plan.winner.record.arm,
        search=plan.winner.record.search,
        trial=plan.winner.record.name,
        block=plan.winner.block,
        seeds=plan.seeds,
        blocks=losses.blocks,
        tokens=losses.blocks * losses.tokens_per_block,
        unseen=unseen,
        margin=study.margin,
        default_ppl=losses.ppl(_key(plan.start)),
        winner_ppl=losses.ppl(_key(plan.goal)),
        unchanged=plan.unchanged,
        whole=next(iter(_measured(whole, losses, study.margin)), None),
        path=tuple(_measured(plan.path, losses, study.margin)),
        neighbours=tuple(_measured(plan.neighbours, losses, study.margin)),
    )


def _measured(moves: Sequence[Move], losses: Losses, margin: float) -> list[Effect]:
    keys = {i: (_key(m.start), _key(m.end)) for i, m in enumerate(moves)}
    return measure(moves, losses, keys, margin)
