"""The tables of a report on several cells, and what their numbers rest on."""

from studies.analysis.cells.across import Across, PooledChange
from studies.reporting.tables import Sheet, change_text
from studies.statistics.change import Change, ends_text

ASSUMPTIONS = (
    "Pooled: random effects (variance between cells after Paule and Mandel, interval after Hartung "
    "and Knapp with one degree of freedom less than cells), which takes the noise of cells as "
    "independent. Cells that share a test text share its noise, and cells of one study seed share "
    "the draws of the learning rate, so the pooled interval holds for these texts."
)
_RUNS = "Some intervals rest on 1 search and 1 seed: they hold the noise of the test text alone."


def effects_sheet(across: Across) -> Sheet:
    """Return one row per cell, then the pooled row, and one column per comparison."""
    by_cell = [{c.cell: c for c in compared.cells} for compared in across.comparisons]
    rows = [
        (facts.cell, *(_change(cells.get(facts.cell)) for cells in by_cell))
        for facts in across.cells
    ]
    pooled = [c.pooled for c in across.comparisons]
    last = [("pooled", *map(_change, pooled)), ("expected in another cell", *map(_ends, pooled))]
    more = last if any(pooled) else []
    return Sheet(
        columns=("cell", *(f"{c.arm} vs {c.reference}" for c in across.comparisons)),
        rows=(*rows, *more) if across.comparisons else (),
        caption=_caption(across),
        strong=frozenset({len(rows)}) if more else frozenset(),
        faint=frozenset({len(rows) + 1}) if more else frozenset(),
    )


def _change(c: Change | None) -> str:
    return f"{change_text(c)} {c.outcome}" if c else ""


def _ends(pooled: PooledChange | None) -> str:
    if pooled is None:
        return ""
    return ends_text(pooled.prediction_low, pooled.prediction_high)


def _caption(across: Across) -> str:
    every = [change for c in across.comparisons for change in c.cells]
    noise = f" {_RUNS}" if any(c.scope == "runs" for c in every) else ""
    covers = " or ".join(f"{100 * (1 - level):.3g} %" for level in sorted({c.level for c in every}))
    pooled = next((c.pooled for c in across.comparisons if c.pooled), None)
    also = f" (pooled: {100 * (1 - pooled.level):.3g} %)" if pooled else ""
    interval = f"Change in test PPL with its {covers} interval{also}; negative is better."
    return f"{interval}{noise} {ASSUMPTIONS if pooled else ''}".rstrip()


def levels_sheet(across: Across) -> Sheet:
    """Return one row per cell with its text, base and block, and the test figure of each arm."""
    arms = list(dict.fromkeys(arm for c in across.cells for arm in c.levels))
    rows = [
        (
            c.cell,
            c.study if c.study != c.cell else "",
            c.model,
            c.data,
            str(c.block_size),
            f"{c.tokens:,}",
            *(f"{c.levels[arm]:.3f}" if arm in c.levels else "" for arm in arms),
        )
        for c in across.cells
    ]
    columns = ("cell", "study", "model", "data", "block size", "test tokens", *arms)
    caption = f"Arms: test {across.measure}, mean over runs." if across.measure else ""
    return Sheet(columns, tuple(rows), caption)
