"""A timed search on our host: the search stage of ``hylorada run``. Runs as a script."""

import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from studies.bench.search.driver import serve
from studies.process.options import Options
from studies.search.devices import Devices
from studies.spec.study import Study


def search(task: dict[str, Any], workspace: Path) -> list[float]:
    """Return the validation loss of every complete trial; all is recorded as in any study."""
    study = Study.from_dict(_study(task))
    options = Options(storage=workspace / "storage")
    with closing(Devices(study, options, workspace)) as devices:
        devices.start()
        return _search(task, study, options, devices)


def _search(task: dict[str, Any], study: Study, options: Options, devices: Devices) -> list[float]:
    import numpy as np

    from hylorada import Blocks
    from studies.progress.panel import Panel
    from studies.search.campaign import Search
    from studies.search.ledger import Ledger
    from studies.tracking.services import open_tracker
    from studies.trials.store import Store

    with np.load(task["blocks"]) as stored:
        ids = {split: stored[split] for split in ("train", "validation", "test")}
    sizes = {split: np.full(len(i), i.shape[1] - 1) for split, i in ids.items()}
    blocks = {
        split: Blocks(i, sizes[split], dropped_tokens=0, fingerprint=split)
        for split, i in ids.items()
    }
    store = Store(options.study_folder(study.name), study)
    # From here on a host loads the base, while MLflow creates its tables.
    cluster = devices.cluster(blocks)
    key, say = store.id, partial(print, file=sys.stderr)
    tracker = open_tracker(options.uri, study.name, storage=options.storage, study_id=key, say=say)
    tracker.describe({}, {})
    with Panel(store, Console(quiet=True)) as panel:
        cluster.run(Search(Ledger(store, tracker, panel)))
        tracker.finish(list(store.records.values()), {}, {})
    store.close()
    return [r.nll for r in store.records.values() if r.state == "complete" and r.nll is not None]


def _study(task: dict[str, Any]) -> dict[str, Any]:
    """Return a study of one arm of LoRA alone without early stopping, evaluated once at the end."""
    setting, steps = task["setting"], task["steps"]
    adapter = {"r": setting["r"], "lora_alpha": 16.0, "position_bias": False, "landmarks": False}
    return {
        "definition": "bench",
        "name": "bench",
        "model": setting["base"],
        "block_size": setting["block_size"],
        "dtype": setting["dtype"],
        "gradient_checkpointing": setting["gradient_checkpointing"],
        "trials": task["trials"],
        "eval_every": steps,
        "grace_steps": 0,
        "defaults": {**adapter, "max_steps": steps, "batch_size": setting["batch_size"]},
        "arms": {"lora": {"space": {"learning_rate": {"low": 5e-4, "high": 2e-2, "log": True}}}},
    }


if __name__ == "__main__":
    serve(search)
