"""The figures of a report, drawn with matplotlib's object API.

Each function returns a figure, or None if there is nothing to draw. Those with an argument ``into``
draw a figure of one panel into the caller's axes.
:mod:`studies.reporting.figures.drawing` turns figures into SVG and PDF.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from studies.analysis.comparisons import Comparison
from studies.reporting.figures.drawing import (
    ARMS,
    BAD,
    GOOD,
    INK,
    LINE,
    PAPER,
    SOFT,
    finite,
    make_panels,
    scale_ppl,
    styled,
)
from studies.reporting.shown.values import last, value_text
from studies.spec.common_values import seed_name
from studies.spec.space import Choice, Parameter, Range
from studies.spec.study import Study
from studies.statistics.decision import SCALE
from studies.trials.records import Record

_LETTERS = 26  # letters that fit below a third of a paper's width at the usual size


def arm_colors(arms: Iterable[str]) -> dict[str, str]:
    """Return a color for each arm, repeating them after the last."""
    return {arm: ARMS[i % len(ARMS)] for i, arm in enumerate(arms)}


@styled()
def forest(
    comparisons: Sequence[Comparison], colors: Mapping[str, str], into: Axes | None = None
) -> Figure | None:
    """Draw each comparison with its interval and seeds over the published scale of improvements."""
    shown = [c for c in comparisons if math.isfinite(c.change)]
    if not shown:
        return None
    figure, (axes,) = make_panels(1, 1, height=0.75 + 0.5 * len(shown), into=into)
    ends = [
        abs(x)
        for c in shown
        for x in (c.change, c.low, c.high, *(c.by_search if c.searches > 1 else c.by_seed))
        if math.isfinite(x)
    ]
    limit = max(0.7, 1.1 * max(ends))
    _shade_scale(axes, limit)
    for row, comparison in enumerate(shown):
        _draw_comparison(axes, row, comparison, colors.get(comparison.arm, INK))
    axes.set_xlim(-limit, limit)
    axes.set_ylim(len(shown) - 0.5, -0.6)
    axes.set_yticks(range(len(shown)), [f"{c.arm} vs {c.reference}" for c in shown], color=INK)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("change in test PPL, %   (left of 0: better)")
    return figure


def _shade_scale(axes: Axes, limit: float) -> None:
    """Shade the bands of the published scale, and name them where there is room."""
    edges = [0.0, *sorted(edge for edge, _ in SCALE), math.inf]
    names = ["none", *(name for _, name in sorted(SCALE))]
    for i, name in enumerate(names):
        near, far = edges[i], min(edges[i + 1], limit)
        if near < limit:
            axes.axvspan(-far, -near, color=GOOD, alpha=0.07 * i, linewidth=0)
            if far - near > 0.11 * limit:
                _above(axes, -(near + far) / 2, name)
    _above(axes, limit / 2, "worse")
    axes.axvline(0, color=SOFT, linewidth=0.8)


def _above(axes: Axes, x: float, text: str) -> None:
    axes.text(
        x,
        1.02,
        text,
        color=SOFT,
        ha="center",
        va="bottom",
        fontsize=8,
        transform=axes.get_xaxis_transform(),
    )


def _draw_comparison(axes: Axes, row: int, c: Comparison, color: str) -> None:
    each = c.by_search if c.searches > 1 else c.by_seed
    tip = "tip each search" if c.searches > 1 else "tip each seed"
    axes.plot(each, [row + 0.2] * len(each), "o", ms=3.6, color=color, alpha=0.55, mew=0, gid=tip)
    axes.plot([c.low, c.high], [row, row], color=color, linewidth=2.2, solid_capstyle="butt")
    tip = f"tip {c.arm} vs {c.reference}: {c.change:+.3f} % [{c.low:+.3f}, {c.high:+.3f}]"
    axes.plot([c.change], [row], "D", ms=6.5, color=color, gid=tip)
    note = f"{c.outcome or c.decision}, Holm p = {c.p_holm:.2g}"
    axes.text(
        1.01, row, note, va="center", fontsize=8.5, color=SOFT, transform=axes.get_yaxis_transform()
    )


@styled()
def rates(
    comparisons: Sequence[Comparison], colors: Mapping[str, str], into: Axes | None = None
) -> Figure | None:
    """Draw each comparison's matched change over the factor of the learning rate."""
    shown = [c for c in comparisons if len(c.profile) > 1]
    if not shown:
        return None
    figure, panels = make_panels(len(shown), min(len(shown), 3), height=2.6, into=into)
    for axes, c in zip(panels, shown, strict=True):
        factors = [r.factor for r in c.profile]
        changes = [r.change for r in c.profile]
        errors = [[x.change - x.low for x in changes], [x.high - x.change for x in changes]]
        color = colors.get(c.arm, INK)
        axes.axhline(0, color=SOFT, linewidth=0.8)
        axes.errorbar(
            factors, [x.change for x in changes], errors, fmt="o-", color=color, linewidth=1.2, ms=5
        )
        if c.own_best:
            middle = math.sqrt(min(factors) * max(factors))
            bars = [[c.own_best.change - c.own_best.low], [c.own_best.high - c.own_best.change]]
            axes.errorbar(
                [1.12 * middle], [c.own_best.change], bars, fmt="D", mfc=PAPER, color=color, ms=6
            )
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(factors, [f"x {f:g}" for f in factors])
        axes.set_title(f"{c.arm} vs {c.reference}")
        axes.set_xlabel("learning rate")
    panels[0].set_ylabel("change in test PPL, %")
    return figure


