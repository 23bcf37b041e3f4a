"""The folder of a finished study without training, for tests of commands that only read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from studies.analysis.results import gather, write_results
from studies.reporting.html_report import write_html
from studies.spec.study import Study
from studies.trials.messages import Report
from studies.trials.records import Record
from studies.trials.store import Store

WIDE = "été 学習"
_ARM = {"space": {"learning_rate": {"low": 1e-3, "high": 1e-1, "log": True}}}


def write_finished(
    storage: Path,
    *,
    name: str,
    hostile: str = "",
    gap: float = 0.01,
    provenance: Mapping[str, str] | None = None,
    **changes: Any,
) -> Path:
    """Write a study of two arms, each with a complete trial, a failed one and two paired seeds.

    Args:
        storage: storage folder.
        name: name of the study.
        hostile: text put into its subject, notes, provenance and the reason of its failed trials.
        gap: difference in loss per token between the arms.
        provenance: fingerprints and more, beside the command.
        changes: further fields of the study.

    Returns:
        The study's folder.
    """
    pace = {"eval_every": 20, "grace_steps": 20, "block_size": 64, "trials": 2, "seeds": 2}
    values = {
        "definition": "own",
        "name": name,
        "subject": f"Width{hostile}",
        **pace,
        "defaults": {"max_steps": 60},
    }
    arms = {"arms": {"fixed": _ARM, WIDE: _ARM}, "comparisons": [[WIDE, "fixed"]]}
    study = Study.from_dict({**values, **arms, **changes})
    return finish(storage, study, hostile=hostile, gap=gap, provenance=provenance)


def finish(
    storage: Path,
    study: Study,
    *,
    hostile: str = "",
    gap: float = 0.01,
    provenance: Mapping[str, str] | None = None,
) -> Path:
    """Write the folder of a study as if it had run to its end; see :func:`write_finished`."""
    store = Store(storage / "studies" / study.name, study)
    try:
        for place, arm in enumerate(study.arms):
            _search(store, arm, hostile)
            _confirm(store, arm, 3.0 + gap * place)
        known = {"command": f"run{hostile}", **(provenance or {})}
        results = gather(store, {"ppl": 53_831.0}, known, [f"arm left out{hostile}"])
        write_results(store.folder / "results.json", results)
        write_html(results, store.records, study, store.folder / "report.html")
    finally:
        store.close()
    return store.folder


def _report(loss: float, **fields: Any) -> Report:
    metrics = {
        "eval/nll": loss,
        "eval/ppl": float(np.exp(loss)),
        "test/nll": loss,
        "test/ppl": float(np.exp(loss)),
    }
    return Report(step=60, metrics=metrics, seconds=1.5, parameters=12_576, done=True, **fields)


def _search(store: Store, arm: str, hostile: str) -> None:
    best, failed = store.propose(arm), store.propose(arm)
    store.report(best.name, _report(3.0))
    store.finish(best.name, "complete")
    store.finish(failed.name, "failed", f"ValueError: odd{hostile}")


def _confirm(store: Store, arm: str, loss: float) -> None:
    winner = store.best(arm)
    assert winner is not None
    fields: dict[str, Any] = {
        "params": winner.params,
        "adapter": winner.adapter,
        "training": winner.training,
        "winner": winner.name,
    }
    for number in range(2):
        record = Record(
            f"{winner.name}-confirm-{number:02d}",
            arm,
            "confirm",
            number,
            seed=number,
            data_seed=number,
            **fields,
        )
        store.add(record)
        losses = loss + np.random.default_rng(number).normal(0, 0.1, 40)  # of a token
        np.save(
            store.trial_folder(record.name) / "test_block_nll.npy",
            losses * (store.study.block_size - 1),
        )
        store.report(record.name, _report(float(losses.mean()), block_nll="test_block_nll.npy"))
        store.finish(record.name, "complete")
