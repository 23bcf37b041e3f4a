"""`hylorada evaluate`: its refusals, and the values that it takes from an exported adapter."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hylorada import inspect_base
from studies.cli.commands import main
from studies.reporting.export import RECORD, base_changes
from studies.runner.evaluate import Request, _notes
from studies.runner.inputs import Material


def _refused(capsys: pytest.CaptureFixture[str], message: str, *arguments: str) -> None:
    """Return the one line of a refusal, after the description of the text."""
    assert main(["evaluate", *arguments]) == 2
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith("hylorada: text ")]
    assert (out, len(lines)) == ("", 1)
    assert re.search(message, lines[0]), err


def _with_weights(
    model: str, folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]
) -> Path:
    """Return a copy of a base with other weights."""
    shutil.copytree(model, folder)
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, {"format": "pt"})
    return folder


@pytest.mark.parametrize("blocks", [0, -3, 10**9])
def test_blocks_beyond_the_texts_are_refused_by_the_options_name(
    toy_model: str, capsys: pytest.CaptureFixture[str], blocks: int
) -> None:
    arguments = (f"--model={toy_model}", "--block-size=64", f"--blocks={blocks}")
    _refused(capsys, rf"`blocks` must be 1 to \d+, got {blocks}$", *arguments)


def test_base_whose_loss_is_not_finite_is_refused(
    toy_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = _with_weights(
        toy_model,
        tmp_path / "m",
        lambda state: {k: torch.full_like(v, torch.nan) for k, v in state.items()},
    )
    arguments = (f"--model={broken}", "--block-size=32", "--blocks=2")
    _refused(capsys, r"m': its loss is not finite \(NLL nan in float32\)", *arguments)


def test_base_with_foreign_weights_is_refused(
    toy_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = _with_weights(
        toy_model, tmp_path / "m", lambda state: {f"zzz.{k}": v for k, v in state.items()}
    )
    _refused(capsys, "its weights don't match its config", f"--model={broken}", "--block-size=32")
    before = sorted(tmp_path.rglob("*"))
    assert (
        main(["run", "learnable_bucketing", f"--model={broken}", f"--storage={tmp_path / 'runs'}"])
        == 2
    )
    assert "its weights don't match its config" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("block_size", "32", "block_size must be a whole number, got '32'"),
        ("block_size", 32.5, "block_size must be a whole number, got 32.5"),
        ("block_size", 1, "block_size must be at least 2, got 1"),
        ("test_blocks", "all", "test_blocks must be a whole number, got 'all'"),
        ("test_blocks", 0, "test_blocks must be at least 1, got 0"),
        ("dtype", "float99", "dtype 'float99' is unknown; did you mean 'float"),
        (
            "dtype",
            "manual_seed",
            "dtype 'manual_seed' is unknown; one of: bfloat16, float32, float64",
        ),
        ("dtype", ["float32"], r"dtype \['float32'\] is unknown"),
        ("model", 7, "model must be text, got 7"),
        ("model_fingerprint", 7, "model_fingerprint must be text, got 7"),
        ("data", None, "data must be text, got None"),
        ("text_column", 1, "text_column must be text or null, got 1"),
        ("padded_rows", "yes", "padded_rows must be true or false, got 'yes'"),
    ],
)
def test_record_with_a_field_of_no_use_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, value: Any, problem: str
) -> None:
    record = {
        "model": "tiny",
        "data": "pydocs",
        "text_column": None,
        "block_size": 32,
        "dtype": "float32",
    }
    (tmp_path / RECORD).write_text(json.dumps({**record, field: value}))
    _refused(capsys, rf"export\.json: {problem}", f"--adapter={tmp_path}")


def test_record_that_cannot_be_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for content in (b"{", b"\xff", b"[" * 10**5, b"[]"):
        (tmp_path / RECORD).write_bytes(content)
        _refused(capsys, r"export\.json is damaged", f"--adapter={tmp_path}")
    (tmp_path / RECORD).unlink()
    (tmp_path / RECORD).mkdir()
    _refused(capsys, r"export\.json can't be read: Is a directory", f"--adapter={tmp_path}")


def test_record_of_fewer_fields_is_taken(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text(json.dumps({"model": "m", "block_size": 9, "more": 1}))
    assert Request.of(tmp_path, {"block_size": None}) == Request(
        adapter=tmp_path, model="m", block_size=9
    )


@pytest.mark.parametrize("padded", [False, True])
def test_adapter_of_padded_rows_is_measured_on_blocks_with_a_note(
    toy_model: str, tmp_path: Path, padded: bool
) -> None:
    (tmp_path / RECORD).write_text(json.dumps({"model": toy_model, "padded_rows": padded}))
    request = Request.of(tmp_path, {"block_size": 32})
    notes = _notes(request, inspect_base(toy_model), "text")
    assert [note[:52] for note in notes] == padded * [
        "the adapter was trained and tested on padded rows (r"
    ]


def test_change_of_a_base_names_what_changed(toy_model: str) -> None:
    info = inspect_base(toy_model)
    noted = {
        "model_fingerprint": info.fingerprint,
        "model_config_fingerprint": info.config_fingerprint,
    }
    assert base_changes(info, noted) == base_changes(info, {}) == []
    changed = base_changes(info, {**noted, "model_config_fingerprint": "0" * 16})
    assert changed == [f"config.json of fingerprint {info.config_fingerprint}, was {'0' * 16}"]
    (weights,) = base_changes(info, {**noted, "model_fingerprint": "1" * 16})
    assert weights.startswith("weights of fingerprint ")


def test_study_folder_is_tied_to_the_bases_config_where_that_has_a_fingerprint() -> None:
    provenance = {
        "model_fingerprint": "a",
        "model_config_fingerprint": "b",
        "study_fingerprint": "c",
        "seed": 1,
    }
    assert Material({}, provenance).inputs() == {
        "model_fingerprint": "a",
        "model_config_fingerprint": "b",
    }
    without = Material({}, {**provenance, "model_config_fingerprint": None})
    assert without.inputs() == {"model_fingerprint": "a"}
