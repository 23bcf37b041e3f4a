"""A study on a base of 4 bits runs to its end, and all of its results name that base."""

import json
import random
from pathlib import Path

import pytest
from faults import Broken
from study_runs import SMALL

_OPTIONS = (*SMALL, "--seats=1", "--trials=1", "--seeds=1", "--set=quantization=4bit")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_results_name_the_base_of_4_bits(toy_model: str, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    study = Broken(tmp_path / "bits", toy_model, _OPTIONS, random.Random(0), [])
    study.run_to_the_end()
    (folder,) = (study.storage / "studies").iterdir()
    results = json.loads((folder / "results.json").read_text())
    inputs = json.loads((folder / "inputs.json").read_text())
    assert "toy-llama (4-bit nf4) on" in (folder / "report.html").read_text()
    assert results["provenance"]["model"].endswith("toy-llama (4-bit nf4)")
    assert results["provenance"]["model_fingerprint"].startswith("nf4-")
    assert "nf4-" in json.dumps(inputs)
