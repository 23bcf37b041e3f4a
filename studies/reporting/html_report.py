"""A study's results for readers: tables for the terminal, and one self-contained HTML file."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from studies.analysis.results import Results
from studies.files.folder_files import write_atomically
from studies.process.phases import phase
from studies.reporting.component_tables import changes_sheet, components_sheet
from studies.reporting.page import drawn_html, folded, page, table_html
from studies.reporting.page import escape as _escape
from studies.reporting.page import section as _framed
from studies.reporting.sections import Listing, Part, Picture, Section, Table, Words, sections
from studies.reporting.tables import arms_sheet, many_references
from studies.reporting.terminal import Drawing
from studies.spec.study import Study
from studies.trials.records import Record


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


@phase("report.html")
def write_html(
    results: Results, records: Mapping[str, Record], study: Study, path: Path
) -> list[Section]:
    """Write the whole report as one HTML file that needs nothing else.

    Args:
        results: Results of the study.
        records: All trials and runs, by name.
        study: The study.
        path: Path of the file, which is replaced atomically.

    Returns:
        The sections of the report, with their figures drawn.
    """
    shown = sections(results, records, study, path.parent)
    body = [
        _head(results, study),
        *map(_section, shown),
        _framed("Provenance", _provenance(results.provenance)),
    ]
    write_atomically(path, page(results.study, "\n".join(body)))
    return shown


def _section(section: Section) -> str:
    """Return a section as HTML; "" for one without parts."""
    return _framed(section.title, *map(_part, section.parts)) if section.parts else ""


def _part(part: Part) -> str:
    match part:
        case Words():
            return f'<h3>{_escape(part.title)}</h3><p class="says">{_escape(part.says)}</p>'
        case Listing():
            return _listing(part)
        case Picture():
            return drawn_html(part.svg, f"{part.caption} {part.hint}".strip())
        case Table():
            return _table(part)


def _listing(listing: Listing) -> str:
    lines = "".join(f"<li>{_escape(line)}</li>" for line in listing.lines)
    return f'<h3>{_escape(listing.title)}</h3><ul class="notes">{lines}</ul>' if lines else ""


def _table(table: Table) -> str:
    if table.heading:
        return folded(table.heading, table.sheet)
    title = f"<h3>{_escape(table.title)}</h3>" if table.titled and table.sheet.rows else ""
    return title + table_html(table.sheet)


def _head(results: Results, study: Study) -> str:
    what = (
        f"{study.definition}: {study.model} on {study.data}, blocks of {study.block_size} tokens; "
        f"{study.searches} search{'es' * (study.searches > 1)} of up to {study.trials} "
        f"trial{'s' * (study.trials > 1)} per arm, {_length(study)} per trial, "
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
