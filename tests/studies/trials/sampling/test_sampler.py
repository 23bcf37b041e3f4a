"""Each sampler proposes the same whatever dies, and from the trial files alone."""

from typing import Any

import pytest
from scipy.stats import qmc
from store_trials import ARM, Open, run_trial

from hylorada import TrainingConfig, derive_seed
from studies.spec.study import SAMPLERS
from studies.trials.store import Store

_TRIALS = 9


def _propose(store: Store, upto: int) -> list[Any]:
    """Propose trials up to a number, each while the one before still runs."""
    while len(searched := store.of("search", ARM)) < upto:
        record = store.propose(ARM)
        if searched:
            run_trial(store, searched[-1])
        assert record.number == len(searched)
    return [r.params for r in store.of("search", ARM)]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("loses_database", [False, True], ids=["reopened", "rebuilt"])
def test_proposals_follow_from_the_trial_files(
    open_store: Open, sampler: str, loses_database: bool
) -> None:
    start = [{"learning_rate": 4e-3, "arms": {ARM: {"num_buckets": 8}}}]
    changes: dict[str, Any] = {"sampler": sampler, "start": start, "trials": _TRIALS}
    unbroken = _propose(open_store("unbroken", **changes), _TRIALS)
    assert unbroken[0] == {"learning_rate": 4e-3, "num_buckets": 8, "boundary_init": "log"}
    assert unbroken[1]["learning_rate"] == TrainingConfig().learning_rate
    for at in (0, 1, 2, 6):
        store = open_store("broken", **changes)
        assert _propose(store, at) == unbroken[:at]
        store.close()
        if loses_database:
            (store.folder / "optuna.db").unlink()
    assert _propose(open_store("broken", **changes), _TRIALS) == unbroken


def test_samplers_propose_differently(open_store: Open) -> None:
    proposed = {s: _propose(open_store(s, sampler=s), 7)[6] for s in SAMPLERS}
    assert len({str(params) for params in proposed.values()}) == len(SAMPLERS)


def test_qmc_takes_points_of_a_sobol_sequence_over_all_parameters(open_store: Open) -> None:
    """A condition that does not hold leaves its coordinate unused and shifts no other."""
    found = _propose(open_store(sampler="qmc"), _TRIALS)[1:]
    seed = derive_seed(0, "sampler", ARM, "qmc") % 2**32
    for params, (rate, buckets, init, warmup) in zip(
        found, qmc.Sobol(4, scramble=True, rng=seed).random(16)[1:_TRIALS], strict=True
    ):
        assert params["learning_rate"] == pytest.approx(1e-4 * 100**rate, rel=1e-12)
        assert params["num_buckets"] == (8, 16)[int(2 * buckets)]
        assert params["boundary_init"] == ("log", "fixed")[int(2 * init)]
        assert ("boundary_warmup" in params) == (params["boundary_init"] == "fixed")
        assert params.get("boundary_warmup", 0.1 + 0.6 * warmup) == pytest.approx(
            0.1 + 0.6 * warmup
        )
