"""The arms of a study while it runs: their trials by state, and the best of each."""

from collections import Counter
from collections.abc import Sequence

from studies.reporting.tables import Sheet
from studies.reporting.terminal import Drawing
from studies.spec.study import Study
from studies.trials.records import Record

_COLUMNS = ("arm", "running", "complete", "pruned", "failed", "best PPL", "trial")


def arms_drawing(study: Study, records: Sequence[Record], stage: str) -> Drawing:
    """Return a table with one row per arm.

    Args:
        study: The study.
        records: The records of one stage.
        stage: That stage; the search also shows how many trials have reached each rung.
    """
    rungs = study.rungs() if stage == "search" else ()
    rows = [_row([r for r in records if r.arm == arm], arm, rungs) for arm in study.arms]
    return Drawing(Sheet((*_COLUMNS, *(f"rung {r}" for r in rungs)), tuple(rows)), dense=True)


def best_ppls(study: Study, records: Sequence[Record]) -> str:
    """Return the best validation PPL of each arm as the end of a line; "" before any report."""
    bests = [(arm, _best([r for r in records if r.arm == arm])) for arm in study.arms]
    shown = [f"{arm} {_ppl(best)}" for arm, best in bests if best is not None]
    return f"; best PPL: {', '.join(shown)}" if shown else ""


def _row(records: Sequence[Record], arm: str, rungs: Sequence[int]) -> tuple[str, ...]:
    count = Counter(r.state for r in records)
    best = _best(records)
    reached = [str(sum(r.step >= rung for r in records)) for rung in rungs]
    shown = _ppl(best) if best else ""
    failed = count["failed"] + count["diverged"]
    states = [count["running"], count["complete"], count["pruned"], failed]
    return (arm, *map(str, states), shown, best.name if best else "", *reached)


def _best(records: Sequence[Record]) -> Record | None:
    """Return the best of the trials that have come furthest, as a partial report does."""
    going = [r for r in records if r.state in ("running", "complete")]
    reported = [r for r in going if r.nll is not None]
    return min(reported, key=lambda r: (-r.step, r.nll), default=None)


def _ppl(record: Record) -> str:
    return f"{record.reports[-1].metrics['eval/ppl']:.3f}"
