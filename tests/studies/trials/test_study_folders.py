"""Tests of what a begun study keeps when a user requests it again."""

from pathlib import Path
from typing import Any

import pytest

from studies.files.folder_files import STUDY, write_json
from studies.spec.study import GROWING, Study
from studies.trials.study_folders import as_begun

_VALUES: dict[str, Any] = {
    "definition": "own",
    "name": "try",
    "subject": "Then",
    "trials": 2,
    "searches": 5,
    "seeds": 3,
    "looks": [5, 10],
    "margin": 0.1,
    "arms": {"one": {}},
    "common": {"space": {"learning_rate": {"low": 1e-3, "high": 1e-2}}},
}


def _values(**changes: Any) -> dict[str, Any]:
    return Study.from_dict({**_VALUES, **changes}).to_dict()


def _begun(folder: Path, **changes: Any) -> Path:
    write_json(folder / "study.json", _values(**changes), STUDY)
    return folder


@pytest.mark.parametrize("asked_for", [False, True])
def test_study_that_has_not_begun_is_as_requested(asked_for: bool) -> None:
    assert as_begun(_VALUES, None, asked_for=asked_for) == _VALUES


def test_request_never_shrinks_a_study_and_keeps_its_looks(tmp_path: Path) -> None:
    requested = _values(trials=4, searches=2, seeds=1, looks=[], margin=0.5)
    kept = as_begun(requested, _begun(tmp_path), asked_for=True)
    assert {**requested, "searches": 5, "seeds": 3, "looks": [5, 10]} == kept
    again = as_begun({**requested, "looks": [2, 4]}, tmp_path, asked_for=True)
    assert again["looks"] == [2, 4]


def test_named_seeds_of_a_request_decide_their_number(tmp_path: Path) -> None:
    """Another number would hide that the stored study has other seeds."""
    requested = _values(seeds=2, seed_list=[42, 123])
    kept = as_begun(requested, _begun(tmp_path), asked_for=True)
    assert (kept["seeds"], kept["seed_list"], kept["searches"]) == (2, [42, 123], 5)


def test_definition_takes_all_that_may_change_from_the_study(tmp_path: Path) -> None:
    definition = _values(subject="Now", trials=4, searches=8, seeds=1, looks=[], margin=0.5)
    kept = as_begun(definition, _begun(tmp_path), asked_for=False)
    counts = {name: _VALUES[name] for name in GROWING}
    assert kept == {**definition, **counts, "looks": [5, 10], "margin": 0.1}


def test_other_definition_leaves_the_requested_one_as_it_is(tmp_path: Path) -> None:
    definition = _values(definition="another")
    assert as_begun(definition, _begun(tmp_path), asked_for=False) == definition


def test_study_from_before_arms_shared_a_space_stays_as_it_was(tmp_path: Path) -> None:
    stored = _begun(tmp_path, common={"space": {}}, seed=7)
    kept = as_begun(_values(), stored, asked_for=False)
    assert (kept["common"], kept["seed"]) == ({"space": {}}, 7)
