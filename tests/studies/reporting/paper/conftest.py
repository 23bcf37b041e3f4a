"""A finished study without training, whose names are hard on LaTeX and on file systems."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from made_studies import VALUES, make

from studies.analysis.results import Results, read_results
from studies.spec.study import Study
from studies.trials.loading import load_records
from studies.trials.records import Record

ODD = "a_b 1.5"
WIDE = "été 学 x-1"


@dataclass(frozen=True)
class Made:
    """A finished study and what its folder holds."""

    storage: Path
    folder: Path
    study: Study
    results: Results
    records: dict[str, Record]


def make_finished(storage: Path, name: str, **changes: Any) -> Made:
    """Make a finished study in a storage folder."""
    store = make(storage / "studies" / name, "end", name=name, **changes)
    store.close()
    folder = store.folder
    results = read_results(folder / "results.json")
    return Made(storage, folder, store.study, results, load_records(folder))


@pytest.fixture(scope="session")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A study with arms of odd names and three searches."""
    arms = VALUES["arms"]
    return make_finished(
        tmp_path_factory.mktemp("odd storage"),
        "étude 学 1_2",
        arms={ODD: arms["fixed"], WIDE: arms["baseline"]},
        comparisons=[[ODD, WIDE]],
        searches=3,
    )


@pytest.fixture(scope="session")
def plain_study(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A study with plain names and one search."""
    return make_finished(tmp_path_factory.mktemp("plain"), "made")