@styled()
def boundary_shifts(
    runs: Sequence[Record],
    block_size: int,
    color: str,
    seeds: Sequence[int] = (),
    into: Axes | None = None,
) -> Figure | None:
    """Draw where boundaries started (above, hollow) and ended (below, filled), one row per run.

    Args:
        runs: confirm runs, or search trials.
        block_size: tokens in a block.
        color: color of their arm.
        seeds: paired seeds that the study names; empty if it does not.
    """
    shown = [r for r in runs if r.reports and r.reports[-1].boundaries]
    if not shown:
        return None
    figure, (axes,) = make_panels(1, 1, height=0.7 + 0.55 * len(shown), into=into)
    for row, run in enumerate(shown):
        start, end = run.reports[-1].start_boundaries, run.reports[-1].boundaries
        for a, b in zip(start, end, strict=False):
            axes.plot([a, b], [row - 0.2, row + 0.2], color=color, linewidth=0.8, alpha=0.7)
        axes.plot(
            start,
            [row - 0.2] * len(start),
            "o",
            ms=4.5,
            mfc=PAPER,
            mec=color,
            gid=f"tip {run.name}: start",
        )
        axes.plot(end, [row + 0.2] * len(end), "o", ms=4.5, color=color, gid=f"tip {run.name}: end")
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlim(-0.015 * block_size, 1.015 * block_size)
    axes.set_yticks(range(len(shown)), [_run_label(r, seeds) for r in shown], color=INK)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("token position in the block")
    return figure


@styled()
def boundary_paths(
    runs: Sequence[Record], block_size: int, color: str, seeds: Sequence[int] = ()
) -> Figure | None:
    """Draw every boundary over the steps of each run; arguments as in `boundary_shifts`."""
    shown = [r for r in runs if any(x.boundaries for x in r.reports)]
    if not shown:
        return None
    figure, panels = make_panels(len(shown), min(len(shown), 5), height=2.4, share="all")
    for axes, run in zip(panels, shown, strict=True):
        known = [
            r for r in run.reports if len(r.boundaries) == len(run.reports[0].start_boundaries)
        ]
        lines = np.array([run.reports[0].start_boundaries, *(r.boundaries for r in known)])
        axes.plot([0, *(r.step for r in known)], lines, color=color, linewidth=0.8, alpha=0.85)
        axes.set_title(_run_label(run, seeds))
        axes.set_ylim(0, block_size)
        axes.set_xlabel("optimizer step")
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    panels[0].set_ylabel("token position")
    return figure


def _run_label(run: Record, seeds: Sequence[int]) -> str:
    if run.stage != "confirm":
        return run.name
    seed = f"seed {seed_name(seeds, run.number)}"
    return f"search {run.search}, {seed}" if run.search or run.block is not None else seed


@styled()
def curves(
    trials: Sequence[Record], study: Study, best: Collection[str], into: Axes | None = None
) -> Figure | None:
    """Draw the validation PPL of every search trial over its steps, one panel per arm."""
    values = finite(x.metrics.get("eval/ppl") for r in trials for x in r.reports)
    arms = [arm for arm in study.arms if any(r.arm == arm for r in trials)]
    if not values:
        return None
    colors = arm_colors(study.arms)
    figure, panels = make_panels(len(arms), min(len(arms), 3), height=3.0, share="all", into=into)
    for axes, arm in zip(panels, arms, strict=True):
        for rung in study.rungs():
            axes.axvline(rung, color=LINE, linewidth=0.9, linestyle=(0, (2, 2)))
        of_arm = [r for r in trials if r.arm == arm]
        for trial in of_arm:
            _draw_curve(
                axes, trial, colors[arm], trial.name in best, min(0.8, max(0.25, 16 / len(of_arm)))
            )
        axes.set_title(arm, color=colors[arm], fontweight="bold")
        axes.set_xlabel("optimizer step")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    scale_ppl(panels[0], values)
    panels[0].set_ylabel("validation PPL: best, and % above it")
    return figure


