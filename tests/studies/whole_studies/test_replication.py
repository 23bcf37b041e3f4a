"""The study of the published code, whole and small."""

import json
from pathlib import Path

import numpy as np
import pytest
from study_runs import read_trials, run_cli

from studies.spec.published import CLAIMS

pytestmark = pytest.mark.timeout(600)

SMALL = (
    "--block-size=32",
    "--seeds=1",
    "--set=eval_every=2",
    "--set=eval_blocks=2",
    "--set=test_blocks=12",
    "--set=defaults.max_steps=2",
    "--set=defaults.num_buckets=8",
)


def test_replication_measures_every_fault_and_reports_it(toy_model: str, tmp_path: Path) -> None:
    storage = tmp_path / "runs"
    place = (f"--model={toy_model}", f"--storage={storage}")
    done = run_cli("run", "replication", *place, *SMALL, timeout=500)
    assert done.code == 0, done.err
    folder = storage / "studies" / "replication"
    results = json.loads((folder / "results.json").read_text())
    assert {t["state"] for t in read_trials(folder)} == {"complete"}
    assert [c["claim"] for c in results["replication"]] == [c.title for c in CLAIMS]
    for claim in results["replication"]:
        unknown = [e["fault"] for e in claim["faults"] if e["alone"] is None]
        assert unknown == ["one unpaired seed"]  # a spread needs two
    shown = " ".join(done.out.split())
    assert "DoRA: published as +5.62 %" in shown
    assert "pads in the loss" in shown
    assert "replication_bf16 repeats a fault of the published code in baseline_" in shown
    assert "Published claims and the faults of their code" in (folder / "report.html").read_text()
    _padded_arms_see_other_rows(folder)
    again = run_cli("report", "replication", f"--storage={storage}", "--json")
    assert json.loads(again.out)["replication"] == results["replication"]


def _padded_arms_see_other_rows(folder: Path) -> None:
    """Before training, pads change nothing but the text that an arm is evaluated on."""
    names = ("baseline_clean", "baseline_only_bf16", "baseline_only_pads", "baseline_published")
    sums = [
        np.load(folder / "trials" / f"{n}-0000-confirm-00" / "test_block_nll.npy").sum(axis=1)
        for n in names
    ]
    assert sums[0].shape == sums[2].shape == (12,)
    np.testing.assert_allclose(sums[0], sums[1], rtol=0.02)
    np.testing.assert_allclose(sums[2], sums[3], rtol=0.02)
    assert not np.allclose(sums[0], sums[2], rtol=0.02)
