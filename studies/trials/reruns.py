"""The records of runs on fresh seeds before they begin; they follow from the search trials."""

from collections.abc import Mapping
from typing import Literal

from studies.spec.common_values import rerun_seeds
from studies.spec.study import Study
from studies.trials.records import Record
from studies.trials.winners import Winner, finalists, winners

# The default number of seeds of an explanation: with two, Student's t makes every interval 13
# standard errors wide.
FEWEST_SEEDS = 3


def rerun_record(
    study: Study,
    winner: Winner,
    stage: Literal["select", "confirm"],
    number: int,
    factor: float = 1.0,
) -> Record:
    """Return the record of a new run.

    The seed of a number is the same for all arms, finalists and factors of a search.

    Args:
        study: The study.
        winner: The configuration to train.
        stage: Stage of the run.
        number: Number of the seed.
        factor: Factor on the learning rate.
    """
    source, params = winner.record, winner.params(study)
    adapter, training = study.configs(source.arm, params)
    scaled = {**training.to_dict(), "learning_rate": training.learning_rate * factor}
    if "learning_rate" in params:
        params["learning_rate"] = scaled["learning_rate"]
    seed, data_seed = rerun_seeds(study, stage, source.search, number)
    return Record(
        name=winner.name(stage, number, factor),
        arm=source.arm,
        stage=stage,
        winner=source.name,
        number=number,
        params=params,
        adapter=adapter.to_dict(),
        training=scaled,
        seed=seed,
        data_seed=data_seed,
        search=source.search,
        block=winner.block,
        factor=factor,
    )


def select_records(study: Study, records: Mapping[str, Record]) -> list[Record]:
    """Return the records of all runs of the select stage before they begin."""
    contested = [w for w in finalists(study, records).values() if len(w) > 1]
    return [
        rerun_record(study, candidate, "select", seed)
        for seed in range(study.selection_seeds)
        for candidates in contested
        for candidate in candidates
    ]


def confirm_records(study: Study, records: Mapping[str, Record]) -> list[Record]:
    """Return the records of all runs of the confirm stage before they begin."""
    best = winners(study, records).values()
    # Seed by seed, the matched rate first, so that an interrupted stage has whole pairs.
    return [
        rerun_record(study, w, "confirm", s, f)
        for s in range(study.seeds)
        for f in study.factors
        for w in best
    ]
