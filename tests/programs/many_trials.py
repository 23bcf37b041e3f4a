"""A study of thousands of trials, grown from a finished one by copying its search trials.

A copy has the number, seeds and common values of its own place, and losses a little above those of
its source, so winners and verdict stay as they were. Trial files, ``optuna.db``, the runs in
``mlflow.db``, results and report agree, so every command takes the folder.

Usage: ``python tests/programs/many_trials.py STUDY_FOLDER --trials 10000``
"""

import argparse
import json
import math
import sqlite3
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from optuna.distributions import distribution_to_json

from hylorada import derive_seed
from hylorada.runtime.checksums import sealed
from studies.analysis.results import read_results, write_results
from studies.files.folder_files import STUDY, stored_study, write_json
from studies.reporting.html_report import write_html
from studies.spec.common_values import common_values, search_seeds
from studies.spec.study import Study
from studies.trials.integrity import seal_line
from studies.trials.messages import Report
from studies.trials.optuna_database import expected
from studies.trials.records import (
    Record,
    owner_of,
    place_name,
    place_of,
    read_id,
    read_records,
    records_of,
    trial_name,
)

_NUMBER_KINDS = {math.inf: "INF_POS", -math.inf: "INF_NEG"}
_OWN_TAGS = ("hylorada.trial", "mlflow.runName")  # hold a trial's name
_Place = tuple[str, int, int]  # arm, search and number of a trial
_WON = "hylorada.winner"  # a tag that no copy gets


def grow(folder: Path, trials: int) -> Study:
    """Add copies of its search trials to a finished study.

    Args:
        folder: Folder of the study; ``mlflow.db`` is in the storage folder, if there is one.
        trials: Number of search trials to have, rounded up to equal numbers of all arms.

    Returns:
        The grown study.
    """
    before = Study.from_dict(stored_study(folder / "study.json"))
    study = replace(before, trials=math.ceil(trials / (before.searches * len(before.arms))))
    study_id, records = read_id(folder), read_records(folder)
    sources = dict(_sources(study, records))
    copies = [_copy(study, source, *place) for place, source in sources.items()]
    for copy in copies:
        _write_trial(folder, study_id, copy)
    write_json(folder / "study.json", {**study.to_dict(), "id": study_id}, STUDY)
    _add_to_optuna(folder, study, copies)
    if (database := folder.parents[1] / "mlflow.db").exists():
        names = {c.name: s.name for c, s in zip(copies, sources.values(), strict=True)}
        _add_to_mlflow(database, names)
    _publish(folder, study)
    return study


def _sources(study: Study, records: Mapping[str, Record]) -> Iterator[tuple[_Place, Record]]:
    """Yield the place of each copy and the trial to copy there, whole blocks from whole blocks."""
    for search in range(study.searches):
        for arm in study.arms:
            there = records_of(records, "search", arm, search)
            for number in range(len(there), study.trials):
                yield (arm, search, number), there[number % len(there)]


def _copy(study: Study, source: Record, arm: str, search: int, number: int) -> Record:
    """Return a copy of a trial for another place."""
    common = common_values(study, search, number) if study.blocks else {}
    params = {**source.params, **common}
    adapter, training = study.configs(arm, params)
    seed, data_seed = search_seeds(study, arm, search, number)
    name = trial_name(arm, search, number)
    worse = 0.001 + derive_seed(name) % 1000 / 1e4
    return replace(
        source,
        name=name,
        number=number,
        params=params,
        adapter=adapter.to_dict(),
        training=training.to_dict(),
        seed=seed,
        data_seed=data_seed,
        block=number if study.blocks else None,
        restarts=0,
        reports=[_raised(r, worse, params) for r in source.reports],
    )


def _raised(report: Report, worse: float, params: Mapping[str, Any]) -> Report:
    """Return a report whose validation loss is larger by so much."""
    metrics = dict(report.metrics)
    if "eval/nll" in metrics:
        metrics["eval/nll"] += worse
        metrics["eval/ppl"] *= math.exp(worse)
    own = {k: v for k, v in params.items() if k in report.applied}
    return replace(report, metrics=metrics, applied={**report.applied, **own})


def _write_trial(folder: Path, study_id: str | None, record: Record) -> None:
    """Write a trial's files as a store does, without waiting for the disk."""
    trial = folder / "trials" / record.name
    trial.mkdir()
    owner = record.chain = owner_of(study_id, record.name)
    lines = []
    for report in record.reports:
        line, record.chain = seal_line(report.to_json(), record.chain)
        lines.append(f"{line}\n")
    if lines:
        (trial / "reports.jsonl").write_text("".join(lines))
    (trial / "trial.json").write_text(json.dumps(sealed(record.to_dict(), owner), indent=1))


