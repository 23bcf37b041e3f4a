"""A timed search as Ray Tune's users write it: each trial is a process that loads its own base.

This module runs as a script. It imports no torch itself, so that the driver starts as fast as it
can; its argument names the file of the task.
"""

from pathlib import Path
from typing import Any

from studies.bench.search.driver import serve


def train(config: dict[str, Any]) -> dict[str, float]:
    """Run one trial: import, load, train, evaluate once."""
    import numpy as np
    import torch

    from studies.bench.loops import PlainLoop, bench_base
    from studies.bench.options import Setting

    torch.set_num_threads(config["threads"])
    setting = Setting(**config["setting"])
    with np.load(config["blocks"]) as stored:
        train_ids, validation_ids = stored["train"], stored["validation"]
    loop = PlainLoop(bench_base(setting), setting, train_ids, learning_rate=config["learning_rate"])
    for _ in range(config["steps"]):
        loop.step()
    return {"nll": loop.evaluate(validation_ids)}


def search(task: dict[str, Any], workspace: Path) -> list[float]:
    """Return the validation loss of every complete trial."""
    from studies.engine.ray_start import start_ray, stop_ray

    start_ray(None, workspace)
    try:
        return _tune(task, workspace)
    finally:
        stop_ray()


def _tune(task: dict[str, Any], workspace: Path) -> list[float]:
    import ray
    from ray import tune

    from hylorada.runtime.cores import available_cores
    from studies.engine.cluster import share

    cpus, gpus = ray.cluster_resources()["CPU"], int(task["setting"]["device"] == "cuda")
    resources = {"cpu": share(cpus, task["processes"]), "gpu": share(gpus, task["processes"])}
    fixed = {k: task[k] for k in ("setting", "blocks", "steps")}
    threads = max(1, available_cores() // task["processes"])
    tuner = tune.Tuner(
        tune.with_resources(train, resources),
        param_space={**fixed, "threads": threads, "learning_rate": tune.loguniform(5e-4, 2e-2)},
        tune_config=tune.TuneConfig(num_samples=task["trials"], reuse_actors=False),
        run_config=tune.RunConfig(storage_path=str(workspace / "t"), verbose=0),
    )
    results = tuner.fit()
    ended = [results[i] for i in range(len(results)) if results[i].error is None]
    return [r.metrics["nll"] for r in ended if r.metrics]


if __name__ == "__main__":
    serve(search)
