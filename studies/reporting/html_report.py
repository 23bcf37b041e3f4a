"""A study's results for readers: tables for the terminal, and one self-contained HTML file."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from studies.analysis.results import Results
from studies.files.folder_files import write_atomically
from studies.reporting import plots
from studies.reporting.component_tables import changes_sheet, components_sheet
from studies.reporting.explanation_plot import explained
from studies.reporting.explanation_tables import neighbours_sheet, path_sheet, sentences
from studies.reporting.findings import findings
from studies.reporting.page import escape as _escape
from studies.reporting.page import figure_html as _figure
from studies.reporting.page import folded as _folded
from studies.reporting.page import page as _page
from studies.reporting.page import section as _section
from studies.reporting.page import table_html as _html
from studies.reporting.replication_table import replication_sheet, replication_title
from studies.reporting.tables import (
    arms_sheet,
    best_trials,
    comparisons_sheet,
    confirm_sheet,
    many_references,
    positions_sheet,
    rates_sheet,
    searched_sheet,
    trials_sheet,
    winning_sheet,
)
from studies.reporting.terminal import Drawing
from studies.spec.study import Study
from studies.trials.explanations import Explanation, read_explanations
from studies.trials.records import Record, records_of
from studies.trials.winners import winners


def table(results: Results) -> Drawing:
    """Return the table of arms for the terminal.

    Args:
        results: Results of the study, from :func:`studies.analysis.results.gather`.
    """
    return Drawing(arms_sheet(results))


def comparison_tables(results: Results) -> list[Drawing]:
    """Return what the table of arms leaves out: the components, or many arms' comparisons."""
    if results.components:
        return [Drawing(components_sheet(results))]
    listed = many_references(results) and not results.replication  # which has tables of its own
    return [Drawing(changes_sheet(results))] if listed else []


def verdict_lines(results: Results) -> list[str]:
    """Return the verdict as lines, one for each sentence or part that ends in a semicolon."""
    return re.split(r"(?<=[.;]) ", results.verdict)


def trial_table(records: Mapping[str, Record], study: Study) -> Drawing:
    """Return a table of all search trials and their parameters; the best of each arm is bold."""
    return Drawing(searched_sheet(records, study))


def write_html(results: Results, records: Mapping[str, Record], study: Study, path: Path) -> None:
    """Write the whole report as one HTML file that needs nothing else.

    Args:
        results: Results of the study.
        records: All trials and runs, by name.
        study: The study.
        path: Path of the file, which is replaced atomically.
    """
    best = best_trials(records, study)
    colors = plots.arm_colors(study.arms)
    search = [r for arm in study.arms for r in records_of(records, "search", arm)]
    body = [
        _head(results, study),
        _section(
            "Result",
            _html(arms_sheet(results)),
            _html(components_sheet(results)),
            _recommended(results),
            _forest(results, colors),
            _html(comparisons_sheet(results)),
        ),
        *_replication(results),
        *_rates(results, colors),
        *_positions(results),
        *(_boundaries(arm, records, study, colors[arm]) for arm in study.arms),
        *_reasons(records, study, path.parent, colors),
        *(_explained(e, records, study, colors[e.arm]) for e in read_explanations(path.parent)),
        _section("Search", _curves(search, study, best), _parameters(search, study, best)),
        _section("Winning configurations", _html(winning_sheet(study, records))),
        _section("Runs on fresh seeds", _html(confirm_sheet(records, study))),
        _section(
            "Search trials",
            *(_folded(arm, trials_sheet(arm, records, study, best)) for arm in study.arms),
        ),
        _section("Provenance", _provenance(results.provenance)),
    ]
    write_atomically(path, _page(results.study, "\n".join(body)))


def _recommended(results: Results) -> str:
    sentences = "".join(f"<li>{_escape(s)}</li>" for s in results.recommendations)
    return f'<h3>By use</h3><ul class="notes">{sentences}</ul>' if sentences else ""


def _forest(results: Results, colors: Mapping[str, str]) -> str:
    several = any(c.searches > 1 for c in results.comparisons)
    level = next((c.level for c in results.comparisons), 0.05)
    caption = (
        "Diamonds: change in test PPL over all pairs, with the "
        f"{100 * (1 - level):g} % interval; dots: each {'search' if several else 'seed'}. Shaded: "
        "the published scale of improvements (minimal from 0.5 %, moderate from 1 %, strong from "
        "2 %)."
    )
    return _figure(plots.forest(results.comparisons, colors), caption)


def _replication(results: Results) -> list[str]:
    """Return the section on the published claims; empty in every other study."""
    tables = [
        f"<h3>{_escape(replication_title(c))}</h3>{_html(replication_sheet(c))}"
        for c in results.replication
    ]
    return [_section("Published claims and the faults of their code", *tables)] if tables else []


def _rates(results: Results, colors: Mapping[str, str]) -> list[str]:
    """Return the section on the profile over learning rates; empty without a profile."""
    figure = plots.rates(results.comparisons, colors)
    if figure is None:
        return []
    caption = (
        "Matched change in test PPL with all arms at the winning learning rate times a factor, "
        "with its interval; open diamonds: each arm at its own best rate (minimum of a quadratic "
        f"in the log of the rate). {_rate_dependence(results)}"
    )
    return [_section("Learning rate", _figure(figure, caption), _html(rates_sheet(results)))]


