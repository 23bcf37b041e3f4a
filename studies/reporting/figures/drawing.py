"""Shared parts of all figures: theme, style, panels, PPL scale, and how they become SVG and PDF."""

import io
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

# name: (light, dark). Figures are drawn in the light color, which a CSS variable then replaces.
THEME = {
    "paper": ("#fdfdfc", "#17191c"),
    "ink": ("#23272c", "#e2e4e7"),
    "soft": ("#6a7179", "#9aa1a9"),
    "line": ("#d5d8dc", "#3b4047"),
    "good": ("#2f8f5b", "#4fb87f"),
    "bad": ("#c0392b", "#ef7a6d"),
    "arm0": ("#5f6b7a", "#a3afbf"),
    "arm1": ("#2a6fb0", "#6cb0ee"),
    "arm2": ("#c7621b", "#f09a55"),
    "arm3": ("#7b4fa3", "#b894dd"),
    "arm4": ("#1f8a8a", "#56c4c4"),
    "arm5": ("#a8326f", "#e27fb0"),
}
PAPER, INK, SOFT, LINE, GOOD, BAD = (light for light, _ in list(THEME.values())[:6])
ARMS = [light for name, (light, _) in THEME.items() if name.startswith("arm")]
_NEAR = 0.003  # the axis is about linear up to this share above the best PPL
_MOST_TICKS = 8
_MARKS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000, 100_000)  # ticks, % above the best
_WIDTH = 9.0  # inches; the page scales it
_PAPER_WIDTH = 6.75  # inches, the width of a page of text
_STYLE = {
    "svg.fonttype": "none",  # text stays text, in the page's font
    "svg.hashsalt": "hylorada",  # equal results give equal bytes
    "pdf.fonttype": 42,  # TrueType: text stays text, and no journal refuses it
    "text.parse_math": False,  # a name may hold a dollar sign
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.edgecolor": LINE,
    "axes.labelcolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": SOFT,
    "ytick.labelcolor": SOFT,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


@contextmanager
def styled() -> Iterator[None]:
    """Apply the report's style to matplotlib's defaults, and restore the user's settings after."""
    with mpl.style.context(_STYLE, after_reset=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the browser's fonts draw it
        yield


def finite(values: Iterable[float | None]) -> list[float]:
    """Return the values that are finite numbers."""
    return [v for v in values if v is not None and math.isfinite(v)]


def scale_ppl(axes: Axes, values: Sequence[float]) -> None:
    """Scale the y axis to show both tenths of a percent near the best PPL and multiples of it.

    A PPL is drawn at height log(ppl / best - 1 + _NEAR), which is about linear within ``_NEAR`` of
    the best.
    """
    best, high = min(values), max(*values, 1.005 * min(values))

    def up(ppl: Any) -> Any:
        return np.log(np.maximum(ppl / best - 1 + _NEAR, 1e-9))

    def down(height: Any) -> Any:
        return best * (np.exp(height) + 1 - _NEAR)

    axes.set_yscale("function", functions=(up, down))
    close = (0.1, 0.2) if high < 1.01 * best else ()
    room, marks = (up(high) - up(best)) / _MOST_TICKS, [0.0]
    for p in (*close, *_MARKS):
        if (
            p <= 100 * (high / best - 1) + 1e-9
            and up(best * (1 + p / 100)) - up(best * (1 + marks[-1] / 100)) >= room
        ):
            marks.append(p)  # closer marks would have overlapping labels
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_yticks(
        [best * (1 + p / 100) for p in marks], [f"{p:+g} %" if p else f"{best:.4g}" for p in marks]
    )
    axes.set_ylim(best * (1 - _NEAR / 4), down(up(high) + 0.15))


def make_panels(
    count: int, columns: int, *, height: float, share: Any = "none", into: Axes | None = None
) -> tuple[Figure, list[Axes]]:
    """Return a figure of ``count`` panels, with rows of ``height`` inches.

    Args:
        count: number of panels.
        columns: panels in a row.
        height: height of a row in inches.
        share: which axes the panels share, ``all``, ``y`` or ``none``.
        into: the caller's axes to draw a single panel into; None makes a new figure.
    """
    if into is not None:
        assert count == 1, "the caller's axes hold one panel"
        figure = into.get_figure(root=True)
        assert figure is not None, "axes belong to a figure"
        return figure, [into]
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(_WIDTH, height * rows), layout="constrained")
    sharex: Any = share if share == "all" else "none"
    grid = figure.subplots(
        rows, columns, squeeze=False, sharex=sharex, sharey="all" if share == "y" else share
    )
    every: list[Axes] = list(grid.flat)
    for spare in every[count:]:
        spare.set_visible(False)
    return figure, every[:count]


@styled()
def draw(figure: Figure) -> str:
    """Return a figure as SVG, from which :func:`themed` and :func:`on_paper` make what is shown."""
    return _svg(figure)


def svg_text(figure: Figure) -> str:
    """Return a figure as the ``<svg>`` element of a page, whose theme replaces its colors."""
    return themed(draw(figure))


def themed(svg: str) -> str:
    """Return a drawn figure as the ``<svg>`` element of a page, whose theme replaces its colors."""
    element = svg[svg.index("<svg") :]
    for name, (light, _) in THEME.items():
        element = element.replace(light, f"var(--{name})")
    return element


def on_paper(svg: str) -> bytes:
    """Return a drawn figure as an SVG file that is legible on a page of any theme."""
    # The background is the first thing that matplotlib draws, and the only one drawn so far.
    return svg.replace("fill: none", f"fill: {PAPER}", 1).encode()


@styled()
def svg_file(figure: Figure) -> bytes:
    """Return a figure of a paper as an SVG file; equal figures give equal bytes."""
    _fit_to_paper(figure)
    return _svg(figure).encode()


@styled()
def pdf_file(figure: Figure) -> bytes:
    """Return a figure of a paper as a PDF file; equal figures give equal bytes."""
    _fit_to_paper(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="pdf", metadata={"CreationDate": None})
    return buffer.getvalue()


def _fit_to_paper(figure: Figure) -> None:
    """Give a figure the width of a paper; its layout follows when it is drawn."""
    figure.set_size_inches(_PAPER_WIDTH, figure.get_figheight())


def _svg(figure: Figure) -> str:
    """Return a figure as SVG with tips as titles, without metadata and ids that repeat."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = re.sub(r"<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    text = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", text)
    return re.sub(r'<g id="tip ([^"]*)">', r"<g><title>\1</title>", text)
