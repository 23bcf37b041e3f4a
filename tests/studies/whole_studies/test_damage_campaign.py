"""No damage to a study's files changes a verdict, a winner or the next proposal silently."""

from collections import Counter
from pathlib import Path

import pytest
from damage import campaign, table


@pytest.mark.timeout(240)
def test_a_few_mutations(tmp_path: Path) -> None:
    findings = list(campaign(tmp_path, 90, seed=3))
    assert [f for f in findings if f.outcome == "wrong"] == []
    counts = Counter(f.outcome for f in findings)
    assert len(findings) == 90
    assert counts["refused"] > 45  # most damage is seen, whatever else


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thousands_of_mutations(tmp_path: Path) -> None:
    findings = list(campaign(tmp_path, 2400))
    print(table(findings))
    assert [f for f in findings if f.outcome == "wrong"] == []
    assert {f.file for f in findings} >= {
        "trial.json",
        "reports.jsonl",
        "test_block_nll.npy",
        "optuna.db",
        "results.json",
    }
