"""The probe accepts sound adapters and names the faults of others."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from designs import DESIGNS, FAMILIES
from torch import nn
from transformers import PreTrainedModel

from hylorada import (
    Adapter,
    BatchOrder,
    HyLoRADAConfig,
    InputError,
    Pack,
    Seat,
    TrainingConfig,
    probe,
)
from hylorada.adapters.running_pools import Tokens

MakeBase = Callable[..., PreTrainedModel]
MakeConfig = Callable[..., HyLoRADAConfig]


class Lab:
    def __init__(
        self, base: PreTrainedModel, make_config: MakeConfig, ids: npt.NDArray[np.int32]
    ) -> None:
        self.base, self.make_config, self.ids = base, make_config, torch.from_numpy(ids)

    def seat(self, **changes: Any) -> Seat:
        adapter = Adapter(self.base, self.make_config(**changes), seed=1)
        return Seat(adapter, TrainingConfig(batch_size=2), BatchOrder(len(self.ids), 2, 0))

    def problems(self, *seats: Seat) -> list[str]:
        with pytest.raises(InputError) as caught:
            probe(Pack(self.base), seats, self.ids)
        return caught.value.problems


@pytest.fixture
def make_lab(
    make_base: MakeBase, make_config: MakeConfig, token_blocks: npt.NDArray[np.int32]
) -> Callable[..., Lab]:
    return lambda *args: Lab(make_base(*args), make_config, token_blocks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_design_passes(make_lab: Callable[..., Lab], family: str, dtype: torch.dtype) -> None:
    lab = make_lab(family, dtype)
    probe(Pack(lab.base), [lab.seat(**changes) for changes in DESIGNS.values()], lab.ids)


@pytest.mark.parametrize(
    ("design", "place"), [("global", "model.norm"), ("per_layer", "model.layers.1")]
)
def test_pooling_over_later_tokens_is_named_unless_it_was_asked_for(
    make_lab: Callable[..., Lab], design: str, place: str
) -> None:
    lab = make_lab()
    honest = lab.seat(landmark_design=design, replication_noncausal_pooling=True)
    probe(Pack(lab.base), [lab.seat(), honest], lab.ids)
    leaking = lab.seat(landmark_design=design)
    leaking.adapter.landmark.noncausal = True  # type: ignore[union-attr]
    misapplied, problem = lab.problems(lab.seat(), leaking)
    assert misapplied == "replication_noncausal_pooling is True in the trainer, False was requested"
    assert problem.startswith(
        f"landmark_design {design!r}: the prediction from 1 tokens depends on later ones"
    )
    assert problem.endswith(f"through {place!r}")


def test_leak_within_chunks_is_found(
    make_lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe finds a leak whose borders are at powers of two."""

    def by_chunk(_tokens: Tokens, x: torch.Tensor, **_: Any) -> torch.Tensor:
        chunks = x.view(len(x), -1, 8, x.shape[2])
        return chunks.mean(2, keepdim=True).expand_as(chunks).reshape(x.shape)

    monkeypatch.setattr(Tokens, "running_mean", by_chunk)
    lab = make_lab()
    assert "depends on later ones" in lab.problems(lab.seat(landmark_design="global"))[0]


def test_groups_that_look_ahead_are_found_though_only_training_uses_them(
    make_lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_of_a_group(positions: torch.Tensor, group: int, heads: int) -> torch.Tensor:
        groups = positions // group
        return (groups[:, :, None] == groups[:, None])[:, None].expand(-1, heads, -1, -1)

    monkeypatch.setattr("hylorada.adapters.shifted_sparse_attention.visible_keys", all_of_a_group)
    lab = make_lab()
    (problem,) = lab.problems(lab.seat(shifted_sparse_attention=True, landmarks=False))
    assert "the prediction from 1 tokens depends on later ones" in problem
    assert problem.endswith("through 'model.layers.1'")


def test_other_design_than_asked_for_is_named(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    seat = lab.seat(landmark_design="per_layer")
    other = lab.seat(landmark_design="global")
    other.adapter.config = seat.adapter.config
    assert (
        lab.problems(other)[0]
        == "landmark_design is 'global' in the trainer, 'per_layer' was requested"
    )


def test_fewer_blocks_than_a_batch(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    lab.ids = lab.ids[:1]
    seats = [
        Seat(lab.seat().adapter, TrainingConfig(batch_size=4), BatchOrder(1, 4, 0))
        for _ in range(2)
    ]
    probe(
        Pack(lab.base),
        [*seats, lab.seat(landmark_design="global", replication_noncausal_pooling=True)],
        lab.ids,
    )


def test_memory_for_one_seat_at_a_time_is_enough(
    make_lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make_lab()
    pack = Pack(lab.base)
    whole, limit = pack.token_nll, [1]

    def limited(adapters: Any, ids: torch.Tensor) -> torch.Tensor:
        if len(adapters) > limit[0]:
            raise torch.OutOfMemoryError
        return whole(adapters, ids)

    monkeypatch.setattr(pack, "token_nll", limited)
    probe(pack, [lab.seat(), lab.seat(landmarks=False)], lab.ids)
    limit[0] = 0
    with pytest.raises(InputError, match="a single trial does not fit into the memory of cpu"):
        probe(pack, [lab.seat()], lab.ids)


def test_base_that_looks_ahead_is_named(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    lab.base.get_submodule("model.layers.1.mlp").register_forward_hook(
        lambda _m, _i, out: out + out.mean(1, True)
    )
    (problem,) = lab.problems(lab.seat(landmarks=False))
    assert problem.startswith(
        "adapter without landmarks: the prediction from 1 tokens depends on later ones"
    )
    assert problem.endswith("through 'model.layers.1'")


def test_parameter_without_effect_is_named(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    adapter = Adapter(lab.base, lab.make_config(landmarks=False), seed=1)
    adapter.register_parameter("forgotten", nn.Parameter(torch.ones(3)))
    seat = Seat(adapter, TrainingConfig(batch_size=2), BatchOrder(len(lab.ids), 2, 0))
    assert lab.problems(seat) == [
        "adapter without landmarks: parameter 'forgotten' gets no gradient"
    ]


def test_setting_that_did_not_arrive_is_named(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    seat = lab.seat()
    seat.optimizer.param_groups[0]["weight_decay"] = 0.5
    assert lab.problems(seat) == ["weight_decay is 0.5 in the trainer, 0.0 was requested"]


def test_base_that_moves_is_named(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab("gpt_neox")

    def drift(module: nn.Module, _inputs: Any, _output: Any) -> None:
        with torch.no_grad():
            module.get_parameter("bias").add_(1e-3)

    lab.base.get_submodule("gpt_neox.layers.0.attention.dense").register_forward_hook(drift)
    assert lab.problems(lab.seat(landmarks=False)) == [
        "training changed the frozen base's 'gpt_neox.layers.0.attention.dense.bias'"
    ]


def test_base_that_learns_is_named(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    pack = Pack(lab.base)
    lab.base.get_parameter("model.norm.weight").requires_grad_()
    with pytest.raises(InputError, match=r"the frozen base's 'model.norm.weight' got a gradient"):
        probe(pack, [lab.seat()], lab.ids)