def _rate_dependence(results: Results) -> str:
    names = [f"{c.arm} vs {c.reference}" for c in results.comparisons if c.depends_on_rate]
    if names:
        return f"The answer depends on the learning rate for {', '.join(names)}."
    if all(c.own_best and c.own_best.outcome == c.outcome for c in results.comparisons):
        return "With each arm at its own best rate, every comparison has the same outcome."
    return "No comparison is certain to depend on the learning rate."


def _reasons(
    records: Mapping[str, Record], study: Study, folder: Path, colors: Mapping[str, str]
) -> list[str]:
    """Return the section of findings on why the arms differ; empty without findings."""
    parts = [
        f'<h3>{_escape(f.title)}</h3><p class="says">{_escape(f.says)}</p>'
        f"{_figure(f.figure, f.reading)}"
        for f in findings(records, study, folder, colors)
    ]
    return [_section("Why the arms differ", *parts)] if parts else []


def _positions(results: Results) -> list[str]:
    sheet = positions_sheet(results)
    return [_section("Positions in the block", _html(sheet))] if sheet.rows else []


def _boundaries(arm: str, records: Mapping[str, Record], study: Study, color: str) -> str:
    """Return the boundaries of an arm's confirm runs, or of its winners before any; "" without."""
    of_arm = [w for (_, name), w in winners(study, records).items() if name == arm]
    runs = [r for w in of_arm for r in w.runs(records, "confirm") if r.reports and r.factor == 1]
    runs = runs or [w.record for w in of_arm]
    shifts = plots.boundary_shifts(runs, study.block_size, color)
    if shifts is None:
        return ""
    caption = f"Boundaries from start (hollow) to end (filled) of training. {_moved(runs)}"
    paths = plots.boundary_paths(runs, study.block_size, color)
    over = "Boundaries over the steps of each run, sorted."
    return _section(f"Boundaries of {arm}", _figure(shifts, caption), _figure(paths, over))


def _explained(e: Explanation, records: Mapping[str, Record], study: Study, color: str) -> str:
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
    figure = _figure(explained(e, color), f"{old}{' '.join(sentences(e))} {drawn}")
    title = f"Why the winner of {e.arm}{place} differs from the defaults"
    return _section(title, figure, _html(path_sheet(e)), _html(neighbours_sheet(e)))


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


def _curves(trials: Sequence[Record], study: Study, best: Collection[str]) -> str:
    counts = []
    for arm in study.arms:
        states = [r.state for r in trials if r.arm == arm]
        counts.append(
            f"{arm}: {', '.join(f'{states.count(s)} {s}' for s in dict.fromkeys(states)) or 'none'}"
        )
    caption = (
        f"Every trial ({'; '.join(counts)}). Bold: the best; thin: pruned; crosses: diverged or "
        f"failed; dashed: ASHA's rungs at steps "
        f"{', '.join(map(str, study.rungs())) or '(none)'}. Hover over a line for its name."
    )
    return _figure(plots.curves(trials, study, best), caption)


def _parameters(trials: Sequence[Record], study: Study, best: Collection[str]) -> str:
    caption = (
        "Searched parameters against the last validation PPL, with arms in the colors above. "
        "Filled: complete; hollow: pruned (after fewer steps, so not comparable with complete "
        "ones); diamonds: each arm's best; crosses: diverged."
    )
    return _figure(plots.parameters(trials, study, best), caption)


def _head(results: Results, study: Study) -> str:
    what = (
        f"{study.definition}: {study.model} on {study.data}, blocks of {study.block_size} tokens; "
        f"{study.searches} search{'es' * (study.searches > 1)} of up to {study.trials} trials "
        f"per arm, {_length(study)} per trial, "
        f"{study.seeds} paired seed{'s' * (study.seeds > 1)} per search{_named_seeds(study)}"
    )
    notes = "".join(f"<li>{_escape(n)}</li>" for n in results.notes)
    listed = f'<ul class="notes">{notes}</ul>' if notes else ""
    title = _escape(results.study)
    verdict = " ".join(f"<span>{_escape(line)}</span>" for line in verdict_lines(results))
    opening = f'<h1>{title}</h1><p class="what">{_escape(what)}</p>'
    answer = f'<p class="verdict">{verdict}</p>{_next_step(results)}'
    return f"<header>{opening}{answer}{listed}</header>"


def _length(study: Study) -> str:
    """Return the length of a trial in steps, and in epochs where it was given so."""
    steps = f"{study.max_steps} steps"
    if study.epochs is None:
        return steps
    return f"{steps} ({study.epochs} epoch{'s' * (study.epochs > 1)})"


def _named_seeds(study: Study) -> str:
    return f" ({', '.join(map(str, study.seed_list))})" if study.seed_list else ""


def _next_step(results: Results) -> str:
    step = results.next_step
    if step is None:
        return ""
    command = f"<br/>Next: <code>{_escape(step.command)}</code>" if step.command else ""
    return f'<p class="next">{_escape(step.says)}{command}</p>'


def _provenance(provenance: Mapping[str, Any]) -> str:
    rows = "".join(f"<dt>{_escape(k)}</dt><dd>{_escape(v)}</dd>" for k, v in _flat(provenance))
    return f"<dl>{rows}</dl>" if rows else ""


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield (
                f"{prefix}{key}",
                value if isinstance(value, str) else json.dumps(value, default=str),
            )
