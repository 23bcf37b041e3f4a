"""Finished cells in memory: invented results, and confirm runs with learned boundaries."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from made_records import named, record, study

from studies.analysis.cells.reading import FinishedCell
from studies.analysis.comparisons import Comparison
from studies.analysis.results import ArmResult, Results
from studies.statistics.comparison import percent
from studies.trials.messages import Report
from studies.trials.records import Record

ARMS = ("fixed", "learnable")
PAIR = ("learnable", "fixed")


def compared(effect: float, error: float) -> Comparison:
    """Return the comparison of the pair, for a difference in loss per token and its error."""
    change, low, high = (percent(effect + z * error) for z in (0, -2, 2))
    return Comparison(
        *PAIR,
        seeds=1,
        change=change,
        low=low,
        high=high,
        by_seed=(change,),
        median=change,
        p_value=0.2,
        p_holm=0.2,
        smallest_visible=0.4,
        decision="none",
        outcome="undecided",
        scope="method",
        searches=3,
        error=error,
    )


def cell(
    label: str,
    effect: float = 0.0,
    error: float = 0.01,
    *,
    block_size: int = 64,
    boundaries: Sequence[Sequence[float]] = (),
    starts: Sequence[Sequence[float]] = (),
    provenance: dict[str, str] | None = None,
    **changes: Any,
) -> FinishedCell:
    """Return a cell.

    Args:
        label: its label.
        effect: difference in loss per token of the pair.
        error: standard error of that.
        block_size: tokens in a block.
        boundaries: boundaries of each confirm run of "learnable", in token positions.
        starts: where they were before training; by default at the same places.
        provenance: its fingerprints; by default text and base are the same in all cells.
        changes: further fields of the study.
    """
    own = study(*ARMS, block_size=block_size, seeds=max(1, len(boundaries)), **changes)
    same = {"data_fingerprint": "d", "model_fingerprint": "m", "test_fingerprint": f"t{block_size}"}
    arms = tuple(
        ArmResult(arm, f"{arm}-0000", {}, 20.0 + i, 20.0, (20.0,), (0,), 99, 1.0, {})
        for i, arm in enumerate(ARMS)
    )
    results = Results(
        label, 30.0, 6300, arms, (compared(effect, error),), "", (), provenance or same
    )
    runs = [_run(n, ends, (starts or boundaries)[n]) for n, ends in enumerate(boundaries)]
    records = named(record("learnable", 0, [15, 15, 14]), *runs)
    return FinishedCell(label, Path("/nowhere") / label, own, results, records)


def _run(number: int, ends: Sequence[float], starts: Sequence[float]) -> Record:
    last = Report(
        step=60,
        metrics={"eval/nll": 2.0},
        done=True,
        start_boundaries=tuple(starts),
        boundaries=tuple(ends),
    )
    return record(
        "learnable",
        number,
        [15, 15, 14],
        stage="confirm",
        winner="learnable-0000",
        reports=[last],
    )
