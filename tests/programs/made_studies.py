"""Whole study folders without training: real stores, files and databases with invented losses."""

import io
import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.numpy import save_file

from hylorada.runtime.checksums import digest
from studies.analysis.results import gather, write_results
from studies.engine.packs import BLOCK_NLL
from studies.files.folder_files import write_json
from studies.reporting.html_report import write_html
from studies.search.campaign import find_winners
from studies.spec.study import Study
from studies.trials.messages import CHECKPOINT, OWNER, Report
from studies.trials.records import OPEN, Record
from studies.trials.reruns import rerun_record
from studies.trials.store import Store

_RATE = {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
_BUCKETS = {
    "num_buckets": {"choice": [4, 8]},
    "target_modules": {"choice": [["q_proj"], ["q_proj", "v_proj"]]},
}
VALUES: dict[str, Any] = {
    "definition": "learnable_bucketing",
    "name": "made",
    "block_size": 32,
    "trials": 6,
    "seeds": 2,
    "eval_every": 2,
    "grace_steps": 2,
    "defaults": {"max_steps": 8},
    "arms": {
        "fixed": {"space": {**_RATE, **_BUCKETS}},
        "baseline": {"config": {"landmarks": False}, "space": _RATE},
    },
    "comparisons": [["fixed", "baseline"]],
}
_BLOCKS = 12
Until = Literal["search", "confirm", "end"]


def make(folder: Path, until: Until, **changes: Any) -> Store:
    """Make a study folder, finished or interrupted in a stage, and return its store, still open."""
    finished = until != "search"
    store = Store(folder, Study.from_dict(VALUES | changes))
    (folder / OPEN).touch()
    store.bind_inputs(
        {"model_fingerprint": "31dca1d1a8d06193", "data_fingerprint": "e2188a9e41b52a53"}
    )
    for arm in store.study.arms:
        for number in range(store.study.trials if finished else 4):
            record = store.propose(arm)
            last = _search_steps(number, finished)
            for step in range(2, last + 1, 2):
                store.report(
                    record.name, report(record, step, pruned=number % 3 == 1 and step == last)
                )
            if finished or number < 3:
                store.finish(record.name, "pruned" if number % 3 == 1 else "complete")
            else:
                save_checkpoint(store, record)
    if finished:
        _confirm(store, until)
    return store


def _search_steps(number: int, finished: bool) -> int:
    """Return the steps reported by a trial; the last trial of an interrupted study still runs."""
    return 4 if number % 3 == 1 or (number == 3 and not finished) else 8


def report(record: Record, step: int, **fields: Any) -> Report:
    """Return a report whose losses follow from the trial's name."""
    loss = 3 + int(digest(record.name, "loss"), 16) % 1000 / 1e4 - step / 100
    metrics = {"train/nll": loss, "eval/nll": loss, "eval/ppl": float(np.exp(loss))} | fields.pop(
        "metrics", {}
    )
    fields |= {
        "seconds": step / 7,
        "parameters": 42,
        "applied": {"max_positions": 32},
        "time": 10**12 + step,
    }
    return Report(step=step, metrics=metrics, done=step == 8, **fields)


def _confirm(store: Store, until: Until) -> None:
    for winner in find_winners(store).winners.values():
        for seed in range(store.study.seeds):
            record = rerun_record(store.study, winner, "confirm", seed)
            store.add(record)
            for step in (2, 4, 6):
                store.report(record.name, report(record, step))
            if until == "confirm" and seed == 1:
                save_checkpoint(store, record)
                continue
            store.report(record.name, _last_report(store, record))
            store.finish(record.name, "complete")
            (store.trial_folder(record.name) / CHECKPOINT).write_bytes(record.name.encode() * 40)
    if until == "confirm":
        return
    base = {"ppl": 31.5, "tokens": _BLOCKS * 31.0}
    write_json(store.folder / "base.json", base, "base")
    results = gather(
        store, base, {"study_fingerprint": store.study.fingerprint(), "train_blocks": 9}, []
    )
    write_results(store.folder / "results.json", results)
    write_html(results, store.records, store.study, store.folder / "report.html")
    (store.folder / OPEN).unlink()


def save_checkpoint(store: Store, record: Record) -> None:
    """Save a checkpoint of a running trial after its last report; it holds no seat."""
    extra = json.dumps({**record.reports[-1].to_dict(), OWNER: record.digest()})
    save_file({"seat": np.zeros(4)}, store.trial_folder(record.name) / CHECKPOINT, {"extra": extra})


def _last_report(store: Store, record: Record) -> Report:
    """Return the last report of a run, and write the test split's losses to a file."""
    draws = np.random.default_rng(int(digest(record.name), 16))
    losses = (90 if record.arm == "fixed" else 93) + draws.normal(0, 0.5, (_BLOCKS, 1))
    file = io.BytesIO()
    losses = np.repeat(losses / 10, 10, axis=1)  # by tenths of the positions
    np.save(file, losses)
    path = store.trial_folder(record.name) / BLOCK_NLL
    path.write_bytes(file.getvalue())
    nll = float(losses.sum() / (_BLOCKS * 31))
    metrics = {"test/nll": nll, "test/ppl": float(np.exp(nll))}
    return report(
        record,
        8,
        metrics=metrics,
        block_nll=str(path),
        digests={BLOCK_NLL: digest(file.getvalue())},
    )
