"""Run a study on a Ray cluster from a program of your own.

    python own_cluster.py /shared/runs 10.0.0.1:6379

The first argument is a folder that all nodes see at the same path, the second the address of the
cluster's head. Without the second, ``ray.init()`` decides: it joins the cluster in
``RAY_ADDRESS``, or starts a Ray of its own on this machine. Either way the study runs on the Ray
that the program has, on all of its nodes, and leaves it running. It takes about half a minute on
two cores. "On a Ray cluster" in the README of studies says how to start one, and what its nodes
need.
"""

import sys
from pathlib import Path

import ray

from studies import Callbacks, Options, Record, get_study, run_study

study = get_study(
    "learnable_bucketing",
    name="wide",
    searches=2,
    trials=1,
    profile=[1.0],
    defaults={"max_steps": 8, "batch_size": 2},
    eval_every=4,
    grace_steps=4,
    eval_blocks=8,
    test_blocks=20,
)


def print_end(record: Record) -> None:
    """Print how a trial has ended; the study calls this after it has stored the end."""
    print(f"{record.name}: {record.state} after {record.step} steps")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python own_cluster.py FOLDER [ADDRESS]")
    storage, address = Path(sys.argv[1]), next(iter(sys.argv[2:]), None)
    ray.init(address, log_to_driver=False)
    # One trial in a pack, because so few trials would all fit on the first node.
    options = Options(storage=storage, seats=1)
    results = run_study(study, options=options, callbacks=Callbacks(on_trial_end=print_end))
    print(results.verdict)
    print(f"Ray still runs: {ray.is_initialized()}")
    ray.shutdown()
