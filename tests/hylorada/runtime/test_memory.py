"""The peak memory of this process, in bytes on every system."""

import resource
import sys

import pytest

from hylorada.runtime.memory import process_peak


@pytest.mark.parametrize(("system", "unit"), [("darwin", 1), ("linux", 1024)])
def test_peak_is_in_bytes(monkeypatch: pytest.MonkeyPatch, system: str, unit: int) -> None:
    monkeypatch.setattr(sys, "platform", system)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    after = process_peak()
    assert before * unit <= after <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
