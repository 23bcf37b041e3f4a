"""Times of whole searches, from process start to end: with one process per trial, and our host."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hylorada import Blocks
from studies.bench.options import Plan

_HERE = Path(__file__).resolve().parent
_END_S = 20  # for a driver to end; Ray takes two
_DRIVERS = {  # by name: arguments of Python
    "processes": [str(_HERE / "process_a_trial.py")],
    "host": ["-m", "studies.bench.search.packed"],
}


def time_searches(
    plan: Plan, blocks: Mapping[str, Blocks], say: Callable[[str], None]
) -> dict[str, Any]:
    """Return the seconds and trials per hour of both searches.

    Each search is one run of its own driver, on the same tokenised text.
    """
    times: dict[str, Any] = {
        "trials": plan.trials,
        "steps": plan.search_steps,
        "processes_at_once": plan.processes,
    }
    with tempfile.TemporaryDirectory(prefix="hylorada-bench-") as folder:
        path = Path(folder) / "blocks.npz"
        np.savez(path, **{split: b.input_ids for split, b in blocks.items()})  # type: ignore[arg-type]
        for name in _DRIVERS:
            say(f"search of {plan.trials} trials x {plan.search_steps} steps: {name}")
            seconds = _time(name, _task(plan, path, Path(folder) / f"{name}.json"), Path(folder))
            times[name] = {"seconds": seconds, "trials_per_hour": 3600 * plan.trials / seconds}
    times["ratio"] = times["processes"]["seconds"] / times["host"]["seconds"]
    return times


def _task(plan: Plan, blocks: Path, result: Path) -> dict[str, Any]:
    return {
        "setting": asdict(plan.setting),
        "blocks": str(blocks),
        "steps": plan.search_steps,
        "trials": plan.trials,
        "processes": plan.processes,
        "result": str(result),
    }


def _time(name: str, task: dict[str, Any], folder: Path) -> float:
    task_file = folder / f"{name}-task.json"
    task_file.write_text(json.dumps(task))
    root = str(_HERE.parents[2])  # a script run by path doesn't see packages of the current folder
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
    }
    began = time.perf_counter()
    code, errors = run_driver([sys.executable, *_DRIVERS[name], str(task_file)], environment)
    seconds = time.perf_counter() - began
    ended = json.loads(Path(task["result"]).read_text()) if Path(task["result"]).exists() else []
    if code or len(ended) != task["trials"]:
        why = errors.strip().splitlines()[-1:] or ["no message"]
        raise RuntimeError(
            f"the search by {name}: {len(ended)} of {task['trials']} trials completed; {why[0]}"
        )
    return seconds


def run_driver(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Run a driver and return its exit code and stderr; if interrupted, let it end its children."""
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            _, errors = process.communicate()
        except BaseException:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            process.kill()
            raise
    return process.returncode, errors
