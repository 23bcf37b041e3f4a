"""The seed of an exported run, by number and by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_studies import make

from hylorada import InputError
from studies.reporting.tables import confirm_sheet
from studies.reporting.winner_choice import find_winner

Made = Callable[..., Path]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Return a function that makes the folder of a finished study."""

    def make_(**changes: Any) -> Path:
        make(tmp_path / "made", "end", **changes).close()
        return tmp_path / "made"

    return make_


def test_seeds_without_names_are_counted(made: Made) -> None:
    folder = made()
    assert [find_winner(folder, "fixed", seed).run.number for seed in (None, 0, 1)] == [0, 0, 1]
    assert find_winner(folder, "fixed", 1).seed == 1
    with pytest.raises(InputError, match="seed 42 of arm 'fixed' has not finished; one of: 0, 1"):
        find_winner(folder, "fixed", 42)


def test_named_seeds_are_chosen_by_their_names(made: Made) -> None:
    folder = made(seed_list=[456, 42])
    chosen = [find_winner(folder, "fixed", seed) for seed in (None, 456, 42)]
    assert [(w.seed, w.run.number, w.run.seed) for w in chosen] == [
        (456, 0, 456),
        (456, 0, 456),
        (42, 1, 42),
    ]
    for unknown in (0, 1, 123):
        message = f"seed {unknown} of arm 'fixed' has not finished; one of: 456, 42"
        with pytest.raises(InputError, match=message):
            find_winner(folder, "fixed", unknown)


def test_table_of_runs_has_the_names_of_seeds(made: Made) -> None:
    folder = made(seed_list=[456, 42])
    winner = find_winner(folder, "fixed", 42)
    records = {winner.run.name: winner.run}
    sheet = confirm_sheet(records, winner.study)
    assert [row[sheet.columns.index("seed")] for row in sheet.rows] == ["42"]
