"""The figures for the report's findings on why the arms differ.

Each function takes and returns what those in :mod:`studies.reporting.figures.plots` do.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from studies.analysis.boundaries import SPACINGS, distances, spaced
from studies.analysis.gates import Gates
from studies.analysis.importance import Importance, Share
from studies.reporting.figures.drawing import INK, SOFT, make_panels, scale_ppl, styled
from studies.statistics.tuning import TuningCurve
from studies.trials.records import Record

_MOST_LABELS = 10  # labels for the columns of a heat map
_MOST_MARKS = 200  # trials of a curve that are marked


@styled()
def tuning(
    curves: Mapping[str, TuningCurve], colors: Mapping[str, str], into: Axes | None = None
) -> Figure | None:
    """Draw the expected best validation PPL of every arm against the number of trials."""
    if max((c.trials for c in curves.values()), default=0) < 2:
        return None
    figure, (axes,) = make_panels(1, 1, height=2.9, into=into)
    for arm, curve in curves.items():
        trials, ppl = range(1, curve.trials + 1), np.exp(curve.losses)
        mark = "." if curve.trials <= _MOST_MARKS else ""
        tip = f"tip {arm}: {ppl[-1]:.4g} after {curve.trials} trials"
        axes.plot(
            trials, ppl, marker=mark, ms=5, linewidth=1.6, color=colors[arm], label=arm, gid=tip
        )
    scale_ppl(axes, [float(p) for c in curves.values() for p in np.exp(c.losses)])
    axes.legend(frameon=False, labelcolor="linecolor", loc="upper right")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.set_xlabel("trials of a search")
    axes.set_ylabel("expected best validation PPL")
    return figure


@styled()
def importances(by_arm: Mapping[str, Importance], colors: Mapping[str, str]) -> Figure | None:
    """Draw each parameter's share and its chance level, one panel per arm."""
    shown = {arm: i.shares for arm, i in by_arm.items() if i.shares}
    if not shown:
        return None
    rows = max(map(len, shown.values()))
    figure, panels = make_panels(len(shown), min(len(shown), 3), height=0.8 + 0.24 * rows)
    for axes, (arm, shares) in zip(panels, shown.items(), strict=True):
        for row, (name, share) in enumerate(shares.items()):
            _draw_share(axes, row, name, share, colors[arm])
        axes.set_yticks(range(len(shares)), list(shares), color=INK)
        axes.set_ylim(rows - 0.5, -0.5)
        axes.set_xlim(0, 1)
        axes.tick_params(axis="y", length=0)
        axes.set_xticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
        axes.set_title(arm, color=colors[arm], fontweight="bold")
    panels[0].set_xlabel("share of the importance")
    return figure


def _draw_share(axes: Axes, row: int, name: str, share: Share, color: str) -> None:
    tip = f"tip {name}: {100 * share.share:.1f} %, by chance up to {100 * share.chance:.1f} %"
    axes.barh(row, share.share, height=0.62, color=color, alpha=0.9 if share.stands_out else 0.35)[
        0
    ].set_gid(tip)
    axes.plot([min(share.chance, 1)], [row], "|", ms=10, mew=1.4, color=INK, clip_on=False)


@styled()
def boundary_steps(runs: Sequence[Record], block_size: int, color: str) -> Figure | None:
    """Draw the bucket of each position at the end of each run, over the two spacings.

    Each search has a panel.
    """
    searches = sorted({r.search for r in runs})
    if not searches:
        return None
    figure, panels = make_panels(len(searches), min(len(searches), 3), height=2.5)
    for axes, search in zip(panels, searches, strict=True):
        own = [r for r in runs if r.search == search]
        count = len(own[0].reports[-1].boundaries)
        for spacing, style in zip(SPACINGS, ("--", ":"), strict=True):
            _draw_steps(
                axes, spaced(spacing, count, block_size).tolist(), block_size, SOFT, style, spacing
            )
        for run in own:
            _draw_steps(axes, run.reports[-1].boundaries, block_size, color, "-", run.name)
        axes.set_title(
            f"search {search}, {_away(own, block_size)}"
            if len(searches) > 1
            else _away(own, block_size)
        )
        axes.set_xlabel("token position")
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    panels[0].legend(*_first_labels(panels[0]), frameon=False, labelcolor=SOFT, loc="lower right")
    panels[0].set_ylabel("bucket")
    return figure


def _away(runs: Sequence[Record], block_size: int) -> str:
    """Return a label: the runs' common number of buckets, and their distance to each spacing."""
    away_from = distances(runs, block_size)
    count = len(runs[0].reports[-1].boundaries)
    away = " and ".join(f"{away_from[s].end:.1f} from {s}" for s in SPACINGS)
    return f"{count + 1} buckets\n{away}"


def _draw_steps(
    axes: Axes, boundaries: Sequence[float], block_size: int, color: str, style: str, name: str
) -> None:
    places = [0, *np.clip(sorted(boundaries), 0, block_size), block_size]
    buckets = [*range(len(boundaries) + 1), len(boundaries)]
    axes.step(
        places,
        buckets,
        where="post",
        color=color,
        linestyle=style,
        linewidth=1.2,
        label=name,
        gid=f"tip {name}",
    )


def _first_labels(axes: Axes) -> tuple[list[Line2D], list[str]]:
    """Return the lines of the two spacings and of one run, with their labels in the legend."""
    return axes.get_lines()[:3], [*SPACINGS, "learned"]


@styled()
def gates(runs: Sequence[Gates], color: str) -> Figure | None:
    """Draw the weight of each landmark over stretches of positions, one panel per run."""
    if not runs:
        return None
    most = max(g.weights.shape[1] for g in runs)
    figure, panels = make_panels(len(runs), min(len(runs), 3), height=0.9 + 0.13 * max(8, most))
    for axes, one in zip(panels, runs, strict=True):
        _draw_gates(axes, one, color)
        even = f"even: {100 / one.weights.shape[1]:.3g} %"
        axes.set_title(f"search {one.run.search} ({even})" if len(runs) > 1 else even)
    panels[0].set_ylabel("landmark")
    panels[0].set_xlabel("token position, a column for each bucket")
    return figure


def _draw_gates(axes: Axes, one: Gates, color: str) -> None:
    edges = [*one.starts, len(one.weights)]
    landmarks = one.weights.shape[1]
    cells = np.array([one.weights[a:b].mean(axis=0) for a, b in pairwise(edges)])
    darkest = max(2 / landmarks, float(cells.max()))  # keeps almost even weights pale
    for column, row in np.ndindex(*cells.shape):
        weight, first, last = float(cells[column, row]), edges[column], edges[column + 1] - 1
        where = f"positions {first}-{last}" if last > first else f"position {first}"
        tip = f"tip {where}, landmark {row}: {100 * weight:.1f} %"
        axes.add_patch(
            Rectangle(
                (column, row), 1, 1, facecolor=color, alpha=weight / darkest, linewidth=0, gid=tip
            )
        )
    axes.set_xlim(0, len(cells))
    axes.set_ylim(landmarks, 0)
    every = math.ceil(len(cells) / _MOST_LABELS)
    axes.set_xticks(range(0, len(cells), every), [str(s) for s in one.starts[::every]])
    rows = range(0, landmarks, math.ceil(landmarks / 8))
    axes.set_yticks([r + 0.5 for r in rows], list(map(str, rows)))
    axes.tick_params(axis="y", length=0)
