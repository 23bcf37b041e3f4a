"""The comparison of the same arms in several cells: each cell, and all of them pooled."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from hylorada.base_models.base_labels import base_label
from studies.analysis.cells.boundaries import CellBoundaries, cell_boundaries
from studies.analysis.cells.reading import FinishedCell
from studies.analysis.cells.words import verdict
from studies.analysis.comparisons import Comparison
from studies.analysis.confirm_losses import NO_MARGIN
from studies.files.paths import without_folder
from studies.statistics.change import Change
from studies.statistics.comparison import percent
from studies.statistics.decision import decide, holm
from studies.statistics.pooling import Pool, pool
from studies.trials.records import is_finite

LEVEL = 0.05
Measure = Literal["PPL", "bits per byte", ""]


@dataclass(frozen=True)
class CellChange(Change):
    """The change of one comparison in one cell.

    Attributes:
        cell: Label of the cell.
        level: Level of its interval, which covers 1 - level.
        error: Standard error of the difference in loss per token.
        scope: What its interval generalizes to: "method", "configurations" or "runs".
        searches: Number of independent searches.
    """

    cell: str = ""
    level: float = LEVEL
    error: float = 0.0
    scope: str = ""
    searches: int = 1


@dataclass(frozen=True)
class PooledChange(Change):
    """The change pooled over cells, in %.

    Attributes:
        p_value: Two-sided p-value for no change on average; `p_holm` is adjusted for all pooled
            comparisons.
        prediction_low: Lower end of the interval in which another cell is expected.
        prediction_high: Upper end of that interval.
        tau: Standard deviation of the true changes between cells, in %.
        i_squared: Share of the variation between cells that their noise does not explain.
        q: Cochran's Q.
        q_p_value: p-value for equal true changes in all cells.
        margin: Largest change that does not matter.
        level: Level of its interval: the strictest of its cells', which shrinks with every look.
    """

    p_value: float = 1.0
    prediction_low: float = 0.0
    prediction_high: float = 0.0
    tau: float = 0.0
    i_squared: float = 0.0
    q: float = 0.0
    q_p_value: float = 1.0
    margin: float = 0.5
    level: float = LEVEL


@dataclass(frozen=True)
class AcrossComparison:
    """One pair of arms over all cells that compare it.

    Attributes:
        arm: Name of the arm.
        reference: Name of the arm that it is compared with.
        cells: Its change in each cell.
        pooled: Its change over the cells; None with fewer than two, or with one without noise.
    """

    arm: str
    reference: str
    cells: tuple[CellChange, ...]
    pooled: PooledChange | None


@dataclass(frozen=True)
class CellFacts:
    """One cell and its arms.

    Attributes:
        cell: Label of the cell.
        study: Name of its study.
        model: Base.
        data: Text.
        block_size: Tokens in a block.
        tokens: Test tokens that each run predicts.
        levels: By arm, the test figure that ``Across.measure`` names; empty if cells have none in
            common.
    """

    cell: str
    study: str
    model: str
    data: str
    block_size: int
    tokens: int
    levels: Mapping[str, float]


@dataclass(frozen=True)
class Across:
    """Everything that the report on several cells shows.

    Attributes:
        name: Name of the grid, or of the comparison.
        cells: The cells.
        measure: Test figure that may be compared between cells: "PPL" if they share the test text
            and the base, "bits per byte" if they share the text; else empty.
        comparisons: The comparisons, each with its cells and the pooled change.
        boundaries: Agreement between cells of each arm that learns boundaries.
        verdict: The findings in sentences.
        notes: What the reader should also know.
    """

    name: str
    cells: tuple[CellFacts, ...]
    measure: Measure
    comparisons: tuple[AcrossComparison, ...]
    boundaries: tuple[CellBoundaries, ...]
    verdict: tuple[str, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def across(
    name: str, cells: Sequence[FinishedCell], pairs: Sequence[tuple[str, str]], notes: Sequence[str]
) -> Across:
    """Compare arms over cells.

    Args:
        name: Name of the grid, or of the comparison.
        cells: The cells in the order to show them.
        pairs: The (arm, reference) pairs to compare.
        notes: Notes that come first.
    """
    margin = min(c.study.margin for c in cells)
    compared = [_changes(cells, *pair) for pair in pairs]
    pooled = _pooled(compared, margin)
    comparisons = tuple(
        AcrossComparison(*pair, tuple(changes), p)
        for pair, changes, p in zip(pairs, compared, pooled, strict=True)
        if changes
    )
    arms = dict.fromkeys(arm for c in cells for arm in c.study.arms)
    agreements = [cell_boundaries(cells, arm) for arm in arms]
    boundaries = tuple(b for b in agreements if b is not None)
    measure, why = common_measure(cells)
    return Across(
        name,
        tuple(_facts(c, measure) for c in cells),
        measure,
        comparisons,
        boundaries,
        verdict(comparisons, boundaries),
        (*notes, *_missing(cells, comparisons), *why),
    )


def _changes(cells: Sequence[FinishedCell], arm: str, reference: str) -> list[CellChange]:
    compared = ((c.label, c.results.comparison(arm, reference)) for c in cells)
    return [_cell_change(label, c) for label, c in compared if c is not None]


def _cell_change(label: str, c: Comparison) -> CellChange:
    return CellChange(
        c.change,
        c.low,
        c.high,
        c.p_holm,
        c.outcome,
        cell=label,
        level=c.level,
        error=c.error or 0.0,
        scope=c.scope,
        searches=c.searches,
    )


def _pooled(compared: Sequence[Sequence[CellChange]], margin: float) -> list[PooledChange | None]:
    """Pool each comparison, with Holm's adjustment over those that can be pooled."""
    level = min((c.level for changes in compared for c in changes), default=LEVEL)
    pools = [_pool(changes) for changes in compared]
    adjusted = iter(holm([p.p_value for p in pools if p is not None]))
    return [None if p is None else _pooled_change(p, next(adjusted), level, margin) for p in pools]


