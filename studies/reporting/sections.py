"""The sections of a report: its texts, tables and figures, before they become HTML or files."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
from matplotlib.figure import Figure

from studies.analysis.results import Results
from studies.reporting.component_tables import components_sheet
from studies.reporting.explanation_tables import neighbours_sheet, path_sheet, sentences
from studies.reporting.figures import plots
from studies.reporting.figures.drawing import draw
from studies.reporting.figures.explanation_plot import explained
from studies.reporting.findings import findings
from studies.reporting.replication_table import replication_sheet, replication_title
from studies.reporting.shown.trials import drawn
from studies.reporting.tables import (
    Sheet,
    arms_sheet,
    best_trials,
    comparisons_sheet,
    confirm_sheet,
    positions_sheet,
    rates_sheet,
    trials_sheet,
    winning_sheet,
)
from studies.spec.study import Study
from studies.trials.explanations import Explanation, read_explanations
from studies.trials.records import Record, records_of
from studies.trials.winners import confirm_runs, winners


@dataclass(frozen=True)
class Words:
    """A subject and what there is to say about it."""

    title: str
    says: str


@dataclass(frozen=True)
class Listing:
    """Sentences under a title; empty without sentences."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Picture:
    """A figure of a report.

    Attributes:
        name: Its name, by which files are called.
        figure: The figure; None if there is nothing to draw.
        caption: What it shows and how to read it.
        hint: What a reader can do with it on a page, but not on paper.
    """

    name: str
    figure: Figure | None
    caption: str
    hint: str = ""

    @cached_property
    def svg(self) -> str:
        """The figure as :func:`draw` returns it, drawn at first use; "" without a figure."""
        return "" if self.figure is None else draw(self.figure)


@dataclass(frozen=True)
class Table:
    """A table of a report.

    Attributes:
        name: Its name, by which files are called.
        title: What it lists.
        sheet: Its cells.
        heading: Title under which a page folds a long table; empty for a table that never folds.
        titled: Whether a page shows the title above the table.
    """

    name: str
    title: str
    sheet: Sheet
    heading: str = ""
    titled: bool = False


Part: TypeAlias = Words | Listing | Picture | Table

_DRAWN = "the best of each arm, and as many others drawn at random"


@dataclass(frozen=True)
class Section:
    """A section of a report; its parts may be empty."""

    title: str
    parts: tuple[Part, ...]


def sections(
    results: Results, records: Mapping[str, Record], study: Study, folder: Path
) -> list[Section]:
    """Return the sections of a report. Whatever it shows, on a page or in files, is listed here.

    Args:
        results: Results of the study.
        records: All trials and runs, by name.
        study: The study.
        folder: Its folder.
    """
    best = best_trials(records, study)
    colors = plots.arm_colors(study.arms)
    search = [r for arm in study.arms for r in records_of(records, "search", arm)]
    comparisons = Table("comparisons", "Comparisons", comparisons_sheet(results))
    components = Table("components", "Published criteria", components_sheet(results))
    by_use = Listing("By use", results.recommendations)
    arms = Table("arms", "Arms on the test split", arms_sheet(results))
    confirm = Table("runs", "Runs on fresh seeds", confirm_sheet(records, study))
    winning = Table("winners", "Winning configurations", winning_sheet(study, records))
    return [
        Section("Result", (arms, components, by_use, _forest(results, colors), comparisons)),
        *_replication(results),
        *_rates(results, colors),
        *_positions(results),
        *(_boundaries(arm, records, study, colors[arm]) for arm in study.arms),
        *_reasons(records, study, folder, colors),
        *(_explained(e, records, study, colors[e.arm]) for e in read_explanations(folder)),
        Section("Search", (_curves(search, study, best), _parameters(search, study, best))),
        Section("Winning configurations", (winning,)),
        Section("Runs on fresh seeds", (confirm,)),
        Section("Search trials", tuple(_trials(a, records, study, best) for a in study.arms)),
    ]


def _forest(results: Results, colors: Mapping[str, str]) -> Picture:
    several = any(c.searches > 1 for c in results.comparisons)
    level = next((c.level for c in results.comparisons), 0.05)
    caption = (
        "Diamonds: change in test PPL over all pairs, with the "
        f"{100 * (1 - level):g} % interval; dots: each {'search' if several else 'seed'}. Shaded: "
        "the published scale of improvements (minimal from 0.5 %, moderate from 1 %, strong from "
        "2 %)."
    )
    return Picture("comparisons", plots.forest(results.comparisons, colors), caption)


def _replication(results: Results) -> list[Section]:
    """Return the section on the published claims; empty in every other study."""
    tables = [
        Table(f"replication {n}", replication_title(c), replication_sheet(c), titled=True)
        for n, c in enumerate(results.replication, 1)
    ]
    title = "Published claims and the faults of their code"
    return [Section(title, tuple(tables))] if tables else []


def _rates(results: Results, colors: Mapping[str, str]) -> list[Section]:
    """Return the section on the profile over learning rates; empty without a profile."""
    figure = plots.rates(results.comparisons, colors)
    if figure is None:
        return []
    caption = (
        "Matched change in test PPL with all arms at the winning learning rate times a factor, "
        "with its interval; open diamonds: each arm at its own best rate (minimum of a quadratic "
        f"in the log of the rate). {_rate_dependence(results)}"
    )
    picture = Picture("learning-rate", figure, caption)
    table = Table("learning-rate", "Change by learning rate", rates_sheet(results))
    return [Section("Learning rate", (picture, table))]


