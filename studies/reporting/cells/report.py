"""The report on several cells: a grid, or studies that were run apart."""

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from studies.analysis.cells.across import Across
from studies.analysis.cells.reading import FinishedCell
from studies.files.folder_files import write_atomically
from studies.reporting.cells.plots import boundary_rows, forest
from studies.reporting.cells.sheets import effects_sheet, levels_sheet
from studies.reporting.figures.plots import arm_colors
from studies.reporting.page import escape, figure_html, page, section, table_html
from studies.reporting.printed import print_json
from studies.reporting.terminal import Drawing, Terminal


def print_across(across: Across, as_json: bool) -> None:
    """Print the tables, findings and notes on several cells, or all of it as JSON."""
    if as_json:
        print_json(across.to_dict(), indent=1)
        return
    terminal = Terminal()
    for sheet in (effects_sheet(across), levels_sheet(across)):
        if sheet.rows:
            terminal.print(Drawing(sheet))
            print()
    for line in (*across.verdict, *(f"note: {note}" for note in across.notes)):
        print(line)


def write_across(across: Across, cells: Sequence[FinishedCell], path: Path) -> None:
    """Write the report as one HTML file that links to the reports of the cells.

    Args:
        across: What to report.
        cells: The same cells.
        path: Path of the file, which is replaced atomically.
    """
    colors = arm_colors(dict.fromkeys(arm for c in cells for arm in c.study.arms))
    drawn = (
        "Squares: change in test PPL in each cell with its interval; diamond: pooled over cells; "
        "dashed: where another cell is expected."
    )
    body = [
        _head(across),
        section(
            "Result",
            figure_html(forest(across, colors), drawn),
            table_html(effects_sheet(across)),
        ),
        section("Cells", table_html(levels_sheet(across)), _links(cells, path.parent)),
        *_boundaries(across, cells, colors),
    ]
    write_atomically(path, page(across.name, "\n".join(body)))


def _head(across: Across) -> str:
    lines = " ".join(f"<span>{escape(line)}</span>" for line in across.verdict)
    notes = "".join(f"<li>{escape(note)}</li>" for note in across.notes)
    listed = f'<ul class="notes">{notes}</ul>' if notes else ""
    opening = f'<h1>{escape(across.name)}</h1><p class="what">{len(across.cells)} cells</p>'
    return f'<header>{opening}<p class="verdict">{lines}</p>{listed}</header>'


def _links(cells: Sequence[FinishedCell], folder: Path) -> str:
    """Return a list of the cells' own reports, whose addresses are relative to a folder."""
    items = []
    for cell in cells:
        address = os.path.relpath(cell.folder / "report.html", folder)
        link = f'<a href="{escape(quote(address, errors="replace"))}">{escape(cell.label)}</a>'
        items.append(f"<li>{link}</li>")
    return f"<p>Reports of the cells:</p><ul>{''.join(items)}</ul>"


def _boundaries(across: Across, cells: Sequence[FinishedCell], colors: dict[str, str]) -> list[str]:
    """Return a section for each arm that learns boundaries in several cells."""
    caption = (
        "Boundaries at the end of every confirm run (one line of marks each) as shares of the "
        "block. Consistency: 1 - mean distance between runs of different cells / mean distance "
        "between boundaries drawn at random. "
    )
    sections = []
    for b in across.boundaries:
        says = " ".join(line for line in across.verdict if f"boundaries of {b.arm} in" in line)
        figure = figure_html(boundary_rows(cells, b.arm, colors[b.arm]), caption + says)
        sections.append(section(f"Boundaries of {b.arm} over cells", figure))
    return sections
