"""The values of a trial that no sampler draws: those of matched blocks, and the first trials'.

They are a function of the study, the search and the trial's number alone. Every arm of a matched
block gets the same common values.
"""

from collections.abc import Sequence
from typing import Any

from hylorada import HyLoRADAConfig, TrainingConfig, derive_seed
from studies.spec.proposals.sobol import SobolPoint
from studies.spec.proposals.start_entries import Entry, arm_values
from studies.spec.study import Study


def given_values(study: Study, arm: str, search: int, number: int) -> dict[str, Any]:
    """Return the values of a search trial that are fixed before a sampler draws the others.

    The study's start entries come first, then its defaults; what an entry leaves out takes the
    default. In a matched study, every trial is given the common values of its block, too.

    Args:
        study: The study.
        arm: The trial's arm.
        search: The trial's search.
        number: The trial's number in its arm and search.

    Returns:
        The values as Optuna takes them.
    """
    given: dict[str, Any] = {}
    if number <= len(study.start):
        entry = study.start[number] if number < len(study.start) else {}
        given = study.labels(arm, {**study.fields(arm), **arm_values(entry, arm)})
    if study.blocks:
        given |= study.labels(arm, common_values(study, search, number))
    return given


def common_values(study: Study, search: int, block: int) -> dict[str, Any]:
    """Return the common values of one block.

    The first blocks take the study's start entries, and the next one the shared defaults. The
    others are points of a scrambled Sobol sequence, one sequence per search: they spread evenly
    over the space whatever their number, need no results, and are the same after a crash. A block
    has the same point whether or not the study has start entries.

    Args:
        study: a matched study.
        search: which of its independent searches, from 0.
        block: number of the block within the search, from 0.

    Returns:
        The values by parameter.
    """
    if block <= len(study.start):
        return _first_common(study, study.start[block] if block < len(study.start) else {})
    seed = derive_seed(study.seed, "common", search) % 2**32
    return study.common.sample(SobolPoint(tuple(study.common.parameters), seed, block))


def _first_common(study: Study, entry: Entry) -> dict[str, Any]:
    """Return the common values of an entry, with the shared defaults for those it leaves out."""
    fields = {**HyLoRADAConfig().to_dict(), **TrainingConfig().to_dict(), **study.defaults}
    return dict(study.common.first({**fields, **entry}))


def search_seeds(study: Study, arm: str, search: int, number: int) -> tuple[int, int]:
    """Return the seeds of a search trial's adapter and of its data.

    The arms of a matched block share both.
    """
    place = [search] if search else []
    who: list[int | str] = ["block", search, number] if study.blocks else [*place, arm, number]
    return derive_seed(study.seed, *who), derive_seed(study.seed, "data", *place)


def rerun_seeds(study: Study, stage: str, search: int, number: int) -> tuple[int, int]:
    """Return the seeds of the adapter and of the data of a run on fresh seeds.

    All arms, finalists and factors of a search share them. The confirm seeds that a study names
    are, in its first search, both seeds themselves. In each further search they derive from the
    named seed and the search, because searches must be independent of each other.
    """
    if stage == "confirm" and number < len(study.seed_list):
        named = study.seed_list[number]
        derived = derive_seed(named, "search", search), derive_seed(named, "search data", search)
        return derived if search else (named, named)
    place = [search] if search else []
    adapter_seed = derive_seed(study.seed, stage, *place, number)
    return adapter_seed, derive_seed(study.seed, f"{stage} data", *place, number)


def seed_name(named: Sequence[int], number: int) -> int:
    """Return what users call a paired seed: its name if the study names its seeds, or its number.

    Args:
        named: the study's ``seed_list``.
        number: number of the seed, from 0.

    Example:
        >>> seed_name((42, 123), 1), seed_name((), 1)
        (123, 1)
    """
    return named[number] if number < len(named) else number
