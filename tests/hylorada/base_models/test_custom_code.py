"""Code beside a model, tokenizer, adapter or text never runs, and no prompt asks for consent."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hylorada import HyLoRADAModel, InputError, inspect_base, load_base, load_text, load_tokenizer
from hylorada.base_models.loading import target_problems
from studies.cli.commands import main

NEVER = "hylorada never runs code that comes with a model"
CODE = """
from pathlib import Path
Path({trace!r}).touch()
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
class Planted(LlamaConfig):
    model_type = "planted"
class PlantedModel(LlamaForCausalLM):
    config_class = Planted
class PlantedTokenizer(PreTrainedTokenizerFast):
    pass
"""
AUTO_MAP = {"AutoConfig": "planted.Planted", "AutoModelForCausalLM": "planted.PlantedModel"}


@pytest.fixture(autouse=True)
def _says_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer every prompt of transformers with yes."""
    monkeypatch.setattr("builtins.input", lambda _: "y")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Return the file that planted code writes when it runs."""
    return tmp_path / "it ran"


@pytest.fixture
def planted(tmp_path: Path, trace: Path) -> Path:
    """Return a folder with the built-in base and code that no config names yet."""
    folder = tmp_path / "planted"
    tiny = Path(str(load_base("tiny").name_or_path))
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (folder / "planted.py").write_text(CODE.format(trace=str(trace)))
    return folder


def _change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _uses(folder: Path) -> list[Callable[[], object]]:
    name = str(folder)
    return [
        lambda: inspect_base(name),
        lambda: load_base(name),
        lambda: target_problems(name, ["q_proj"]),
    ]


@pytest.mark.parametrize(
    "model_type", ["planted", "mamba", None], ids=["own", "of transformers", "none"]
)
def test_base_of_a_foreign_type_with_code_is_refused(
    planted: Path, trace: Path, model_type: str | None
) -> None:
    _change(planted / "config.json", auto_map=AUTO_MAP, model_type=model_type)
    for use in _uses(planted):
        with pytest.raises(
            InputError, match=rf"its config.json names code of its own \(auto_map\); {NEVER}"
        ):
            use()
    assert not trace.exists()


def test_supported_base_with_code_is_transformers_own(planted: Path, trace: Path) -> None:
    _change(planted / "config.json", auto_map=AUTO_MAP)
    ids = torch.arange(9)[None]
    assert torch.equal(load_base(str(planted))(ids).logits, load_base("tiny")(ids).logits)
    assert inspect_base(str(planted)).model_type == "llama"
    assert not trace.exists()


def test_model_folder_with_code_is_refused_by_the_command_line(
    planted: Path, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _change(planted / "config.json", auto_map=AUTO_MAP, model_type="planted")
    storage = tmp_path / "storage"
    assert main(["run", "learnable_bucketing", f"--model={planted}", f"--storage={storage}"]) == 2
    assert main(["evaluate", f"--model={planted}"]) == 2
    assert capsys.readouterr().err.count(NEVER) == 2
    assert not trace.exists()
    assert not storage.exists()


def test_tokenizer_with_code_is_transformers_own_or_refused(planted: Path, trace: Path) -> None:
    path = planted / "tokenizer_config.json"
    _change(path, auto_map={"AutoTokenizer": [None, "planted.PlantedTokenizer"]})
    assert (
        load_tokenizer(str(planted))("one two").input_ids
        == load_tokenizer("tiny")("one two").input_ids
    )
    _change(path, tokenizer_class="PlantedTokenizer")
    with pytest.raises(
        InputError, match=rf"its tokenizer_config.json names code of its own \(auto_map\); {NEVER}"
    ):
        load_tokenizer(str(planted))
    assert not trace.exists()


def test_base_that_an_adapter_names_is_refused_alike(
    planted: Path, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], make_model: Any
) -> None:
    make_model().save_pretrained(tmp_path / "adapter")
    _change(planted / "config.json", auto_map=AUTO_MAP, model_type="planted")
    config = tmp_path / "adapter" / "hylorada_config.json"
    _change(config, base={**json.loads(config.read_text())["base"], "name": "../planted"})
    assert main(["evaluate", f"--adapter={tmp_path / 'adapter'}"]) == 2
    assert NEVER in capsys.readouterr().err
    with pytest.raises(InputError, match=NEVER):
        HyLoRADAModel.from_pretrained(str(planted), tmp_path / "adapter")
    assert not trace.exists()


class _Touch:
    """An object that writes the file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_pickled_weights_run_nothing(planted: Path, trace: Path) -> None:
    (planted / "model.safetensors").unlink()
    torch.save({"model.embed_tokens.weight": _Touch(trace)}, planted / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"planted'"):
        load_base(str(planted))
    (planted / "pytorch_model.bin").write_bytes(pickle.dumps({"a": _Touch(trace)}))
    with pytest.raises(InputError, match=r"planted'"):
        inspect_base(str(planted))
    assert not trace.exists()


@pytest.mark.parametrize("field", ["attn_implementation", "_attn_implementation"])
def test_base_with_a_kernel_of_the_hub_is_refused(planted: Path, field: str) -> None:
    """transformers would run that repository's code, whatever implementation is requested."""
    _change(planted / "config.json", **{field: "nobody/planted"})
    for use in _uses(planted):
        with pytest.raises(
            InputError, match=rf"its config.json names a kernel of the hub \({field}\); {NEVER}"
        ):
            use()
    _change(planted / "config.json", **{field: "eager"})
    assert load_base(str(planted)).config._attn_implementation in ("sdpa", "eager")


def test_loading_script_of_a_data_set_is_no_text(
    planted: Path, trace: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    shutil.copy(planted / "planted.py", data / "data.py")
    with pytest.raises(InputError, match="data': no files; supported: "):
        load_text(str(data))
    (data / "text.txt").write_text("one two three\n" * 50)
    assert (
        "".join("".join(texts) for texts in load_text(str(data)).splits.values())
        == "one two three\n" * 50
    )
    assert not trace.exists()


def test_generation_with_code_of_a_repository_is_refused(
    planted: Path, trace: Path, make_model: Callable[..., HyLoRADAModel]
) -> None:
    (planted / "custom_generate").mkdir()
    shutil.copy(planted / "planted.py", planted / "custom_generate" / "generate.py")
    with pytest.raises(ValueError, match="contains custom generation code"):
        make_model().generate(torch.ones(1, 3, dtype=torch.long), custom_generate=str(planted))
    assert not trace.exists()