def _rate_dependence(results: Results) -> str:
    names = [f"{c.arm} vs {c.reference}" for c in results.comparisons if c.depends_on_rate]
    if names:
        return f"The answer depends on the learning rate for {', '.join(names)}."
    if all(c.own_best and c.own_best.outcome == c.outcome for c in results.comparisons):
        return "With each arm at its own best rate, every comparison has the same outcome."
    return "No comparison is certain to depend on the learning rate."


def _reasons(
    records: Mapping[str, Record], study: Study, folder: Path, colors: Mapping[str, str]
) -> list[Section]:
    """Return the section of findings on why the arms differ; empty without findings."""
    parts: list[Part] = []
    for f in findings(records, study, folder, colors):
        parts += [Words(f.title, f.says), Picture(f.title, f.figure, f.reading)]
    return [Section("Why the arms differ", tuple(parts))] if parts else []


def _positions(results: Results) -> list[Section]:
    sheet = positions_sheet(results)
    table = Table("positions", "Change by position in the block", sheet)
    return [Section("Positions in the block", (table,))] if sheet.rows else []


def _boundaries(arm: str, records: Mapping[str, Record], study: Study, color: str) -> Section:
    """Return the section on where an arm's boundaries went; empty without boundaries."""
    runs = boundary_runs(arm, records, study)
    shifts = plots.boundary_shifts(runs, study.block_size, color, study.seed_list)
    if shifts is None:
        return Section("", ())
    caption = f"Boundaries from start (hollow) to end (filled) of training. {_moved(runs)}"
    paths = plots.boundary_paths(runs, study.block_size, color, study.seed_list)
    over = "Boundaries over the steps of each run, sorted."
    name = f"boundaries of {arm}"
    pictures = (
        Picture(f"{name}, start and end", shifts, caption),
        Picture(f"{name}, by step", paths, over),
    )
    return Section(f"Boundaries of {arm}", pictures)


def boundary_runs(arm: str, records: Mapping[str, Record], study: Study) -> list[Record]:
    """Return the runs whose boundaries are shown: an arm's confirm runs, or its winners."""
    if runs := [r for r in confirm_runs(study, records, arm) if r.reports]:
        return runs
    return [w.record for (_, name), w in winners(study, records).items() if name == arm]


def _moved(runs: Sequence[Record]) -> str:
    ends = [r.reports[-1] for r in runs if r.reports]
    pairs = [
        np.subtract(e.boundaries, e.start_boundaries)
        for e in ends
        if len(e.boundaries) == len(e.start_boundaries)
    ]
    distance = np.abs(np.concatenate([[], *pairs]))
    distance = distance[np.isfinite(distance)]
    if not distance.size:
        return ""
    return (
        f"A boundary moved by {distance.mean():.2f} tokens on average and by "
        f"{distance.max():.2f} at most."
    )


def _explained(e: Explanation, records: Mapping[str, Record], study: Study, color: str) -> Section:
    """Return the section on an explanation that ``hylorada explain`` has measured."""
    place = f" in search {e.search}" if study.searches > 1 else ""
    now = winners(study, records).get((e.search, e.arm))
    overtaken = now is None or (now.record.name, now.block) != (e.trial, e.block)
    old = (
        "The search has another winner since then; run `hylorada explain` again. "
        if overtaken
        else ""
    )
    drawn = (
        f"Shaded: under {e.margin:g} %; colored: certainly different from 0, but not certainly "
        "within the shaded range; dots: seeds."
    )
    name = f"winner of {e.arm}{place}"
    parts = (
        Picture(name, explained(e, color), f"{old}{' '.join(sentences(e))} {drawn}"),
        Table(f"{name}, path", f"From the defaults to the {name}", path_sheet(e)),
        Table(f"{name}, neighbours", f"From the {name}, one step away", neighbours_sheet(e)),
    )
    return Section(f"Why the winner of {e.arm}{place} differs from the defaults", parts)


def _curves(trials: Sequence[Record], study: Study, best: Collection[str]) -> Picture:
    counts = []
    for arm in study.arms:
        states = [r.state for r in trials if r.arm == arm]
        counts.append(
            f"{arm}: {', '.join(f'{states.count(s)} {s}' for s in dict.fromkeys(states)) or 'none'}"
        )
    shown = drawn(trials, study, best)
    chosen = shown.says(_DRAWN)
    caption = (
        f"{'Trials' if chosen else 'Every trial'} ({'; '.join(counts)}). Bold: the best; thin: "
        "pruned; crosses: diverged or failed; dashed: ASHA's rungs at steps "
        f"{', '.join(map(str, study.rungs())) or '(none)'}. {chosen}"
    )
    hint = "Hover over a line for its name."
    figure = plots.curves(shown.trials, study, best)
    return Picture("trials by step", figure, caption.strip(), hint)


def _parameters(trials: Sequence[Record], study: Study, best: Collection[str]) -> Picture:
    shown = drawn(trials, study, best)
    caption = (
        "Searched parameters against the last validation PPL, in the colors of the arms. "
        "Filled: complete; hollow: pruned (after fewer steps, so not comparable with complete "
        f"ones); diamonds: each arm's best; crosses: diverged. {shown.says(_DRAWN)}"
    )
    figure = plots.parameters(shown.trials, study, best)
    return Picture("trials by parameter", figure, caption.strip())


def _trials(arm: str, records: Mapping[str, Record], study: Study, best: Collection[str]) -> Table:
    sheet = trials_sheet(arm, records, study, best)
    return Table(f"trials of {arm}", f"Search trials of {arm}", sheet, heading=arm)
