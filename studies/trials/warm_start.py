"""The winners of an earlier study as the configurations that a new one tries first."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hylorada import InputError, nearest
from studies.files.folder_files import stored_study
from studies.spec.proposals.start_entries import (
    ARMS,
    FROM,
    Entry,
    Searched,
    is_reference,
    origin,
    same_value,
)
from studies.spec.study import Study
from studies.trials.records import read_records
from studies.trials.study_folders import (
    named_study,
    require_no_grid,
    require_results,
    stored_names,
    study_folder,
)
from studies.trials.winners import winners


def with_winners(study: Study, storage: Path) -> tuple[Study, tuple[str, ...]]:
    """Return the study with the winners of earlier studies in its start list.

    They take the place of the entries that only name a study. A study that has been begun keeps the
    winners that its own folder holds, so it resumes without the earlier one.

    Args:
        study: The study.
        storage: Storage folder of both studies; the earlier one may also be named by its folder.

    Returns:
        The study, and notes on winners and values that it can't take over.

    Raises:
        InputError: The earlier study does not exist, has not finished or is a grid, or the study
            searches none of its winners' values.
    """
    start: list[Entry] = [entry for entry in study.start if not is_reference(entry)]
    begun, notes = _begun(study, storage), list[str]()
    places: dict[str, Path | None] = {}
    for named in (entry[FROM] for entry in study.start if is_reference(entry)):
        name = os.path.basename(os.path.abspath(os.path.expanduser(named)))
        place = named_study(named, storage)
        if (other := places.setdefault(name, place)) != place:
            raise InputError(f"start: two studies are named {name!r} ({other}, {place}); copy one")
        if any(origin(entry) == name for entry in start):
            continue
        entries = [entry for entry in begun if origin(entry) == name]
        if not entries:
            room = max(1, study.trials - len(start) - 1)  # one more trial has the defaults
            entries, more = _entries(_Earlier.read(named, storage), study, room)
            notes += more
        start += entries
    return Study.from_dict({**study.to_dict(), "start": start}), tuple(notes)


def _begun(study: Study, storage: Path) -> Sequence[Entry]:
    """Return the start list that the study's own folder holds."""
    folder = study_folder(storage, study.name)
    return stored_study(folder / "study.json")["start"] if folder else ()


@dataclass(frozen=True)
class _Earlier:
    """An earlier study.

    Attributes:
        name: Its name.
        searches: The parameters of each arm's winner, by search; the search of lowest mean
            validation loss comes first.
    """

    name: str
    searches: tuple[Mapping[str, Mapping[str, Any]], ...]

    @classmethod
    def read(cls, named: str, storage: Path) -> "_Earlier":
        """Read the winners of a study.

        Raises:
            InputError: There is no such study, it has not finished, or it is a grid.
        """
        folder = named_study(named, storage)
        if folder is None:
            known = stored_names(storage)
            hint = nearest(named, known) if known else f"there is none in {storage}"
            raise InputError(f"start: no study {named!r} has been run; {hint}")
        require_no_grid(folder, named)
        require_results(folder, named)
        study = Study.from_dict(stored_study(folder / "study.json"))
        searches: dict[int, dict[str, Any]] = {}
        losses: dict[int, list[float]] = {}
        for (search, arm), winner in winners(study, read_records(folder)).items():
            searches.setdefault(search, {})[arm] = winner.params(study)
            losses.setdefault(search, []).append(winner.record.nll or 0.0)
        order = sorted(searches, key=lambda search: (float(np.mean(losses[search])), search))
        return cls(folder.name, tuple(searches[search] for search in order))


def _entries(earlier: _Earlier, study: Study, room: int) -> tuple[list[Entry], list[str]]:
    """Return the entries that an earlier study's winners make, the best first, and notes.

    Args:
        earlier: The earlier study.
        study: The study that starts from it.
        room: Largest number of entries.
    """
    searched = Searched(study.arms, study.common, study.matched, study.defaults)
    notes: dict[str, None] = {}
    distinct: dict[str, Entry] = {}
    for by_arm in earlier.searches:
        fitting = {}
        for arm in (a for a in by_arm if a in study.arms):
            fitting[arm], dropped = _fitting(arm, by_arm[arm], searched)
            notes |= {f"start from {earlier.name!r}: {line}": None for line in dropped}
        common = study.common.parameters.keys() if study.blocks else set[str]()
        for entry in _matched(fitting, common):
            distinct[json.dumps(entry, sort_keys=True)] = {FROM: earlier.name, **entry}
    if not distinct:
        raise InputError(
            f"start: no arm searches a value that the winners of study {earlier.name!r} have; its "
            f"arms are {', '.join(dict.fromkeys(a for s in earlier.searches for a in s)) or 'none'}"
        )
    if len(distinct) > room:
        line = (
            f"the best {room} of {len(distinct)} winning configurations, for {study.trials} trials"
        )
        notes[f"start from {earlier.name!r}: {line}"] = None
    return list(distinct.values())[:room], list(notes)


def _fitting(
    arm: str, values: Mapping[str, Any], searched: Searched
) -> tuple[dict[str, Any], list[str]]:
    """Return the values that an arm can take over, and a line on each other one."""
    parameters = searched.space(arm).parameters
    kept, dropped = {}, []
    for name, value in values.items():
        if name not in parameters:
            dropped.append(f"arm {arm!r} does not search {name}, so it is left out")
        elif not (allowed := parameters[name].values).contains(value):
            dropped.append(
                f"{name} {value!r} is outside the searched range {allowed} of arm {arm!r}, so the "
                "default takes its place"
            )
        else:
            kept[name] = same_value(allowed, value)
    inactive = searched.inactive(arm, kept)
    return {n: v for n, v in kept.items() if n not in inactive}, dropped


def _matched(by_arm: Mapping[str, Mapping[str, Any]], common: Set[str]) -> Iterator[Entry]:
    """Yield an entry for each distinct set of common values; all have every arm's own values.

    Arms that were searched without matched blocks have found different common values. All arms
    then train at each of them.
    """
    own = {arm: {n: v for n, v in vs.items() if n not in common} for arm, vs in by_arm.items()}
    arms = {arm: values for arm, values in own.items() if values}
    for shared in ({n: v for n, v in vs.items() if n in common} for vs in by_arm.values()):
        if entry := {**shared, **({ARMS: arms} if arms else {})}:
            yield entry