def _draw_curve(axes: Axes, trial: Record, color: str, is_best: bool, alpha: float) -> None:
    points = [
        (r.step, r.metrics["eval/ppl"])
        for r in trial.reports
        if finite([r.metrics.get("eval/ppl")])
    ]
    if not points:
        return
    looks: dict[str, dict[str, Any]] = {
        "complete": {"linewidth": 1.1, "alpha": alpha},
        "running": {"linewidth": 1.1, "alpha": alpha, "linestyle": ":"},
    }
    look = looks.get(trial.state, {"linewidth": 0.7, "alpha": 0.5 * alpha})
    steps, ppl = zip(*points, strict=True)
    if is_best:
        look = {"linewidth": 2.6, "zorder": 3}
        axes.plot(steps, ppl, color=PAPER, linewidth=5, zorder=2.9)  # a halo that sets it off
    axes.plot(
        steps,
        ppl,
        color=color,
        marker=".",
        ms=4,
        markevery=[-1],
        gid=f"tip {trial.name}, {trial.state}",
        **look,
    )
    if trial.state in ("diverged", "failed"):
        axes.plot(steps[-1:], ppl[-1:], "x", ms=6, color=BAD, mew=1.5)


@styled()
def parameters(trials: Sequence[Record], study: Study, best: Collection[str]) -> Figure | None:
    """Draw the last validation PPL of trials over each searched parameter, arms in their colors."""
    values = finite(last(r, "eval/ppl") for r in trials)
    drawn = {name for r in trials for name in r.params}
    spaces: dict[str, list[Parameter]] = {}
    for arm in study.arms:
        for name, declared in study.space(arm).parameters.items():
            spaces.setdefault(name, []).append(declared)
    names = [n for n in spaces if n in drawn]
    if not values or not names:
        return None
    figure, panels = make_panels(len(names), min(len(names), 3), height=2.1, share="y")
    for axes, name in zip(panels, names, strict=True):
        drew_it = [r for r in trials if name in r.params]
        _draw_parameter(axes, drew_it, name, [p.values for p in spaces[name]], study, best)
        axes.set_title(name)
    scale_ppl(panels[0], values)
    for axes in panels[::3]:
        axes.set_ylabel("validation PPL")
    return figure


def _draw_parameter(
    axes: Axes,
    trials: Sequence[Record],
    name: str,
    declared: Sequence[Range | Choice],
    study: Study,
    best: Collection[str],
) -> None:
    places = _scale_parameter(axes, [r.params[name] for r in trials], declared)
    colors, arms = arm_colors(study.arms), list(dict.fromkeys(r.arm for r in trials))
    for trial in trials:
        x = float(trial.params[name]) if places is None else places[value_text(trial.params[name])]
        if places is not None:  # arms stand side by side, with some jitter between trials
            x += 0.5 * ((arms.index(trial.arm) + 0.5) / len(arms) - 0.5) + 0.12 * (
                trial.number * 0.618 % 1 - 0.5
            )
        y, gid = (
            last(trial, "eval/ppl"),
            f"tip {trial.name}, {trial.state}: {value_text(trial.params[name])}",
        )
        look: dict[str, Any] = {"color": colors[trial.arm], "gid": gid, "clip_on": False}
        if trial.state == "diverged":
            look |= {"color": BAD, "transform": axes.get_xaxis_transform()}
            axes.plot([x], [0.97], "x", ms=6, mew=1.5, **look)
        elif y is not None and trial.name in best:
            axes.plot([x], [y], "D", ms=7, mec=PAPER, zorder=3, **look)
        elif y is not None:
            faded = trial.state != "complete"
            axes.plot(
                [x],
                [y],
                "o",
                ms=4.5,
                mfc="none" if faded else None,
                alpha=0.6 if faded else 0.9,
                **look,
            )


def _scale_parameter(
    axes: Axes, values: Sequence[Any], declared: Sequence[Range | Choice]
) -> dict[str, int] | None:
    """Set up the x axis; return the place of each category, or None for a range."""
    ranges = [d for d in declared if isinstance(d, Range)]
    if len(ranges) < len(declared):
        options = [o for d in declared if isinstance(d, Choice) for o in d.options]
        places = {
            text: i for i, text in enumerate(dict.fromkeys(map(value_text, [*options, *values])))
        }
        size = max(5.5, min(9.0, 9.0 * _LETTERS / sum(len(name) + 2 for name in places)))
        axes.set_xticks(list(places.values()), list(places), fontsize=size)
        axes.set_xlim(-0.5, len(places) - 0.5)
        return places
    low, high = min(r.low for r in ranges), max(r.high for r in ranges)
    if any(r.log for r in ranges) and low > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(
            LogLocator(subs=(1.0,) if high >= 50 * low else (1.0, 2.0, 5.0))
        )
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(low / (high / low) ** 0.05 / 1.001, high * (high / low) ** 0.05 * 1.001)
    else:
        margin = 0.05 * (high - low) or 0.5
        axes.set_xlim(low - margin, high + margin)
    return None
