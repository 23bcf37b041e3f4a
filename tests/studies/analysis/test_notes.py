"""Notes on a study's results."""

from typing import Any

import pytest

from studies.analysis.notes import _warm_start, empty_buckets
from studies.spec.study import Study
from studies.trials.messages import Report
from studies.trials.records import Record


def confirmed(*ends: tuple[float, ...]) -> list[Record]:
    """Confirm runs that ended with these boundaries."""
    plain: dict[str, Any] = {"params": {}, "adapter": {}, "training": {}, "seed": 0, "data_seed": 0}
    reports = [
        Report(step=8, metrics={}, seconds=1.0, parameters=1, done=True, boundaries=end)
        for end in ends
    ]
    return [
        Record(f"a-{i}", "a", "confirm", i, reports=[r], **plain) for i, r in enumerate(reports)
    ]


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ([(16.0, 32.0, 48.0)], None),
        ([(48.0, 16.0, 32.0)], None),  # the order in which they lie does not matter
        ([()], None),
        ([(0.5, 1.5, 2.5)], None),  # of a logarithmic start, a position each
        ([(0.4, 1.6, 2.4)], None),
        (
            [(0.0, 32.0, 64.0)],
            "only 2 of 4 buckets contain a position after training",
        ),  # at both ends of the block
        ([(16.2, 16.7, 48.0)], "only 3 of 4 buckets contain a position"),  # two met
        ([(16.0, 17.0, 48.0)], None),
        (
            [(16.0, 32.0, 48.0), (0.5, 0.9, 48.0)],
            "in 1 of 2 runs only 3 of 4 buckets contain a position",
        ),
    ],
)
def test_buckets_that_hold_nothing_are_told(
    ends: list[tuple[float, ...]], told: str | None
) -> None:
    notes = empty_buckets({"a": confirmed(*ends)}, 64)
    assert len(notes) == (told is not None)
    assert all(f"arm 'a': {told}" in note for note in notes)


def test_buckets_of_runs_that_were_given_different_numbers_are_told_apart() -> None:
    (note,) = empty_buckets({"a": confirmed((16.2, 16.7, 48.0), (32.0,))}, 64)
    assert note.startswith(
        "arm 'a': in 1 of 2 runs only 3 of 4 buckets contain a position after training"
    )


def test_studies_whose_winners_came_first_are_named_once() -> None:
    arms = {"one": {"space": {"r": {"choice": [4, 8]}}}}
    values = {"definition": "mine", "name": "try", "arms": arms}
    start = [{"r": 4}, {"from": "quick", "r": 8}, {"from": "quick", "r": 4}, {"from": "b", "r": 8}]
    (note,) = _warm_start(Study.from_dict({**values, "start": start}))
    assert note.startswith("every search began with the winners of quick and b, so the intervals")
    assert _warm_start(Study.from_dict({**values, "start": start[:1]})) == []
