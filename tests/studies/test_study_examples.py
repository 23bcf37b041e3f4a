"""The examples of studies run as they are."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[2] / "studies" / "examples"


def test_examples_are_these() -> None:
    names = [path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")]
    assert sorted(names) == ["own_arms.py", "own_text.ipynb"]


@pytest.mark.timeout(400)
def test_script_prints_a_verdict(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "own_arms.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=380)
    assert done.returncode == 0, done.stderr
    assert "These intervals hold for the arms as methods: 2 independent searches" in done.stdout
    assert (tmp_path / "mlruns" / "studies" / "dora" / "report.html").exists()


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
