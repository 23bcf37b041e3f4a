"""An export on another machine: it names no place of this one, and resolves paths from its own."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from study_runs import FinishedStudy
from transformers import AutoTokenizer

from hylorada import HyLoRADAConfig, HyLoRADAModel, load_base, load_tokenizer
from studies.cli.commands import main

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def exported(finished: FinishedStudy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("export") / "the adapter"
    assert (
        main(["export", finished.name, f"--storage={finished.storage}", f"--output={output}"]) == 0
    )
    return output


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(arguments) == 0
    values: dict[str, Any] = json.loads(capsys.readouterr().out)
    return values


def test_nothing_in_an_export_names_a_place_of_this_machine(exported: Path, toy_model: str) -> None:
    texts = {
        p.name: p.read_text(encoding="utf-8")
        for p in exported.iterdir()
        if p.suffix != ".safetensors"
    }
    assert texts.keys() > {
        "README.md",
        "adapter_config.json",
        "export.json",
        "hylorada_config.json",
    }
    places = (str(exported), str(exported.parent), str(Path(toy_model).parent), str(Path.home()))
    assert [
        (name, place) for name, text in texts.items() for place in places if place in text
    ] == []
    relative = os.path.relpath(toy_model, exported)
    assert json.loads(texts["adapter_config.json"])["base_model_name_or_path"] == relative
    assert json.loads(texts["hylorada_config.json"])["base"]["name"] == relative
    assert f"`{relative}`, a local folder relative to this one" in texts["README.md"]


def test_exported_tokenizer_is_the_bases(exported: Path, toy_model: str) -> None:
    tokenizer, text = AutoTokenizer.from_pretrained(exported), "A line, and\nanother: 'of them'."
    assert tokenizer(text).input_ids == load_tokenizer(toy_model)(text).input_ids
    assert tokenizer.eos_token_id == load_tokenizer(toy_model).eos_token_id


def test_export_that_moved_with_its_base_is_measured_there(
    exported: Path,
    toy_model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    up = os.path.relpath(toy_model, exported).count("../")
    adapter = tmp_path.joinpath(*"abcdef"[:up])
    shutil.copytree(exported, adapter)
    assert main(["evaluate", f"--adapter={adapter}"]) == 2
    assert "does not exist; name another one with --model" in capsys.readouterr().err
    shutil.copytree(toy_model, tmp_path / os.path.relpath(toy_model, exported).replace("../", ""))
    monkeypatch.chdir(adapter)
    assert _json(capsys, "evaluate", "--adapter=.", "--json") == _json(
        capsys, "evaluate", f"--adapter={exported}", "--json"
    )


def test_saved_adapter_names_the_base_that_it_is_measured_on(
    toy_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = HyLoRADAConfig(max_positions=32)
    HyLoRADAModel(load_base(toy_model), config).save_pretrained(tmp_path / "toy")
    HyLoRADAModel(load_base("tiny"), config).save_pretrained(tmp_path / "built-in")
    options = ("--block-size=32", "--blocks=2", "--json")
    for adapter, model in (("toy", toy_model), ("built-in", "tiny")):
        measured = _json(capsys, "evaluate", f"--adapter={tmp_path / adapter}", *options)
        assert measured == _json(capsys, "evaluate", f"--model={model}", *options)
