"""A study folder that is opened again and again."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from store_trials import VALUES, Open

from studies.spec.study import Study
from studies.trials.store import Store


@pytest.fixture
def open_store(tmp_path: Path, optuna_tables: Path) -> Iterator[Open]:
    """A function that opens a folder as a new process would, after closing the last store."""
    last: list[Store] = []
    (tmp_path / "try").mkdir()
    shutil.copy(optuna_tables, tmp_path / "try")

    def open_(folder: str = "try", **changes: Any) -> Store:
        while last:
            last.pop().close()
        last.append(Store(tmp_path / folder, Study.from_dict(VALUES | changes)))
        return last[0]

    yield open_
    for store in last:
        store.close()
