"""What keeps a base from being quantized is said before any compute, and nothing is written."""

import importlib.util
from pathlib import Path

import pytest

from hylorada import InputError
from studies import Options, get_study
from studies.runner.inputs import prepare


def test_missing_package_is_one_problem_that_names_the_extra(
    tmp_path: Path, toy_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "bitsandbytes" else find(name)
    )
    study = get_study("learnable_bucketing", model=toy_model, quantization="4bit")
    with pytest.raises(InputError, match=r"needs bitsandbytes: .*\[quantization\]") as caught:
        prepare(study, Options(storage=tmp_path / "runs"))
    assert len(caught.value.problems) == 1
    assert not (tmp_path / "runs").exists()


def test_float64_is_refused(tmp_path: Path, toy_model: str) -> None:
    pytest.importorskip("bitsandbytes")
    study = get_study("learnable_bucketing", model=toy_model, quantization="4bit", dtype="float64")
    with pytest.raises(InputError, match="dtype float64: a base of 4 bits computes in float32"):
        prepare(study, Options(storage=tmp_path / "runs"))


def test_study_is_bound_to_the_base_of_4_bits(tmp_path: Path, toy_model: str) -> None:
    pytest.importorskip("bitsandbytes")
    full, bits = (
        prepare(get_study("learnable_bucketing", model=toy_model, block_size=32, **q), options)
        for options in (Options(storage=tmp_path / "runs"),)
        for q in ({}, {"quantization": "4bit"})
    )
    fingerprints = [m.inputs()["model_fingerprint"] for m in (full, bits)]
    assert fingerprints[1] == f"nf4-{fingerprints[0]}"
    assert bits.provenance["model"] == f"{full.provenance['model']} (4-bit nf4)"
    assert full.provenance["model"] == toy_model
