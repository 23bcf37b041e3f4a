"""Comparisons from stored test losses, against figures worked out by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from campaigns import MATCHED, Folder, report, train
from scipy import stats

from studies.analysis.comparisons import Comparison, compare_arms
from studies.analysis.confirm_losses import ConfirmLosses
from studies.analysis.results import Results, gather
from studies.search.campaign import Confirm, Search
from studies.trials.records import Record

_T = 41  # tokens a block; 40 are predicted, four in each tenth
_SETTINGS: dict[str, Any] = {
    "comparisons": [["fixed", "baseline"]],
    "block_size": _T,
    "profile": [0.5, 1.0, 2.0],
}


def _finish(folder: Folder, values: Any, **changes: Any) -> None:
    """Run a study whose confirm runs have the test losses ``values(record)``: [N, 10] sums."""
    ledger = folder.open(**MATCHED | _SETTINGS | changes)
    train(Search(ledger))
    confirm = Confirm(ledger)
    while given := confirm.next_job():
        job, _ = given
        path = Path(job.folder) / "test_block_nll.npy"
        losses = values(ledger.store.records[job.name])
        np.save(path, losses)
        metrics = {"test/nll": float(losses.sum() / len(losses) / (_T - 1))}
        confirm.on_report(
            job.name,
            report(
                8, block_nll=str(path), parameters=100 if job.name[0] == "f" else 40, more=metrics
            ),
        )


def _gathered(folder: Folder, before: Results | None = None, documents: Any = None) -> Results:
    return gather(folder.ledger.store, None, {}, [], before, documents)


def _losses(
    effect: float = 0.0, search_sd: float = 0.0, by_tenth: Any = None, best: Any = None
) -> Any:
    """Return losses per token: 3 + noise that arms share + a difference + a learning-rate curve."""
    blocks = np.random.default_rng(0).normal(0, 0.3, (12, 10))

    def values(r: Record) -> Any:
        arm = r.arm == "fixed"
        shift = arm * (effect + search_sd * (-1) ** r.search)
        curve = 0.05 * (np.log2(r.factor) - (best or {}).get(r.arm, 0.0)) ** 2
        tenth = arm * np.asarray(by_tenth if by_tenth is not None else np.zeros(10))
        return 4 * (3 + blocks + shift + curve + tenth + 0.001 * r.number)

    return values


def _compared(folder: Folder) -> Comparison:
    (found,) = _gathered(folder).comparisons
    return found


def test_change_is_the_mean_over_searches_with_students_interval(folder: Folder) -> None:
    _finish(folder, _losses(effect=-0.02, search_sd=0.001), searches=2)
    found = _compared(folder)
    d = np.array([-0.019, -0.021])
    half = stats.t.ppf(0.975, 1) * d.std(ddof=1) / np.sqrt(2)
    assert found.change == pytest.approx(100 * np.expm1(-0.02))
    assert (found.low, found.high) == pytest.approx(
        tuple(100 * np.expm1(-0.02 + np.array([-half, half])))
    )
    assert found.by_search == pytest.approx(tuple(100 * np.expm1(d)))
    assert (found.scope, found.searches, found.seeds, len(found.by_seed)) == ("method", 2, 2, 4)


def test_blocks_of_a_document_are_no_independent_samples(folder: Folder) -> None:
    """All runs differ equally in a block of the six documents of two, so only blocks are noisy."""
    by_document = np.repeat(np.random.default_rng(1).normal(0, 0.01, 6), 2)[:, None]
    _finish(
        folder,
        lambda r: 4 * (3 + np.zeros((12, 10)) + (r.arm == "fixed") * by_document),
        searches=2,
    )
    documents = np.repeat(np.arange(6), 2)
    (found,) = _gathered(folder, documents=documents).comparisons
    means = by_document[::2, 0]
    half = stats.t.ppf(0.975, 5) * means.std(ddof=1) / np.sqrt(6)
    expected = 100 * np.expm1(means.mean() + np.array([-half, half]))
    assert (found.low, found.high) == pytest.approx(tuple(expected))
    plain = _compared(folder)
    assert plain.high - plain.low < 0.9 * (found.high - found.low)
    assert found.positions["ppl_bin_3"].high == pytest.approx(found.high)


def test_one_search_speaks_of_configurations(folder: Folder) -> None:
    _finish(folder, _losses(effect=-0.02), searches=1)
    assert _compared(folder).scope == "configurations"
    assert "configurations only" in _gathered(folder).verdict


def test_profile_has_the_matched_change_at_each_rate(folder: Folder) -> None:
    """Curves are 0.05 (x - b)^2 with x = log2 of the factor; their minima differ by 0.01."""
    _finish(folder, _losses(effect=0.01, best={"fixed": 0.5, "baseline": -0.5}), searches=2)
    found = _compared(folder)
    expected = [0.01 + 0.05 * ((x - 0.5) ** 2 - (x + 0.5) ** 2) for x in (-1, 0, 1)]
    assert [r.factor for r in found.profile] == [0.5, 1.0, 2.0]
    assert [r.change.change for r in found.profile] == pytest.approx(
        [100 * np.expm1(d) for d in expected]
    )
    assert found.own_best is not None
    assert found.own_best.change == pytest.approx(100 * np.expm1(0.01))
    assert not found.depends_on_rate


def test_answer_that_turns_with_the_rate_is_said(folder: Folder) -> None:
    """Fixed is better by 0.04 at the winning rate, and worse by 0.005 with both at their best."""
    _finish(
        folder,
        _losses(effect=0.005, best={"fixed": 0.0, "baseline": 0.949}),
        searches=2,
        margin=0.1,
    )
    found = _compared(folder)
    assert (found.outcome, found.depends_on_rate) == ("better", True)
    assert "depends on the learning rate" in _gathered(folder).verdict


def test_rate_at_the_edge_of_stability_is_noted(folder: Folder) -> None:
    """Runs differ by +-0.02 at the winning rate and by +-0.002 at half of it."""

    def values(r: Record) -> Any:
        noise = (0.02 if r.factor == 1 else 0.002) * (-1) ** (r.search + r.number)
        return 4 * (3 + np.zeros((12, 10)) + (r.arm == "fixed") * noise)

    _finish(folder, values, searches=2)
    (note,) = [n for n in _gathered(folder).notes if "edge of stability" in n]
    assert note.startswith(
        "fixed vs baseline: the difference varies 10 times less between runs at 0.5 times the "
    )


def test_rate_at_the_upper_end_of_the_profile_is_noted(folder: Folder) -> None:
    _finish(folder, _losses(), searches=2)
    assert not [n for n in _gathered(folder).notes if "range of higher rates" in n]
    for record in folder.ledger.store.records.values():
        if record.stage == "confirm":
            better = {"eval/nll": 3 - 0.05 * np.log2(record.factor)}
            last = record.reports[-1]
            record.reports[-1] = replace(last, metrics={**last.metrics, **better})
    (note,) = [n for n in _gathered(folder).notes if "range of higher rates" in n]
    assert note.startswith("validation PPL is 4.9 % lower at 2 times the winning learning rate")


def test_looks_at_seeds_count_among_those_at_searches(folder: Folder) -> None:
    _finish(folder, _losses(effect=-0.02), searches=1, seeds=4)
    first = _gathered(folder)
    assert first.looks == (4,)
    _finish(folder, _losses(effect=-0.02), searches=3, seeds=4)
    assert _gathered(folder, first).looks == (2, 3)


def test_positions_are_compared_tenth_by_tenth(folder: Folder) -> None:
    tenths = np.linspace(-0.05, 0.04, 10)
    _finish(folder, _losses(by_tenth=tenths), searches=2)
    found = _compared(folder).positions
    assert [found[f"ppl_bin_{b}"].change for b in range(10)] == pytest.approx(
        (100 * np.expm1(tenths)).tolist()
    )
    assert list(found) == ["lim_ppl", *(f"ppl_bin_{b}" for b in range(10))]


def test_lim_ppl_is_the_change_of_the_mean_of_the_tenths_ppl(folder: Folder) -> None:
    values = _losses(by_tenth=np.linspace(-0.05, 0.04, 10))
    _finish(folder, values, searches=2)
    by_arm = {}
    for arm in ("fixed", "baseline"):
        runs = [r for r in folder.ledger.store.of("confirm", arm) if r.factor == 1]
        by_arm[arm] = [np.log(np.exp(values(r).mean(axis=0) / 4).mean()) for r in runs]
    expected = np.mean(by_arm["fixed"]) - np.mean(by_arm["baseline"])
    assert _compared(folder).positions["lim_ppl"].change == pytest.approx(100 * np.expm1(expected))


def test_parameters_per_percent_only_where_the_gain_is_certain(folder: Folder) -> None:
    _finish(folder, _losses(effect=-0.02), searches=2)
    found = _compared(folder)
    assert found.outcome == "better"
    assert found.parameters_per_percent == pytest.approx(60 / (-100 * np.expm1(-0.02)))


def test_losses_of_earlier_versions_have_no_tenths(folder: Folder) -> None:
    whole = _losses(effect=-0.02)
    _finish(folder, lambda r: whole(r).sum(axis=1), searches=2)
    found = _compared(folder)
    assert found.change == pytest.approx(100 * np.expm1(-0.02))
    assert found.positions == {}


def test_looks_are_counted_and_lower_the_level(folder: Folder) -> None:
    _finish(folder, _losses(effect=-0.02, search_sd=0.001), searches=3)
    first = _gathered(folder)
    assert (first.looks, first.comparisons[0].level) == ((3,), 0.05)
    assert _gathered(folder, first) == first  # run again without anything new: no other look
    _finish(folder, _losses(effect=-0.02, search_sd=0.001), searches=5)
    second = _gathered(folder, first)
    assert second.looks == (3, 5)
    assert 0.02 < second.comparisons[0].level < 0.05
    assert "no further looks were declared" in second.notes[-1]


def test_declared_looks_share_the_level_from_the_start(folder: Folder) -> None:
    _finish(folder, _losses(effect=-0.02), searches=3, looks=[3, 5, 8])
    assert _compared(folder).level == pytest.approx(0.02, abs=0.005)


def test_search_without_runs_of_an_arm_is_left_out(folder: Folder) -> None:
    _finish(folder, _losses(effect=-0.02), searches=2)
    store = folder.ledger.store
    for run in store.of("confirm", "fixed", 1):
        run.state = "diverged"
    losses = ConfirmLosses(store.study, store.records, store.folder)
    (found,) = compare_arms(losses, (), {"fixed": 1, "baseline": 1})
    assert (found.searches, found.scope) == (1, "configurations")


def test_losses_with_and_without_tenths_are_compared_together(folder: Folder) -> None:
    """As when a study of an earlier version gets more seeds."""
    whole = _losses(effect=-0.02)
    _finish(folder, lambda r: whole(r) if r.number else whole(r).sum(axis=1), searches=2)
    found = _compared(folder)
    assert found.change == pytest.approx(100 * np.expm1(-0.02))
    assert found.positions == {}
