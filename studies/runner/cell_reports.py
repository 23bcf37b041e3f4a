"""The report on finished cells, of a grid or run apart; it needs neither torch nor Ray."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from hylorada import InputError
from studies.analysis.cells.across import Across, across
from studies.analysis.cells.reading import FinishedCell, read_cell
from studies.process.listing import first_names
from studies.process.options import Options
from studies.reporting.cells.report import write_across
from studies.spec.changes import differing
from studies.spec.grid import cells
from studies.spec.study import Study
from studies.trials.records import read_id

_APART = (
    *("block_size", "data", "definition", "document_separator", "model", "name"),
    "text_column",
)
_MOST_NAMED = 6  # settings, in a note


def report_grid(study: Study, options: Options, *, write: bool = False) -> Across:
    """Compare the cells of a grid that has been run.

    Args:
        study: the grid.
        options: where it has run.
        write: whether to write ``report.html`` too.

    Raises:
        InputError: some cells have not finished.
    """
    finished = finished_cells(study, options)
    result = across(study.name, finished, study.comparisons, ())
    if write:
        write_across(result, finished, options.study_folder(study.name) / "report.html")
    return result


def finished_cells(study: Study, options: Options) -> list[FinishedCell]:
    """Read the cells of a grid.

    Raises:
        InputError: some cells have not finished; all of them are named.
    """
    places = [(options.study_folder(c.study.name), c.label) for c in cells(study)]
    finished, problems = _read_all(places)
    if problems:
        raise InputError(problems)
    return finished


def _read_all(places: Sequence[tuple[Path, str]]) -> tuple[list[FinishedCell], list[str]]:
    """Return the finished studies among these folders, and a problem for each of the others."""
    finished, problems = [], []
    for folder, label in places:
        try:
            finished.append(read_cell(folder, label))
        except InputError as error:
            problems += error.problems
    return finished, problems


def compare_studies(folders: Sequence[Path]) -> tuple[Across, list[FinishedCell]]:
    """Compare the arms of studies that were run apart.

    Args:
        folders: folders of the studies.

    Returns:
        The comparison, and the studies that it rests on.

    Raises:
        InputError: the studies can't be compared: fewer than two, one given twice or without
            results, no comparison that all have, or an arm that is another method in one of them.
    """
    _refuse_few(folders)
    shown = [f.name if [g.name for g in folders].count(f.name) == 1 else str(f) for f in folders]
    finished, problems = _read_all(list(zip(folders, shown, strict=True)))
    if problems:
        raise InputError(problems)
    pairs, notes = _common_pairs(finished)
    if problems := _other_methods(finished, dict.fromkeys(arm for pair in pairs for arm in pair)):
        raise InputError(problems)
    name = f"comparison of {len(finished)} studies"
    return across(name, finished, pairs, [*notes, *_other_settings(finished)]), finished


def _refuse_few(folders: Sequence[Path]) -> None:
    """Raise unless there are two or more studies, all different.

    Raises:
        InputError: it names what is wrong.
    """
    if len(folders) < 2:
        given = ", ".join(repr(f.name) for f in folders) or "none"
        raise InputError(f"give two or more studies to compare, got {given}")
    ids = [read_id(f) or str(f.resolve()) for f in folders]
    repeated = {str(f) for f, i in zip(folders, ids, strict=True) if ids.count(i) > 1}
    if repeated:
        raise InputError(f"a study must not be given twice: {', '.join(sorted(repeated))}")


def _common_pairs(finished: Sequence[FinishedCell]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the comparisons that all studies have, and a note on each that some lack.

    Raises:
        InputError: there is no such comparison.
    """
    by_study = [[(c.arm, c.reference) for c in cell.results.comparisons] for cell in finished]
    every = dict.fromkeys(pair for pairs in by_study for pair in pairs)
    common = [pair for pair in every if all(pair in pairs for pairs in by_study)]
    if not common:
        lines = [
            f"study {cell.label!r} compares {_listed(pairs)}"
            for cell, pairs in zip(finished, by_study, strict=True)
        ]
        raise InputError(["the studies have no comparison of arms in common", *lines])
    left_out = [pair for pair in every if pair not in common]
    notes = [f"left out, because some studies lack it: {_listed(left_out)}"] if left_out else []
    return common, notes


def _listed(pairs: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{arm} vs {reference}" for arm, reference in pairs) or "nothing"


def _other_methods(finished: Sequence[FinishedCell], arms: Iterable[str]) -> list[str]:
    """Return a problem for each arm whose fixed fields differ between studies."""
    first, problems = finished[0], []
    for cell in finished[1:]:
        ours, theirs = first.study.designs, cell.study.designs
        if files := [f for f in ours.keys() & theirs if ours[f] != theirs[f]]:
            problems.append(
                f"{cell.label!r} has other code in {', '.join(sorted(files))} than {first.label!r}"
            )
        for arm in arms:
            fixed, other = (dict(c.study.arms[arm].config) for c in (first, cell))
            keys = sorted(k for k in fixed.keys() | other if fixed.get(k) != other.get(k))
            if keys:
                problems.append(
                    f"arm {arm!r} is another method in {cell.label!r} than in {first.label!r}: "
                    f"they differ in {', '.join(keys)}"
                )
    return problems


def _other_settings(finished: Sequence[FinishedCell]) -> list[str]:
    """Return a note on each study whose settings differ, beyond text, base and block size."""
    first, notes = finished[0], []
    for cell in finished[1:]:
        fields = [n for n in differing(first.study.to_dict(), cell.study) if n not in _APART]
        if fields:
            listed = first_names(fields, _MOST_NAMED)
            notes.append(f"{cell.label} differs from {first.label} in {listed}")
    return notes
