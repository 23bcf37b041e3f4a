"""A study's answer in Markdown, and its figures as files, for the page of a tracking service."""

import html
import re
from collections.abc import Sequence

from studies.analysis.comparisons import Comparison
from studies.analysis.results import Results
from studies.process.terminal_text import one_line
from studies.reporting.figures.drawing import on_paper
from studies.reporting.html_report import verdict_lines
from studies.reporting.sections import Picture, Section
from studies.reporting.tables import Sheet, arms_sheet, change_text
from studies.spec.study import Study

_BREAK = "  \n"  # of a line within a paragraph
_MOST_ROWS = 16  # of a table; the report has all


def describe(results: Results, study: Study) -> str:
    """Return the answer of a study in Markdown: the verdict, the arms, every change.

    Args:
        results: Results of the study.
        study: The study.
    """
    lines = verdict_lines(results)
    # MLflow's page folds all but the first lines: they say how each comparison came out.
    end = next((i for i, line in enumerate(lines) if i and line.endswith(".")), len(lines)) + 1
    first, *outcomes = map(_plain, lines[:end])
    what = (
        f"{study.definition}: {study.model} on {study.data}, blocks of {study.block_size} tokens, "
        f"{study.max_steps} steps per trial."
    )
    arms = arms_sheet(results)
    parts = [
        _BREAK.join([f"**{first}**", *outcomes]),
        _table(arms),
        _table(_changes(results)),
        _plain(arms.caption),
        _plain(" ".join([*lines[end:], what])),
    ]
    return "\n\n".join(part for part in parts if part)


def figure_files(report: Sequence[Section]) -> dict[str, bytes]:
    """Return the figures of a report as SVG, by their file names.

    Args:
        report: The sections of the report.
    """
    pictures = [p for s in report for p in s.parts if isinstance(p, Picture) and p.svg]
    files = {}
    for number, picture in enumerate(pictures, 1):
        name = re.sub(r"[^\w-]+", "-", picture.name)[:100].strip("-")
        files[f"{number:02d}-{name}.svg"] = on_paper(picture.svg)
    return files


def _changes(results: Results) -> Sheet:
    """Return one row per comparison: the change with its interval, the adjusted p, the outcome."""
    rows = tuple(map(_change, results.comparisons))
    return Sheet(("comparison", "change in test PPL [interval]", "Holm p", "outcome"), rows)


def _change(c: Comparison) -> tuple[str, ...]:
    return f"{c.arm} vs {c.reference}", change_text(c), f"{c.p_holm:.2g}", c.outcome


def _table(sheet: Sheet) -> str:
    """Return the first rows of a table; empty for one without rows."""
    if not sheet.rows:
        return ""
    used = sheet.used()
    lines = [[sheet.columns[i] for i in used], ["---"] * len(used)]
    lines += [[row[i] or "-" for i in used] for row in sheet.rows[:_MOST_ROWS]]
    text = "\n".join(f"| {' | '.join(map(_plain, cells))} |" for cells in lines)
    left = len(sheet.rows) - _MOST_ROWS
    return f"{text}\n\n{left} more in the report" if left > 0 else text


def _plain(text: str) -> str:
    """Return a text on one line in which Markdown and HTML find nothing to interpret."""
    escaped = re.sub(r"([\\`*_\[\]|#])", r"\\\1", one_line(text))
    return html.escape(escaped, quote=False)
