"""The examples of studies run as they are."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import nbformat
import pytest
from cluster_nodes import Nodes
from nbclient import NotebookClient
from study_runs import wait_until

EXAMPLES = Path(__file__).parents[2] / "studies" / "examples"


def test_examples_are_these() -> None:
    names = [path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")]
    assert sorted(names) == [
        "own_arms.py",
        "own_cluster.py",
        "own_design.py",
        "own_text.ipynb",
        "sigmoid_gates.py",
    ]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("script", "name"), [("own_arms", "dora"), ("own_design", "gates")])
def test_script_prints_a_verdict(script: str, name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / f"{script}.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=380)
    assert done.returncode == 0, done.stderr
    assert "These intervals hold for the arms as methods: 2 independent searches" in done.stdout
    assert (tmp_path / "mlruns" / "studies" / name / "report.html").exists()


def run_cluster(
    folder: Path, *address: str, environment: Mapping[str, str]
) -> subprocess.Popen[str]:
    """Start the example for clusters, with its output in a pipe."""
    command = [sys.executable, str(EXAMPLES / "own_cluster.py"), str(folder / "runs"), *address]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, cwd=folder, env=dict(environment)
    )


@pytest.mark.faults
@pytest.mark.timeout(400)
def test_cluster_script_runs_on_the_ray_that_it_starts(tmp_path: Path) -> None:
    """That Ray runs on after the study."""
    process = run_cluster(tmp_path, environment=os.environ)
    out, err = process.communicate(timeout=380)
    assert process.returncode == 0, err
    ends = [line for line in out.splitlines() if ": complete after 8 steps" in line]
    assert len(ends) == 2 * 3 * 2  # searches, arms, a trial and a run on a fresh seed
    assert out.endswith("Ray still runs: True\n")


@pytest.mark.faults
@pytest.mark.timeout(400)
def test_cluster_script_trains_on_every_node(tmp_path: Path) -> None:
    with Nodes(cpus=1) as nodes:
        nodes.add("second")
        process = run_cluster(tmp_path, nodes.address, environment=nodes.environment)
        wait_until(lambda: all(n.hosts() for n in nodes.nodes) or process.poll() is not None, 200)
        assert process.poll() is None, process.communicate()
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert out.endswith("Ray still runs: True\n")
        assert not any(n.hosts() for n in nodes.nodes)  # the study has left the cluster
        assert [n.process.poll() for n in nodes.nodes] == [None, None]


@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the notebook's own packages
def test_notebook_shows_results_and_progress(tmp_path: Path) -> None:
    text = (EXAMPLES / "own_text.ipynb").read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(notebook, timeout=380, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    outputs = {cell["id"]: cell.get("outputs", []) for cell in notebook.cells}
    shown = [o["data"] for o in outputs["results"] if "data" in o]
    progress, verdict = shown[0]["text/plain"], shown[-1]
    assert "numbers: confirm" in progress
    assert "6 trials" in progress
    said = "".join(o["text"] for o in outputs["results"] if o.get("name") == "stdout")
    assert said.startswith("numbers: 2 searches of 1 trial for each of baseline, fixed, learnable")
    assert "learnable" in verdict["text/html"]
    assert "StudyResults('numbers'" in verdict["text/plain"]
    (frame,) = (o["data"]["text/plain"] for o in outputs["comparisons"])
    assert frame.count("baseline") == 2
    assert ["image/png" in o["data"] for o in outputs["forest"]] == [True]