def _pool(changes: Sequence[CellChange]) -> Pool | None:
    if len(changes) < 2 or any(not c.error > 0 for c in changes):
        return None
    return pool([float(np.log1p(c.change / 100)) for c in changes], [c.error for c in changes])


def _pooled_change(p: Pool, p_holm: float, level: float, margin: float) -> PooledChange:
    low, high = map(percent, p.interval(level))
    expected_low, expected_high = map(percent, p.prediction(level))
    return PooledChange(
        percent(p.mean),
        low,
        high,
        p_holm,
        decide(low, high, p_holm, level, margin or NO_MARGIN),
        p_value=p.p_value,
        prediction_low=expected_low,
        prediction_high=expected_high,
        tau=percent(p.tau),
        i_squared=p.i_squared,
        q=p.q,
        q_p_value=p.q_p_value,
        margin=margin,
        level=level,
    )


def common_measure(cells: Sequence[FinishedCell]) -> tuple[Measure, list[str]]:
    """Return the test figure that may be compared between cells, and notes on what may not."""
    texts, bases = ({c.fingerprint(of) for c in cells} for of in ("data", "model"))
    if len(texts) > 1:
        listed = ", ".join(dict.fromkeys(without_folder(c.study.data) for c in cells))
        return "", [f"PPL is not compared between cells: their test texts differ ({listed})"]
    if len(bases) > 1:
        why = "PPL is not compared between cells: bases may cut text into other tokens"
        return "bits per byte", [f"{why}; bits per byte are compared instead"]
    by_size: dict[int, set[str]] = {}
    for cell in cells:
        by_size.setdefault(cell.study.block_size, set()).add(cell.fingerprint("test"))
    if any(len(blocks) > 1 for blocks in by_size.values()):
        why = "cells of one block size read other test blocks (test_blocks, spread_test)"
        return "", [f"PPL is not compared between cells: {why}"]
    return "PPL", []


def _facts(cell: FinishedCell, measure: Measure) -> CellFacts:
    results, study = cell.results, cell.study
    levels: dict[str, float] = {}
    if measure == "PPL":
        levels = {a.arm: a.ppl for a in results.arms}
    elif measure:
        bits = {a.arm: _bits_per_byte(cell, a.runs) for a in results.arms}
        levels = {arm: value for arm, value in bits.items() if value is not None}
    model = base_label(without_folder(study.model), study.quantization)
    data = without_folder(study.data)
    return CellFacts(cell.label, study.name, model, data, study.block_size, results.tokens, levels)


def _bits_per_byte(cell: FinishedCell, runs: Sequence[str]) -> float | None:
    """Return the mean over an arm's runs, every search counting equally; None if none has it."""
    by_search: dict[int, list[float]] = {}
    for record in (cell.records[name] for name in runs if name in cell.records):
        value = record.reports[-1].metrics.get("test/bits_per_byte")
        if value is not None and is_finite(value):
            by_search.setdefault(record.search, []).append(value)
    means = [float(np.mean(values)) for values in by_search.values()]
    return float(np.mean(means)) if means else None


def _missing(cells: Sequence[FinishedCell], comparisons: Sequence[AcrossComparison]) -> list[str]:
    notes = []
    for c in comparisons:
        lacking = {cell.label for cell in cells} - {change.cell for change in c.cells}
        if lacking:
            listed = "; ".join(cell.label for cell in cells if cell.label in lacking)
            notes.append(f"{c.arm} vs {c.reference} has no result in: {listed}")
    return notes