def _add_to_optuna(folder: Path, study: Study, copies: Sequence[Record]) -> None:
    """Add trials to Optuna's database; its own way takes several milliseconds a trial."""
    rows: dict[str, list[tuple[Any, ...]]] = {}
    with closing(sqlite3.connect(folder / "optuna.db")) as database, database:
        stored = database.execute("SELECT study_name, study_id FROM studies")
        studies = {place_of(title): number for title, number in stored}
        (first,) = database.execute("SELECT 1 + max(trial_id) FROM trials").fetchone()
        for trial, record in enumerate(copies, first):
            of = studies[place_name(record.arm, record.search)]
            for table, row in _optuna_rows(folder, study, record, trial, of):
                rows.setdefault(table, []).append(row)
        for table, values in rows.items():
            marks = ", ".join("?" * len(values[0]))
            database.executemany(f"INSERT INTO {table} VALUES ({marks})", values)


def _optuna_rows(
    folder: Path, study: Study, record: Record, trial: int, of: int
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield each table with its columns, and a row of a trial."""
    frozen, time_s = expected(folder, study, record), "2026-01-01 00:00:00.000000"
    yield (
        "trials (trial_id, number, study_id, state, datetime_start, datetime_complete)",
        (trial, record.number, of, frozen.state.name, time_s, time_s),
    )
    for name, distribution in frozen.distributions.items():
        internal = distribution.to_internal_repr(frozen.params[name])
        yield (
            "trial_params (trial_id, param_name, param_value, distribution_json)",
            (trial, name, internal, distribution_to_json(distribution)),
        )
    for step, loss in frozen.intermediate_values.items():
        kind = "NAN" if loss != loss else _NUMBER_KINDS.get(loss, "FINITE")
        yield (
            "trial_intermediate_values "
            "(trial_id, step, intermediate_value, intermediate_value_type)",
            (trial, step, loss if kind == "FINITE" else None, kind),
        )
    if frozen.value is not None:
        yield (
            "trial_values (trial_id, objective, value, value_type)",
            (trial, 0, frozen.value, "FINITE"),
        )
    for key, value in frozen.user_attrs.items():
        yield (
            "trial_user_attributes (trial_id, key, value_json)",
            (trial, key, json.dumps(value)),
        )


def _add_to_mlflow(database: Path, sources: Mapping[str, str]) -> None:
    """Copy runs in MLflow's database.

    Args:
        database: The database.
        sources: Name of the trial whose run is copied, by name of the new trial.
    """
    with closing(sqlite3.connect(database)) as connection, connection:
        known = dict(
            connection.execute("SELECT value, run_uuid FROM tags WHERE key = 'hylorada.trial'")
        )
        connection.execute("CREATE TEMP TABLE copies (source TEXT, run TEXT, name TEXT)")
        connection.executemany(
            "INSERT INTO copies VALUES (?, ?, ?)",
            [(known[source], uuid.uuid4().hex, name) for name, source in sources.items()],
        )
        own = {"name": "copies.name", "artifact_uri": "replace(artifact_uri, run_uuid, run)"}
        _copy_rows(connection, "runs", own)
        for table in ("params", "metrics", "latest_metrics"):
            _copy_rows(connection, table, {})
        named = f"CASE WHEN key IN {_OWN_TAGS} THEN copies.name ELSE value END"
        _copy_rows(connection, "tags", {"value": named}, f"key != '{_WON}'")


def _copy_rows(
    connection: sqlite3.Connection, table: str, changed: Mapping[str, str], condition: str = "1"
) -> None:
    """Copy the rows of runs, with other values in some columns."""
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    values = {**{c: f"{table}.{c}" for c in columns}, "run_uuid": "copies.run", **changed}
    connection.execute(
        f"INSERT INTO {table} ({', '.join(columns)}) "
        f"SELECT {', '.join(values[c] for c in columns)} "
        f"FROM {table} JOIN copies ON {table}.run_uuid = copies.source WHERE {condition}"
    )


def _publish(folder: Path, study: Study) -> None:
    """Write results that count the copies, and the report."""
    records, path = read_records(folder), folder / "results.json"
    results = read_results(path)
    arms = []
    for arm in results.arms:
        states = Counter(r.state for r in records_of(records, "search", arm.arm))
        arms.append(replace(arm, searched=dict(sorted(states.items()))))
    results = replace(results, arms=tuple(arms))
    write_results(path, results)
    write_html(results, records, study, folder / "report.html")
    (folder / "finished").unlink(missing_ok=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trials", type=int, default=10_000, help="default: %(default)s")
    args = parser.parse_args()
    began = time.monotonic()
    grow(args.folder, args.trials)
    count, seconds = len(list((args.folder / "trials").iterdir())), time.monotonic() - began
    size = (args.folder / "report.html").stat().st_size
    print(f"{count} trials and runs in {seconds:.1f} s; report.html: {size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
