"""Saved seats: training continues bit for bit, and files that don't fit are refused."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from hylorada import Adapter, HyLoRADAConfig, InputError, Pack, TrainingConfig, UnreadableCheckpoint
from hylorada.data.batch_order import BatchOrder
from hylorada.training.checkpoint import (
    _checksum,
    copy_seat,
    load_seat,
    read_parameters,
    save_seat,
    write_seat,
)
from hylorada.training.seat import Seat
from hylorada.training.steps import Outcome, train_step

CURRICULUM = {
    "landmark_bucketing": "learnable",
    "boundary_init": "fixed",
    "boundary_warmup": 0.5,
    "lora_dropout": 0.1,
}
ARMS: list[dict[str, Any]] = [{**CURRICULUM, "boundary_warmup": 0.2}, CURRICULUM]
STEPS = 10


class Lab:
    """Builds fresh seats over one base and trains them."""

    def __init__(
        self,
        base: PreTrainedModel,
        make_config: Callable[..., HyLoRADAConfig],
        ids: npt.NDArray[np.int32],
    ) -> None:
        self.pack = Pack(base)
        self.make_config = make_config
        self.ids = ids

    def seat(self, seed: int = 0, **changes: Any) -> Seat:
        training = TrainingConfig(
            max_steps=STEPS, batch_size=2, learning_rate=1e-2, weight_decay=0.1
        )
        adapter = Adapter(
            self.pack.base, self.make_config(**{"lora_dropout": 0.1, **changes}), seed=seed
        )
        return Seat(adapter, training, BatchOrder(len(self.ids), 2, seed=4))

    def train(self, seat: Seat, steps: int) -> list[Outcome]:
        return [train_step(self.pack, {"a": seat}, self.ids)["a"] for _ in range(steps)]


@pytest.fixture
def lab(
    make_base: Callable[..., PreTrainedModel],
    make_config: Callable[..., HyLoRADAConfig],
    token_blocks: npt.NDArray[np.int32],
) -> Lab:
    return Lab(make_base("gpt2"), make_config, token_blocks)


@pytest.fixture
def saved(lab: Lab, tmp_path: Path) -> Path:
    """Return a seat of the default arm after two steps."""
    seat = lab.seat()
    lab.train(seat, 2)
    save_seat(seat, tmp_path / "seat.safetensors", {"report": 1})
    return tmp_path / "seat.safetensors"


def _rewrite(
    path: Path, change: Callable[[dict[str, torch.Tensor]], object], **metadata: str
) -> None:
    with safe_open(path, framework="pt") as file:
        kept = dict(file.metadata())
    tensors = load_file(path)
    change(tensors)
    kept |= metadata
    save_file(tensors, path, metadata={**kept, "crc32": _checksum(tensors, kept)})


@pytest.mark.parametrize("arm", ARMS, ids=["curriculum over", "curriculum on"])
def test_resumed_losses_are_those_of_one_run_bit_for_bit(
    lab: Lab, tmp_path: Path, arm: dict[str, Any]
) -> None:
    path = tmp_path / "seat.safetensors"
    whole = lab.seat(**arm)
    at_once = lab.train(whole, STEPS)
    first = lab.seat(**arm)
    losses = lab.train(first, STEPS // 2)
    save_seat(first, path, {"losses": losses})
    lab.train(first, 3)  # the steps after the checkpoint are lost
    second = lab.seat(seed=99, **arm)  # loading overwrites its own start
    extra = load_seat(second, path)
    assert second.step == STEPS // 2
    assert extra == {"losses": losses}
    assert losses + lab.train(second, STEPS // 2) == at_once
    for parameter, other in zip(
        second.adapter.parameters(), whole.adapter.parameters(), strict=True
    ):
        assert torch.equal(parameter, other)


@pytest.mark.parametrize(
    "arm", [*ARMS, {"landmarks": False}, {"landmark_design": "per_layer", "use_dora": True}]
)
def test_parameters_are_read_by_name_without_a_base(
    lab: Lab, tmp_path: Path, arm: dict[str, Any]
) -> None:
    seat = lab.seat(**arm)
    lab.train(seat, 2)
    save_seat(seat, tmp_path / "seat.safetensors", {})
    parameters = read_parameters(tmp_path / "seat.safetensors")
    expected = dict(seat.adapter.named_parameters())
    assert list(parameters) == list(expected)
    assert all(torch.equal(parameters[name], expected[name]) for name in expected)


def test_seat_without_steps_is_saved_and_restored(lab: Lab, tmp_path: Path) -> None:
    save_seat(lab.seat(), tmp_path / "seat.safetensors", {})
    second = lab.seat(seed=1)
    load_seat(second, tmp_path / "seat.safetensors")
    assert not second.optimizer.state
    assert lab.train(second, 3) == lab.train(lab.seat(), 3)


def test_restored_tensors_are_fp32(lab: Lab, saved: Path) -> None:
    seat = lab.seat()
    load_seat(seat, saved)
    tensors = [t for p in seat.adapter.parameters() for t in (p, *seat.optimizer.state[p].values())]
    assert {t.dtype for t in tensors} == {torch.float32}


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, -1])
def test_truncated_file_is_refused(lab: Lab, saved: Path, keep: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(keep * len(content)) if keep == 0.5 else int(keep)])
    with pytest.raises(InputError, match=r"seat\.safetensors is damaged: "):
        load_seat(lab.seat(), saved)


@pytest.mark.parametrize("word", [b"layout", b"crc32", b"matrices/values", b"F32"])
def test_flipped_bit_in_the_header_costs_the_file_alone(lab: Lab, saved: Path, word: bytes) -> None:
    """A flipped bit is noticed in names of texts and tensors, in types and in the layout."""
    content = bytearray(saved.read_bytes())
    where = content.find(word)
    assert where > 0
    content[where + 1] ^= 1
    saved.write_bytes(content)
    with pytest.raises(UnreadableCheckpoint):
        load_seat(lab.seat(), saved)


@pytest.mark.parametrize("where", [-1, -500, -5000])
def test_flipped_bit_is_refused_and_the_seat_left_as_it_was(
    lab: Lab, saved: Path, where: int
) -> None:
    content = bytearray(saved.read_bytes())
    content[where] ^= 1
    saved.write_bytes(content)
    seat = lab.seat()
    with pytest.raises(UnreadableCheckpoint, match="is damaged: its checksum differs"):
        load_seat(seat, saved)
    assert lab.train(seat, 3) == lab.train(lab.seat(), 3)


@pytest.mark.parametrize(
    "name",
    ["matrices/values", "dropout_stream", "scalars/exp_avg", "scalars/step"],
)
def test_missing_tensor_is_refused_by_name(lab: Lab, saved: Path, name: str) -> None:
    _rewrite(saved, lambda tensors: tensors.pop(name))
    with pytest.raises(
        InputError, match=f"doesn't fit the adapter: 1 tensors differ, first \\['{name}'\\]"
    ):
        load_seat(lab.seat(), saved)


@pytest.mark.parametrize(
    "name", ["matrices/stranger", "stranger", "boundaries/exp_avg", "strangers/step"]
)
def test_unexpected_tensor_is_refused_by_name(lab: Lab, saved: Path, name: str) -> None:
    _rewrite(saved, lambda tensors: tensors.update({name: torch.zeros(1)}))
    with pytest.raises(InputError, match=f"1 tensors differ, first \\['{name}'\\]"):
        load_seat(lab.seat(), saved)


@pytest.mark.parametrize("value", [torch.zeros(3), torch.zeros((), dtype=torch.bfloat16)])
@pytest.mark.parametrize("name", ["matrices/values", "scalars/exp_avg_sq", "scalars/step"])
def test_other_shape_or_dtype_is_refused(
    lab: Lab, saved: Path, name: str, value: torch.Tensor
) -> None:
    _rewrite(saved, lambda tensors: tensors.update({name: value}))
    with pytest.raises(InputError, match=f"1 tensors differ, first \\['{name}'\\]"):
        load_seat(lab.seat(), saved)


@pytest.mark.parametrize(
    "changes", [{"r": 3}, {"landmarks": False}, {"landmark_bucketing": "learnable"}]
)
def test_checkpoint_of_another_configuration_changes_nothing(
    lab: Lab, saved: Path, changes: dict[str, Any]
) -> None:
    seat, untouched = lab.seat(**changes), lab.seat(**changes)
    with pytest.raises(InputError, match="doesn't fit the adapter"):
        load_seat(seat, saved)
    assert lab.train(seat, 3) == lab.train(untouched, 3)


def test_seat_of_another_kind_of_device_goes_on_but_for_its_dropout_stream(
    lab: Lab, saved: Path
) -> None:
    """A GPU's stream has 16 bytes; ``export`` loads seats from a GPU on the CPU."""
    _rewrite(
        saved, lambda tensors: tensors.update(dropout_stream=torch.zeros(16, dtype=torch.uint8))
    )
    seat, trained = lab.seat(), lab.seat()
    lab.train(trained, 2)
    load_seat(seat, saved)
    assert seat.step == 2
    for ours, theirs in zip(seat.groups, trained.groups, strict=True):
        assert torch.equal(ours.values, theirs.values)
    assert torch.equal(
        seat.adapter.dropout_stream.get_state(), lab.seat().adapter.dropout_stream.get_state()
    )


