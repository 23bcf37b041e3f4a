"""A study's numbers as CSV: results at full precision, and sheets as they are printed."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from studies.analysis.comparisons import Comparison, Needed
from studies.analysis.components import Component
from studies.analysis.replication import Replicated
from studies.analysis.results import ArmResult, Results
from studies.reporting.tables import Sheet
from studies.spec.study import Study
from studies.statistics.change import Change
from studies.trials.records import Record, records_of
from studies.trials.winners import counting

_CHANGE = tuple(f.name for f in fields(Change))
_LISTS = (
    *("by_seed", "by_search", "hodges_lehmann", "own_best", "profile", "positions"),
    "needed",
)
_ARM = ("arm", "trial", "ppl", "ppl_median", "parameters", "trial_seconds")
_RECORD = (
    *("name", "arm", "stage", "search", "number", "block", "factor", "winner", "state", "reason"),
    *("restarts", "seed", "data_seed", "step"),
)


def sheet_csv(sheet: Sheet) -> bytes:
    """Return a sheet as CSV, cell for cell as it is printed, without columns that are empty."""
    used = sheet.used()
    return _csv([sheet.columns[i] for i in used], ([row[i] for i in used] for row in sheet.rows))


def data_files(results: Results, records: Mapping[str, Record], study: Study) -> dict[str, bytes]:
    """Return CSV files by name, with every number at full precision.

    Components and published claims have files in studies that measure them.

    Args:
        results: Results of the study.
        records: All trials and runs, by name.
        study: The study.
    """
    rows = {
        "arms.csv": [_arm_row(results, arm) for arm in results.arms],
        "comparisons.csv": [_comparison_row(c) for c in results.comparisons],
        "changes.csv": [row for c in results.comparisons for row in _change_rows(c)],
        "trials.csv": _trial_rows(records, study),
    }
    if results.components:
        rows["components.csv"] = [_component_row(c) for c in results.components]
    if results.replication:
        rows["replication.csv"] = [row for c in results.replication for row in _claim_rows(c)]
    return {name: _plain(of_file) for name, of_file in rows.items()}


def _arm_row(results: Results, arm: ArmResult) -> dict[str, Any]:
    row = {name: getattr(arm, name) for name in _ARM}
    return {**row, "base_ppl": results.base_ppl, "runs": len(arm.ppl_by_seed)}


def _comparison_row(c: Comparison) -> dict[str, Any]:
    """Return the single values of a comparison; `_change_rows` has its lists."""
    values = {f.name: getattr(c, f.name) for f in fields(c) if f.name not in _LISTS}
    needed = {f"needed.{f.name}": getattr(c.needed, f.name) for f in fields(Needed) if c.needed}
    return {**values, **needed}


def _change_rows(c: Comparison) -> Iterable[dict[str, Any]]:
    """Yield every change of a comparison: of the whole, of each search, seed, rate and position."""
    pair = {"arm": c.arm, "reference": c.reference}
    whole = {name: getattr(c, name) for name in _CHANGE}
    yield {**pair, "of": "all", "at": "", **whole}
    for of, changes in (("search", c.by_search), ("seed", c.by_seed)):
        for at, change in enumerate(changes):
            yield {**pair, "of": of, "at": at, "change": change}
    named = {"hodges_lehmann": c.hodges_lehmann, "own_best": c.own_best}
    for name, centre in named.items():
        if centre is not None:
            yield {**pair, "of": name, "at": "", **_change(centre)}
    for rate in c.profile:
        yield {**pair, "of": "learning_rate", "at": rate.factor, **_change(rate.change)}
    for name, at_position in c.positions.items():
        yield {**pair, "of": "position", "at": name, **_change(at_position)}


def _change(c: Change) -> dict[str, Any]:
    return {name: getattr(c, name) for name in _CHANGE}


def _component_row(c: Component) -> dict[str, Any]:
    """Return the figures of a component and the answer to each criterion."""
    row = {"arm": c.arm, "reference": c.reference, **_change(c.change), "gains_ppl": c.gains_ppl}
    for name in _CHANGE:
        row[f"lim_ppl.{name}"] = getattr(c.lim_ppl, name, None)
    names = ("gains_lim_ppl", "parameters", "per_percent", "cheap", "stable", "status")
    row |= {name: getattr(c, name) for name in names}
    for side in ("stability", "reference_stability"):
        for name in ("runs", "spikes", "diverged"):
            row[f"{side}.{name}"] = getattr(getattr(c, side), name)
    return row


def _claim_rows(claim: Replicated) -> Iterable[dict[str, Any]]:
    """Yield the change that a claim is about, clean and as published, and each fault's effect."""
    pair = {"claim": claim.claim, "arm": claim.arm, "reference": claim.reference}
    published = {f"published.{n}": figure for n, figure in enumerate(claim.published, 1)}
    yield {**pair, **published, "of": "clean", "fault": "", **_change(claim.clean)}
    yield {**pair, **published, "of": "as published", "fault": "", **_change(claim.protocol)}
    for effect in claim.faults:
        shares = {f"share.{n}": share for n, share in enumerate(effect.shares, 1)}
        for of, change in (("on alone", effect.alone), ("off alone", effect.off)):
            if change is not None:
                row = {**pair, **published, "of": of, "fault": effect.fault, **_change(change)}
                yield row | shares if of == "on alone" else row


def _trial_rows(records: Mapping[str, Record], study: Study) -> list[dict[str, Any]]:
    """Return one row per trial and run, with its parameters and its last metrics."""
    stages = ("search", "select", "confirm", "explain", "added")
    runs = [r for s in stages for arm in study.arms for r in records_of(records, s, arm)]
    counted = {r.name for s in stages[:3] for r in counting(study, records, s)}
    rows = []
    for r in runs:
        last = r.reports[-1] if r.reports else None
        rows.append(
            {
                **{name: getattr(r, name) for name in _RECORD},
                "counts": r.name in counted,
                "seconds": last.seconds if last else None,
                "parameters": last.parameters if last else None,
                **{f"param.{name}": value for name, value in r.params.items()},
                **(last.metrics if last else {}),
            }
        )
    return rows


def _plain(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return rows as CSV with a column for every key that occurs, in the order of occurrence."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return _csv(columns, ([_cell(row.get(name)) for name in columns] for row in rows))


def _cell(value: Any) -> str:
    """Return a value as text from which Python reads the same number again."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def _csv(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> bytes:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return file.getvalue().encode("utf-8", "backslashreplace")
