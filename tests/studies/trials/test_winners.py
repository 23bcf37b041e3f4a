"""Finalists and the records that they are chosen from, against loops over all trials."""

from pathlib import Path

import pytest
from made_studies import make

from studies.analysis.progress import stage_counts
from studies.trials.records import Records, read_records, records_of
from studies.trials.reruns import confirm_records
from studies.trials.winners import Winner, best_block, finalists


@pytest.mark.parametrize("count", [1, 2, 4, 9])
def test_finalists_are_the_best_trials_with_different_parameters(
    tmp_path: Path, count: int
) -> None:
    store = make(tmp_path / "made", "confirm", finalists=count)
    expected = {}
    for arm in store.study.arms:
        complete = [r for r in store.records.values() if (r.arm, r.state) == (arm, "complete")]
        searched = [r for r in complete if r.stage == "search"]
        by_params = {}
        for record in sorted(searched, key=lambda r: r.nll or 0, reverse=True):
            by_params[str(record.params)] = record.name  # the best of equal ones comes last
        names = sorted(by_params.values(), key=lambda name: store.records[name].nll or 0)
        expected[0, arm] = names[:count]
    chosen = finalists(store.study, store.records)
    assert {p: [w.record.name for w in ws] for p, ws in chosen.items()} == expected
    store.close()


def test_finalists_of_matched_blocks_share_the_best_block(tmp_path: Path) -> None:
    rate = {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
    buckets = {"num_buckets": {"choice": [4, 8]}}
    arms = {"fixed": {"space": buckets}, "baseline": {"config": {"landmarks": False}}}
    store = make(tmp_path / "made", "confirm", arms=arms, common={"space": rate}, matched=True)
    block = best_block(store.study, store.records, 0)
    for (_, arm), candidates in finalists(store.study, store.records).items():
        best = min(
            (r for r in records_of(store.records, "search", arm) if r.state == "complete"),
            key=lambda r: r.nll or 0,
        )
        assert candidates == [Winner(best, block)]
    store.close()


def test_records_of_a_stage_are_those_of_a_loop_over_all(tmp_path: Path) -> None:
    store = make(tmp_path / "made", "end")
    assert isinstance(store.records, Records)
    plain = dict(store.records)
    store.close()
    for records in (store.records, read_records(store.folder)):
        for stage in ("search", "select", "confirm", "added"):
            for arm in (*store.study.arms, "another"):
                for search in (None, 0, 1):
                    assert records_of(records, stage, arm, search) == records_of(
                        plain, stage, arm, search
                    )


def test_confirm_runs_are_counted_without_being_made(tmp_path: Path) -> None:
    store = make(tmp_path / "made", "confirm")
    wanted = len(confirm_records(store.study, store.records))
    assert stage_counts(store.study, store.records)["confirm"] == (wanted - 2, wanted)
    store.close()