def test_other_format_is_refused(lab: Lab, saved: Path) -> None:
    _rewrite(saved, lambda _: None, format="hylorada-seat-0")
    with pytest.raises(InputError, match="format 'hylorada-seat-0', expected 'hylorada-seat-4'"):
        load_seat(lab.seat(), saved)
    save_file({"x": torch.zeros(1)}, saved)
    with pytest.raises(InputError, match="format None"):
        load_seat(lab.seat(), saved)


def test_interrupted_write_leaves_the_old_file(
    lab: Lab, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()
    seat = lab.seat()
    lab.train(seat, 4)

    def fail(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        save_seat(seat, saved, {})
    assert saved.read_bytes() == before
    monkeypatch.undo()
    save_seat(seat, saved, {})  # files of the interrupted write are no obstacle
    second = lab.seat()
    load_seat(second, saved)
    assert second.step == 4


def test_copy_of_a_seat_that_trains_on_is_written_as_the_seat_was(lab: Lab, tmp_path: Path) -> None:
    seat = lab.seat(landmark_bucketing="learnable")
    lab.train(seat, 3)
    save_seat(seat, tmp_path / "at once", {"loss": 1.5})
    copy = copy_seat(seat)
    lab.train(seat, 2)
    write_seat(copy, tmp_path / "later", {"loss": 1.5})
    metadata = []
    for name in ("at once", "later"):
        with safe_open(tmp_path / name, framework="pt") as file:
            metadata.append(file.metadata())
    assert metadata[0] == metadata[1]  # a checksum over all tensors is part of it
    assert load_seat(lab.seat(landmark_bucketing="learnable"), tmp_path / "later") == {"loss": 1.5}


def test_extra_values_keep_their_bits(lab: Lab, tmp_path: Path) -> None:
    extra = {"loss": 0.1 + 0.2, "nested": {"list": [1, None, "ü"]}, "infinite": float("inf")}
    save_seat(lab.seat(), tmp_path / "seat.safetensors", extra)
    assert (
        load_seat(lab.seat(), tmp_path / "seat.safetensors")
        == json.loads(json.dumps(extra))
        == extra
    )
