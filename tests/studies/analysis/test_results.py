"""Decisions in results that are read back."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from made_studies import make

from studies.analysis.comparisons import Comparison
from studies.analysis.results import gather, read_results
from studies.files.typed_json import typed

STORED: dict[str, Any] = {
    "arm": "learnable",
    "reference": "fixed",
    "seeds": 1,
    "change": -2.0,
    "low": -3.0,
    "high": -1.0,
    "by_seed": [-2.0],
    "median": -2.0,
    "p_value": 0.001,
    "p_holm": 0.002,
    "smallest_visible": 0.5,
    "decision": "moderate to strong",
}


def test_outcome_is_read_as_stored() -> None:
    """The outcome contradicts the interval, so it can't have been computed again."""
    stored: Comparison = typed(Comparison, {**STORED, "outcome": "undecided"})
    assert stored.outcome == "undecided"
    assert typed(Comparison, json.loads(json.dumps(asdict(stored)))) == stored


def test_comparison_of_an_earlier_version_has_no_outcome() -> None:
    assert typed(Comparison, STORED).outcome == ""


def test_unknown_outcome_is_refused() -> None:
    with pytest.raises(ValueError, match="outcome can't be 'great'"):
        typed(Comparison, {**STORED, "outcome": "great"})


def test_verdict_at_the_full_level_is_kept_when_looks_are_declared_later(tmp_path: Path) -> None:
    """The same runs are judged at 5 % first, then as the first of three looks, then once more."""
    store = make(tmp_path / "made", "end", searches=1)
    full = read_results(store.folder / "results.json")
    store.study = replace(store.study, looks=(2, 4, 8))
    look = gather(store, None, {}, [], before=full)
    again = gather(store, None, {}, [], before=look)
    store.close()
    assert full.comparisons[0].level == 0.05 > look.comparisons[0].level
    assert full.earlier == ()
    assert full.first_level is None
    assert look.earlier == again.earlier == (full.verdict,)
    assert look.first_level == again.first_level == 0.05
    assert "the first verdict used the full 5 % level" in look.notes[-1]
