"""Packs whose backward pass recomputes the decoder layers train as packs that keep everything."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from designs import ARCHITECTURES, DESIGNS
from torch import Tensor
from transformers import PreTrainedModel

from hylorada import (
    Adapter,
    BatchOrder,
    Blocks,
    HyLoRADAConfig,
    Lanes,
    Pack,
    Seat,
    TrainingConfig,
    evaluate,
    probe,
    read_step,
    train_step,
)
from hylorada.base_models.architectures import decoder_layers

Ids = npt.NDArray[np.int32]
STEPS = 3
# Every design beside the others, half of them with both kinds of dropout.
SEATS = {
    name: {**changes, **({"lora_dropout": 0.2, "landmark_dropout": 0.3} if i % 2 else {})}
    for i, (name, changes) in enumerate(DESIGNS.items())
}


class Lab:
    """Trains the same seats in packs that recompute and in packs that don't."""

    def __init__(
        self,
        make_base: Callable[..., PreTrainedModel],
        make_config: Callable[..., HyLoRADAConfig],
        ids: Ids,
    ) -> None:
        self._make_base, self._make_config, self.ids = make_base, make_config, ids

    def pack(self, recompute: bool, *place: Any) -> Pack:
        return Pack(self._make_base(*place), gradient_checkpointing=recompute)

    def seats(self, base: PreTrainedModel, names: Any = SEATS) -> dict[str, Seat]:
        training = TrainingConfig(max_steps=STEPS, batch_size=2, learning_rate=1e-2)
        return {
            name: Seat(
                Adapter(base, self._make_config(**SEATS[name]), seed=seed),
                training,
                BatchOrder(len(self.ids), 2, 0),
            )
            for seed, name in enumerate(names)
        }

    def train(self, pack: Pack, seats: Mapping[str, Seat]) -> list[list[Any]]:
        return [list(train_step(pack, seats, self.ids).values()) for _ in range(STEPS)]


@pytest.fixture
def lab(
    make_base: Callable[..., PreTrainedModel],
    make_config: Callable[..., HyLoRADAConfig],
    token_blocks: Ids,
) -> Lab:
    return Lab(make_base, make_config, token_blocks)


def _count_layers(base: PreTrainedModel) -> list[int]:
    """Return a list that grows by one with each forward of the first layer."""
    calls: list[int] = []
    (first, *_) = decoder_layers(base).values()
    norm = next(m for m in first.modules() if "Norm" in type(m).__name__)
    norm.register_forward_hook(lambda *_: calls.append(1))
    return calls


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-6)], ids=["64", "32"]
)
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_all_designs_train_as_without(
    lab: Lab, family: str, dtype: torch.dtype, tolerance: float
) -> None:
    plain, recomputing = (lab.pack(recompute, family, dtype) for recompute in (False, True))
    expected, seats = lab.seats(plain.base), lab.seats(recomputing.base)
    losses = lab.train(plain, expected)
    assert lab.train(recomputing, seats) == [pytest.approx(x, abs=tolerance) for x in losses]
    for name, seat in seats.items():
        torch.testing.assert_close(seat.grads, expected[name].grads, rtol=0, atol=tolerance)
        theirs = expected[name].adapter
        for parameter, other in zip(seat.adapter.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(parameter, other, rtol=0, atol=tolerance)
        state = seat.adapter.dropout_stream.get_state()
        assert torch.equal(state, theirs.dropout_stream.get_state())


def test_layers_run_twice_in_training_and_once_in_evaluation(lab: Lab, blocks: Blocks) -> None:
    pack = lab.pack(True)
    calls, seats = _count_layers(pack.base), lab.seats(pack.base, ["learnable, log", "per layer"])
    lab.train(pack, seats)
    assert len(calls) == 2 * STEPS
    calls.clear()
    evaluate(pack, [s.adapter for s in seats.values()], blocks, rows=100)
    assert len(calls) == 1


def test_layers_keep_little_for_the_backward_pass(lab: Lab) -> None:
    """Beyond the inputs of the layers, what is kept lies outside of them."""

    def kept(recompute: bool) -> int:
        pack, storages = lab.pack(recompute), {}
        adapters = [s.adapter.train() for s in lab.seats(pack.base, ["per layer"]).values()]
        own = {p.untyped_storage().data_ptr() for p in (*pack.base.parameters(),)}

        def note(tensor: Tensor) -> Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            nll = pack.token_nll(adapters, torch.from_numpy(lab.ids[None]).long())
        assert nll.requires_grad
        return sum(size for place, size in storages.items() if place not in own)

    assert kept(True) < kept(False) / 3


def test_memory_that_runs_out_in_a_recomputation_splits_the_pack(lab: Lab) -> None:
    names = ["fixed, log", "per layer", "learnable, random"]
    expected = lab.train(plain := lab.pack(False), lab.seats(plain.base, names))
    pack, calls = lab.pack(True), []

    def run_out(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise torch.OutOfMemoryError

    (first, *_) = decoder_layers(pack.base).values()
    first.get_submodule("mlp").register_forward_pre_hook(run_out)
    assert lab.train(pack, lab.seats(pack.base, names)) == [
        pytest.approx(losses, abs=1e-5) for losses in expected
    ]
    assert pack.max_seats == 1


def test_checks_before_a_study_find_the_same(lab: Lab) -> None:
    pack = lab.pack(True)
    ids = torch.from_numpy(lab.ids)
    probe(pack, list(lab.seats(pack.base).values()), ids)
    leaking = lab.seats(pack.base, ["per layer"])["per layer"]
    leaking.adapter.landmark.noncausal = True  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"depends on later ones .* through 'model\.layers\.1'"):
        probe(pack, [leaking], ids)


def test_lanes_recompute_as_their_packs_do(lab: Lab) -> None:
    losses = []
    for recompute in (False, True):
        lanes = Lanes(lab.pack(False).base, gradient_checkpointing=recompute, cores=2)
        seats = lab.seats(lanes.base, ["learnable, log", "attention", "per layer"])
        losses.append(read_step(lanes.start_step(seats, lab.ids)))
        lanes.close()
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_base_is_restored_and_not_copied_while_it_is_changed(lab: Lab) -> None:
    pack = lab.pack(True)
    with pytest.raises(RuntimeError, match="compiled or checkpointed layers can't be copied"):
        copy.deepcopy(pack)
    pack.close()
    assert not any("forward" in vars(layer) for layer in decoder_layers(pack.base).values())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_layers_are_recomputed_too(
    lab: Lab, make_base: Callable[..., PreTrainedModel], backend: str
) -> None:
    names = ["learnable, log", "per layer", "LoRA"]  # without dropout, which runs uncompiled

    def trained(**options: Any) -> list[list[Any]]:
        torch._dynamo.reset()
        pack = Pack(make_base(), **options)
        losses = lab.train(pack, lab.seats(pack.base, names))
        pack.close()
        return losses

    expected = trained()
    actual = trained(compile_backend=backend, gradient_checkpointing=True)
    assert actual == [pytest.approx(losses, abs=1e-5) for losses in expected]
