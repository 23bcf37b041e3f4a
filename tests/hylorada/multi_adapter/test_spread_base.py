"""Bases under accelerate's hooks, as a ``device_map`` loads them, train as bases on one device."""

from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from accelerate import dispatch_model
from accelerate.hooks import remove_hook_from_submodules
from designs import ARCHITECTURES, DESIGNS
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map
from transformers import PreTrainedModel

from hylorada import (
    Adapter,
    BatchOrder,
    HyLoRADAConfig,
    HyLoRADAModel,
    InputError,
    Pack,
    Seat,
    TrainingConfig,
    load_base,
    train_step,
)
from hylorada.adapters.landmarks.base import _mask
from hylorada.adapters.running_pools import Tokens
from hylorada.base_models.architectures import architecture_of, decoder_layers
from hylorada.multi_adapter.injection import LowRank, Slot
from hylorada.multi_adapter.spread_base import moved
from hylorada.runtime.devices import column

MakeBase = Callable[..., PreTrainedModel]
MakeConfig = Callable[..., HyLoRADAConfig]
Ids = npt.NDArray[np.int32]
STEPS = 2
_FIRST, _SECOND = torch.device("lazy:0"), torch.device("lazy:1")  # both fake


def _hooked(base: PreTrainedModel) -> PreTrainedModel:
    """Return the base with a hook on every module, as on several devices."""
    places = dict.fromkeys((name for name, _ in base.named_children()), "cpu")
    dispatched: PreTrainedModel = dispatch_model(base, places, force_hooks=True)
    return dispatched


def _trained(pack: Pack, make_config: MakeConfig, ids: Ids) -> list[list[Any]]:
    training = TrainingConfig(max_steps=STEPS, batch_size=2, learning_rate=1e-2)
    seats = {
        name: Seat(
            Adapter(pack.base, make_config(**changes, lora_dropout=0.1), seed=seed),
            training,
            BatchOrder(len(ids), 2, 0),
        )
        for seed, (name, changes) in enumerate(DESIGNS.items())
    }
    return [list(train_step(pack, seats, ids).values()) for _ in range(STEPS)]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_all_designs_train_under_hooks_as_without(
    make_base: MakeBase, make_config: MakeConfig, token_blocks: Ids, family: str, recompute: bool
) -> None:
    plain = Pack(make_base(family, torch.float64))
    hooked = Pack(_hooked(make_base(family, torch.float64)), gradient_checkpointing=recompute)
    expected = _trained(plain, make_config, token_blocks)
    actual = _trained(hooked, make_config, token_blocks)
    assert actual == [pytest.approx(losses, rel=0, abs=1e-10) for losses in expected]


def test_closed_pack_leaves_the_hooks_as_they_were(make_base: MakeBase) -> None:
    base, ids = _hooked(make_base()), torch.arange(8)[None]
    before, forwards = base(ids).logits, [vars(m).get("forward") for m in base.modules()]
    Pack(base, gradient_checkpointing=True).close()
    assert [vars(m).get("forward") for m in base.modules()] == forwards
    assert torch.equal(base(ids).logits, before)
    remove_hook_from_submodules(base)
    assert torch.equal(base(ids).logits, before)


def test_forward_that_passes_by_the_adapter_is_refused(
    make_base: MakeBase, make_config: MakeConfig
) -> None:
    """Removed hooks leave the forward of the old class on the module."""
    base = _hooked(make_base())
    remove_hook_from_submodules(base)
    with pytest.raises(InputError, match="class Linear has a forward of its own"):
        HyLoRADAModel(base, make_config())


def test_base_that_is_not_in_memory_is_refused(
    make_base: MakeBase, make_config: MakeConfig
) -> None:
    base = make_base()
    base.get_submodule("model.layers.1").to("meta")
    with pytest.raises(InputError, match="its device_map has left parts of it on the CPU or on"):
        HyLoRADAModel(base, make_config())


def test_tensors_of_all_parts_are_moved() -> None:
    update = LowRank(torch.ones(2, 4), torch.ones(2, 6), torch.ones(2, 1, 1, 1), rows=3)
    slot = moved(Slot(update), torch.device("meta"))
    assert slot.update is not None
    assert {t.device.type for t, _ in slot.dynamic()} == {"meta"}
    assert (slot.update.rows, slot.landmarks, slot.update.excess) == (3, None, None)
    tokens = moved(Tokens(torch.ones(2, 3)), torch.device("meta"))
    assert tokens.mask is not None
    assert tokens.mask.is_meta


def test_base_is_loaded_onto_the_devices_of_a_map() -> None:
    base = load_base("tiny", device_map={"": "cpu"})
    assert {p.device.type for p in base.parameters()} == {"cpu"}
    assert not any(p.requires_grad for p in base.parameters())
    assert not base.training


def _to_second(_module: nn.Module, args: Any, kwargs: Any) -> Any:
    """Move all inputs of a module to the second device, as accelerate's hooks do."""
    return tree_map(lambda x: x.to(_SECOND) if isinstance(x, Tensor) else x, (args, kwargs))


def _place(module: nn.Module, mode: FakeTensorMode, second: Collection[nn.Module] = ()) -> None:
    """Put some parts of a module on the second device, the others on the first; both are fake."""
    for part in module.modules():
        device = _SECOND if part in second else _FIRST
        for name, parameter in list(part.named_parameters(recurse=False)):
            fake = mode.from_tensor(parameter).detach().to(device)
            setattr(part, name, nn.Parameter(fake, requires_grad=parameter.requires_grad))
        for name, buffer in list(part.named_buffers(recurse=False)):
            setattr(part, name, mode.from_tensor(buffer).to(device))


@pytest.fixture
def _constants_of_one_mode() -> Iterator[None]:
    """Keep fake constants out of the caches that other tests read."""
    yield
    column.cache_clear()
    _mask.cache_clear()


@pytest.mark.usefixtures("_constants_of_one_mode")
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_every_addition_lies_on_the_device_of_its_layer(
    make_base: MakeBase, make_config: MakeConfig, family: str
) -> None:
    """Fake tensors have shapes and devices, and refuse operations on tensors of two devices."""
    base, architecture = make_base(family), architecture_of(make_base(family).config.model_type)
    dropout = {"lora_dropout": 0.1, "landmark_dropout": 0.1}
    adapters = [Adapter(base, make_config(**c, **dropout), seed=0) for c in DESIGNS.values()]
    *_, last = decoder_layers(base).values()
    norm = base.get_submodule(architecture.final_norm)
    with FakeTensorMode() as mode:
        for adapter in adapters:
            _place(adapter, mode)
        _place(base, mode, {*last.modules(), norm})
        for module in (last, norm):
            module.register_forward_pre_hook(_to_second, with_kwargs=True)
        ids = torch.zeros(len(adapters), 2, 16, dtype=torch.long, device=_FIRST)
        nll = Pack(base).token_nll(adapters, ids)
    assert (nll.shape, nll.device) == ((len(adapters), 2, 15), _FIRST)
    assert nll.requires_grad
