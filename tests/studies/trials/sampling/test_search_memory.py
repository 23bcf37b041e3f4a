"""Proposals drawn from memory are those that Optuna draws from its database, in a plain loop."""

from pathlib import Path

import pytest
from plain_search import CHANGES, TRIALS, end, plain_search
from store_trials import ARM, Open

from studies.spec.study import SAMPLERS


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("opens", [1, 4])
def test_proposals_are_those_of_aplain_search(
    open_store: Open, tmp_path: Path, kind: str, sampler: str, opens: int
) -> None:
    changes = CHANGES[kind] | {"sampler": sampler}
    store = open_store(**changes)
    for number in range(TRIALS):
        if number % (TRIALS // opens) == 0:
            store = open_store(**changes)
        store.propose(ARM)
        if number >= 2:
            end(store, number - 2)
    drawn = [r.params for r in store.of("search", ARM)]
    assert drawn == plain_search(store.study, tmp_path / "plain.db")
    assert len({str(params) for params in drawn}) > TRIALS / 2
