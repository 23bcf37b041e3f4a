"""What W&B has written to the files of its offline runs."""

import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_HEADER, _BLOCK, _PREFIX = 7, 32768, 7  # bytes of the file's header, a block, and a chunk's header


@dataclass
class OfflineRun:
    """The content of one run's folder.

    Attributes:
        id: W&B's id.
        name: Name in W&B's page.
        group: Group of the run.
        kind: Its job type.
        tags: Its tags.
        notes: Its description.
        config: Its configuration.
        summary: Its summary, without the last values of the history.
        history: The logged values of each step.
        exit_code: How it was ended; None if it was not.
        files: Names of the files in its artifacts.
    """

    id: str = ""
    name: str = ""
    group: str = ""
    kind: str = ""
    tags: tuple[str, ...] = ()
    notes: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    history: dict[int, dict[str, Any]] = field(default_factory=dict)
    exit_code: int | None = None
    files: list[str] = field(default_factory=list)

    def series(self, metric: str) -> list[tuple[int, float]]:
        """Return the steps and values of a metric."""
        return [(step, row[metric]) for step, row in self.history.items() if metric in row]


def offline_runs(storage: Path) -> list[OfflineRun]:
    """Return all runs in W&B's folder of a storage; a run that was written twice appears twice."""
    return [_read(path) for path in sorted(storage.glob("wandb/offline-run-*/*.wandb"))]


def _read(path: Path) -> OfflineRun:
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")

    run = OfflineRun()
    for content in _records(path.read_bytes()):
        record = messages.Record()
        record.ParseFromString(content)
        _add(run, record)
    return run


def _records(content: bytes) -> Iterator[bytes]:
    """Yield the records of a file in LevelDB's log format."""
    place, whole = _HEADER, b""
    while place + _PREFIX <= len(content):
        if (left := _BLOCK - place % _BLOCK) < _PREFIX:
            place += left
            continue
        length = int.from_bytes(content[place + 4 : place + 6], "little")
        kind = content[place + 6]
        whole += content[place + _PREFIX : place + _PREFIX + length]
        place += _PREFIX + length
        if kind in (1, 4):  # the only or the last chunk of a record
            yield whole
            whole = b""


def _add(run: OfflineRun, record: Any) -> None:
    kind = record.WhichOneof("record_type")
    if kind == "run":
        given = record.run
        run.id, run.name, run.group = given.run_id, given.display_name, given.run_group
        run.kind, run.tags, run.notes = given.job_type, tuple(given.tags), given.notes
        _update(run.config, given.config.update)
    elif kind == "config":
        _update(run.config, record.config.update)
    elif kind == "summary":
        _update(run.summary, record.summary.update)
    elif kind == "history":
        row = run.history.setdefault(record.history.step.num, {})
        _update(row, record.history.item)
    elif kind == "exit":
        run.exit_code = record.exit.exit_code
    elif kind == "artifact":
        run.files += [entry.path for entry in record.artifact.manifest.contents]
    elif kind == "request" and record.request.HasField("log_artifact"):
        artifact = record.request.log_artifact.artifact
        run.files += [entry.path for entry in artifact.manifest.contents]


def _update(values: dict[str, Any], items: Any) -> None:
    for item in items:
        values[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
