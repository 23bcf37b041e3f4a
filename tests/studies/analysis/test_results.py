"""Decisions in results that are read back."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from studies.analysis.comparisons import Comparison
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
