"""The figures, tables, numbers, verdict and methods of a study as a folder for a paper."""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from studies.analysis.results import Results, read_results
from studies.files.folder_files import stored_study
from studies.files.whole_folder import refuse_foreign, write_folder
from studies.reporting.figures.drawing import pdf_file, svg_file
from studies.reporting.paper.data_files import data_files, sheet_csv
from studies.reporting.paper.latex import latex_figure, latex_table
from studies.reporting.paper.methods import write_methods
from studies.reporting.paper.outcome import outcome_markdown
from studies.reporting.sections import Picture, Table, sections
from studies.spec.study import Study
from studies.trials.loading import load_records
from studies.trials.records import Record

Item = TypeVar("Item", Picture, Table)
_LONGEST = 100  # characters of a file's name
_FLUSHED = 12  # figures, after which all are set: LaTeX holds few that wait for a page


def write_kit(folder: Path, output: Path) -> list[str]:
    """Write the figures, tables, numbers, verdict and methods of a finished study.

    Equal studies give equal bytes. An earlier kit of the same study is replaced as a whole.

    Args:
        folder: Folder of the study.
        output: Folder to write.

    Returns:
        The paths inside the output of the files that were written.

    Raises:
        InputError: The study is damaged, or the output holds files of the user's.
    """
    study = Study.from_dict(stored_study(folder / "study.json"))
    refuse_foreign(output, study.name)
    results, records = read_results(folder / "results.json"), load_records(folder)
    files = kit_files(study, results, records, folder)
    write_folder(output, files, study.name)
    return list(files)


def kit_files(
    study: Study, results: Results, records: Mapping[str, Record], folder: Path
) -> dict[str, bytes]:
    """Return the files of a kit, by path inside its folder.

    Args:
        study: The study.
        results: Its results.
        records: All trials and runs, by name.
        folder: Folder of the study.
    """
    parts = [p for s in sections(results, records, study, folder) for p in s.parts]
    pictures = _named(p for p in parts if isinstance(p, Picture) and p.figure is not None)
    tables = _named(p for p in parts if isinstance(p, Table) and p.sheet.rows)
    label = _slug(study.name)
    methods = write_methods(study, results, records)
    return {
        **_figure_files(pictures, label),
        **_table_files(tables, label),
        **{f"data/{name}": rows for name, rows in data_files(results, records, study).items()},
        "verdict.md": _bytes(outcome_markdown(results)),
        **{f"designs/{file}": _bytes(source) for file, source in study.designs.items()},
        "methods.md": _bytes(methods.markdown),
        "methods.tex": _bytes(methods.latex),
        "references.bib": _bytes(methods.bibtex),
    }


def _named(items: Iterable[Item]) -> dict[str, Item]:
    """Return items by names that suit files and LaTeX, and that differ whatever the case."""
    by_name: dict[str, Item] = {}
    for item in items:
        stem = name = _slug(item.name)
        count = 1
        while name in by_name:
            count += 1
            name = f"{stem}-{count}"
        by_name[name] = item
    return by_name


def _slug(name: str) -> str:
    """Return a name in lower-case ASCII letters, digits and single hyphens."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub("[^a-z0-9]+", "-", plain)[:_LONGEST].strip("-") or "unnamed"


def _figure_files(pictures: Mapping[str, Picture], label: str) -> dict[str, bytes]:
    """Return each figure as SVG and PDF, and one LaTeX file that includes all of them."""
    files, included = {}, []
    for name, picture in pictures.items():
        if picture.figure is None:
            continue
        files[f"figures/{name}.svg"] = svg_file(picture.figure)
        files[f"figures/{name}.pdf"] = pdf_file(picture.figure)
        place = f"figures/{name}.pdf"
        included.append(latex_figure(place, picture.caption, label=f"fig:{label}-{name}"))
    groups = [included[i : i + _FLUSHED] for i in range(0, len(included), _FLUSHED)]
    source = "\\clearpage\n".join("\n".join(group) for group in groups)
    return {**files, "figures.tex": _bytes(source)}


def _table_files(tables: Mapping[str, Table], label: str) -> dict[str, bytes]:
    """Return each table as CSV and LaTeX."""
    files = {}
    for name, table in tables.items():
        latex = latex_table(table.sheet, title=table.title, label=f"tab:{label}-{name}")
        files[f"tables/{name}.csv"] = sheet_csv(table.sheet)
        files[f"tables/{name}.tex"] = _bytes(latex)
    return files


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
