"""Adapters on the Hugging Face hub, here one that runs on this machine."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_hub import FakeHub, fake_hub
from huggingface_hub import constants

from hylorada import HyLoRADAModel, InputError, load_adapter
from hylorada.saving.finding_adapters import find_adapter

MakeModel = Callable[..., HyLoRADAModel]
FILES = [
    "adapter_config.json",
    "adapter_model.safetensors",
    "hylorada_config.json",
    "hylorada_model.safetensors",
]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with fake_hub(monkeypatch, tmp_path / "cache") as hub:
        yield hub


def test_adapter_is_pushed_without_its_base(make_model: MakeModel, hub: FakeHub) -> None:
    address = make_model().push_to_hub("me/adapter", token="secret", commit_message="mine")
    assert address == f"{hub.address}/me/adapter/commit/{'0' * 40}"
    assert hub.summaries == ["mine"]
    assert hub.tokens == {"Bearer secret"}
    assert sorted(hub.files["me/adapter"]) == FILES


@pytest.mark.usefixtures("hub")
def test_pushed_adapter_is_loaded_by_its_id(make_model: MakeModel) -> None:
    model = make_model()
    ids = torch.arange(9)[None]
    expected = model(input_ids=ids).logits
    model.push_to_hub("me/adapter")
    model.close()
    loaded = HyLoRADAModel.from_pretrained(model.base, "me/adapter")
    assert torch.equal(loaded(input_ids=ids).logits, expected)


def test_other_files_of_the_repository_are_not_downloaded(
    make_model: MakeModel, hub: FakeHub
) -> None:
    make_model().push_to_hub("me/adapter")
    hub.files["me/adapter"] |= {"model.safetensors": b"a whole base", "README.md": b"a card"}
    assert sorted(p.name for p in find_adapter("me/adapter").iterdir()) == FILES


def test_downloaded_adapter_is_used_without_the_hub(
    make_model: MakeModel, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model().push_to_hub("me/adapter")
    folder = find_adapter("me/adapter")
    hub.files.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert find_adapter("me/adapter") == folder


@pytest.mark.usefixtures("hub")
def test_unknown_repository_is_refused_by_name(make_model: MakeModel) -> None:
    base = make_model().base
    with pytest.raises(InputError, match=r"^adapter 'me/nowhere': no such folder, and not on the"):
        load_adapter(base, "me/nowhere")


@pytest.mark.usefixtures("hub")
def test_without_hub_and_copy_the_download_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"can't be reached.*: hf download me/adapter$"):
        find_adapter("me/adapter")


@pytest.mark.parametrize("name", ["me/adapter", Path("me/adapter"), "./me/adapter", "~/me"])
def test_folders_and_paths_never_go_to_the_hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("me/adapter").mkdir(parents=True)
    assert find_adapter(name) == Path(name).expanduser()
