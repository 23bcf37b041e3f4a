"""The figures of a report on several cells: a forest plot, and where boundaries lie."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from studies.analysis.cells.across import Across, AcrossComparison, PooledChange
from studies.analysis.cells.boundaries import learned_runs, shares
from studies.analysis.cells.reading import FinishedCell
from studies.reporting.figures.drawing import INK, SOFT, make_panels, styled

_ROW = 0.36  # inches
_DIAMOND = 0.28  # half its height, in rows


@styled()
def forest(across: Across, colors: Mapping[str, str]) -> Figure | None:
    """Draw each comparison in every cell, and the pooled change as a diamond below them."""
    shown = [c for c in across.comparisons if _finite_ends(c)]
    if not shown:
        return None
    rows = max(len(c.cells) + (c.pooled is not None) for c in shown)
    figure, panels = make_panels(len(shown), 1, height=1.0 + _ROW * rows)
    for axes, compared in zip(panels, shown, strict=True):
        color = colors.get(compared.arm, INK)
        _draw_cells(axes, compared, color)
        if compared.pooled:
            _draw_pooled(axes, len(compared.cells), compared.pooled)
        axes.axvline(0, color=SOFT, linewidth=0.8)
        limit = 1.1 * max(0.1, *map(abs, _finite_ends(compared)))
        axes.set_xlim(-limit, limit)
        axes.set_ylim(len(compared.cells) + 0.6, -0.6)
        axes.set_title(f"{compared.arm} vs {compared.reference}", color=color, fontweight="bold")
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    panels[-1].set_xlabel("change in test PPL, %   (left of 0: better)")
    return figure


def _finite_ends(c: AcrossComparison) -> list[float]:
    """Return the finite ends of what is drawn of a comparison."""
    ends = [end for change in c.cells for end in (change.low, change.high)]
    if c.pooled:
        ends += [c.pooled.low, c.pooled.high]
    return [end for end in ends if math.isfinite(end)]


def _draw_cells(axes: Axes, compared: AcrossComparison, color: str) -> None:
    for row, c in enumerate(compared.cells):
        axes.plot([c.low, c.high], [row, row], color=color, linewidth=1.8, solid_capstyle="butt")
        tip = _tip(f"{c.cell}: {c.change:+.3f} % [{c.low:+.3f}, {c.high:+.3f}]")
        axes.plot([c.change], [row], "s", ms=5.5, color=color, gid=tip)
        _note(axes, row, c.outcome)
    labels = [c.cell for c in compared.cells]
    pooled = ["pooled"] if compared.pooled else []
    axes.set_yticks(range(len(labels + pooled)), labels + pooled, color=INK)


def _draw_pooled(axes: Axes, row: int, p: PooledChange) -> None:
    """Draw the pooled interval as a diamond, on a line that spans where another cell may lie."""
    ends = [p.prediction_low, p.prediction_high]
    axes.plot(ends, [row, row], color=SOFT, linewidth=1, linestyle=(0, (2, 2)))
    tip = _tip(f"pooled: {p.change:+.3f} % [{p.low:+.3f}, {p.high:+.3f}]")
    axes.fill(
        [p.low, p.change, p.high, p.change],
        [row, row - _DIAMOND, row, row + _DIAMOND],
        color=INK,
        linewidth=0,
        gid=tip,
    )
    _note(axes, row, f"{p.outcome}, Holm p = {p.p_holm:.2g}")


def _tip(text: str) -> str:
    """Return the id that :func:`svg_text` turns into a title; a quotation mark would end it."""
    return f"tip {text}".replace('"', "'")


def _note(axes: Axes, row: int, text: str) -> None:
    axes.text(
        1.01, row, text, va="center", fontsize=8.5, color=SOFT, transform=axes.get_yaxis_transform()
    )


@styled()
def boundary_rows(cells: Sequence[FinishedCell], arm: str, color: str) -> Figure | None:
    """Draw an arm's boundaries at the end of every confirm run over u, one row per cell."""
    by_cell = [(c, runs) for c in cells if (runs := learned_runs(c, arm))]
    if len(by_cell) < 2:
        return None
    figure, (axes,) = make_panels(1, 1, height=0.8 + _ROW * len(by_cell))
    for row, (cell, runs) in enumerate(by_cell):
        for i, run in enumerate(runs):
            y = row + 0.6 * ((i + 0.5) / len(runs) - 0.5)
            ends = shares(run.reports[-1].boundaries, cell)
            tip = _tip(f"{cell.label}: {run.name}")
            axes.plot(ends, [y] * len(ends), "|", ms=5, mew=1.2, color=color, alpha=0.8, gid=tip)
    axes.set_xlim(-0.015, 1.015)
    axes.set_ylim(len(by_cell) - 0.4, -0.6)
    axes.set_yticks(range(len(by_cell)), [c.label for c, _ in by_cell], color=INK)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("share of the block, u = p / T")
    return figure
