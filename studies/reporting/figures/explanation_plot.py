"""The figure of an explanation: each change around a winner with its interval."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from studies.reporting.explanation_tables import matters, outcome, step_text
from studies.reporting.figures.drawing import INK, SOFT, make_panels, styled
from studies.trials.explanations import Effect, Explanation

_ROW = 0.27  # inches


@styled()
def explained(e: Explanation, color: str) -> Figure | None:
    """Draw the path from the defaults above and the winner's neighbours below."""
    families = [(title, steps) for title, steps in _families(e) if any(x.change for x in steps)]
    rows = sum(len(steps) + 1 for _, steps in families)
    if not rows:
        return None
    figure, (axes,) = make_panels(1, 1, height=0.7 + _ROW * rows)
    _draw_margin(axes, e)
    labels: list[str] = []
    for title, steps in families:
        labels.append(title)
        for x in steps:
            _draw(axes, len(labels), e, x, color)
            labels.append(step_text(x) if x.parameter else "all steps together")
    for label in axes.set_yticks(range(len(labels)), labels, color=INK):
        if label.label1.get_text() in dict(families):
            label.label1.set_fontweight("bold")
    axes.set_ylim(rows - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("change in validation PPL, %   (left of 0: better)")
    return figure


def _families(e: Explanation) -> Sequence[tuple[str, Sequence[Effect]]]:
    whole = [] if e.whole is None or len(e.path) < 2 else [e.whole]
    return (
        ("From the defaults to the winner", [*e.path, *whole]),
        ("From the winner one step away", e.neighbours),
    )


def _draw_margin(axes: Axes, e: Explanation) -> None:
    axes.axvspan(-e.margin, e.margin, color=SOFT, alpha=0.1, linewidth=0)
    axes.axvline(0, color=SOFT, linewidth=0.8)


def _draw(axes: Axes, row: int, e: Explanation, x: Effect, color: str) -> None:
    c = x.change
    if c is not None and math.isfinite(c.change):
        shade = color if matters(e, x) else SOFT
        step = step_text(x) if x.parameter else "all steps"
        tip = f"tip {step}: {c.change:+.3f} % [{c.low:+.3f}, {c.high:+.3f}]"
        axes.plot(
            x.by_seed,
            [row + 0.22] * len(x.by_seed),
            "o",
            ms=2.6,
            color=shade,
            alpha=0.5,
            mew=0,
            gid="tip seeds",
        )
        axes.plot([c.low, c.high], [row, row], color=shade, linewidth=2, solid_capstyle="butt")
        axes.plot([c.change], [row], "D", ms=4.5, color=shade, gid=tip)
    note = outcome(e, x).partition(":")[0]  # the table has the reason why a run was lost
    axes.text(
        1.01, row, note, va="center", fontsize=8, color=SOFT, transform=axes.get_yaxis_transform()
    )
