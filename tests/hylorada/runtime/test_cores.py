"""The number of usable cores."""

import os
from pathlib import Path

import pytest

from hylorada.runtime import cores


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        (None, 3),
        ("max 100000", 3),
        ("800000 100000", 3),
        ("200000 100000", 2),
        ("150000 100000", 2),  # rounded up, so that no part of the quota is idle
        ("50000 100000", 1),
        ("", 3),
    ],
)
def test_available_cores_heed_affinity_and_quota(
    quota: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5, 7})
    monkeypatch.setattr(cores, "_QUOTA", tmp_path / "cpu.max")
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota)
    assert cores.available_cores() == expected


def test_systems_without_affinity_have_all_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(cores, "_QUOTA", tmp_path / "cpu.max")
    assert cores.available_cores() == 6
