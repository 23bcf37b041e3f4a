"""Pictures of MLflow's page as a user finds it after a study: one command draws them anew.

``python tests/programs/pictures.py studies/pictures`` runs a small study of the built-in base and
text in a temporary folder, serves it with ``hylorada ui``, and opens each page without a click.
"""

import json
import re
import signal
import socket
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from browser import Browser, browser
from mlflow import MlflowClient
from study_runs import Command, run_cli, wait_until

from studies.tracking.shown.descriptions import TRAINING

NAME = "learnable_bucketing"
SHORT = (
    "--searches=3",
    "--trials=3",
    "--set=profile=[1.0]",
    "--set=defaults.max_steps=16",
    "--set=eval_every=4",
    "--set=grace_steps=4",
    "--set=eval_blocks=8",
    "--set=test_blocks=60",
)
_SIZE = (1500, 1000)
_COMPARED = 6  # runs on the page that compares


@dataclass(frozen=True)
class Pages:
    """The addresses of the pages, and a text that each shows once it is complete."""

    trials: str
    answer: str
    run: str
    compared: str


@contextmanager
def served(storage: Path, name: str = NAME) -> Iterator[Pages]:
    """Serve a study with ``hylorada ui NAME``, and yield the addresses of its pages."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = Command("ui", name, f"--storage={storage}", f"--port={port}")
    try:
        assert command.stdout is not None
        lines = [command.stdout.readline() for _ in range(2)]
        trials, answer = (re.sub("^.*?: ", "", line).strip() for line in lines)
        wait_until(lambda: _answers(port))
        yield _pages(trials, answer, f"sqlite:///{storage / 'mlflow.db'}", name)
    finally:
        command.send_signal(signal.SIGINT)
        command.communicate(timeout=60)


def _answers(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
        return bool(answer.status == 200)
    return False


def _pages(trials: str, answer: str, uri: str, name: str) -> Pages:
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(name)
    assert experiment is not None
    number = str(experiment.experiment_id)
    stage = "tags.`hylorada.stage` = '{}' and status = 'FINISHED'"
    learnable = f"{stage.format('confirm')} and tags.`hylorada.arm` = 'learnable'"
    (run, *_) = client.search_runs([number], learnable)
    compared = client.search_runs([number], stage.format("search"), max_results=_COMPARED)
    runs = quote(json.dumps([r.info.run_id for r in compared]))
    root = answer.partition("#")[0]
    return Pages(
        trials,
        answer,
        f"{root}#/experiments/{number}/runs/{run.info.run_id}/model-metrics{TRAINING}",
        f"{root}#/compare-runs?runs={runs}&experiments={quote(json.dumps([number]))}&{TRAINING[1:]}",
    )


def draw(storage: Path, output: Path, name: str = NAME) -> dict[str, str]:
    """Store a picture of each page of a finished study, and return the pages' texts by name."""
    with served(storage, name) as pages, browser(*_SIZE) as window:
        return dict(_drawn(window, pages, output, name))


def _drawn(window: Browser, pages: Pages, output: Path, name: str) -> Iterator[tuple[str, str]]:
    awaited = {"trials": name, "answer": "Description", "run": "eval", "compared": "Parallel"}
    for page, text in awaited.items():
        yield page, window.open(getattr(pages, page), text)
        window.picture(output / f"{page}.png")


def main() -> None:
    """Run the study and store the pictures in the folder that the command names."""
    output = Path(sys.argv[1])
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as storage:
        done = run_cli("run", NAME, f"--storage={storage}", *SHORT, timeout=900)
        assert done.code == 0, done.err
        for page, text in draw(Path(storage), output).items():
            print(f"{page}: {len(text)} characters, {output / page}.png")


if __name__ == "__main__":
    main()
