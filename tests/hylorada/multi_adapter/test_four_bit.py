"""A base of 4 bits computes and trains as a full base with the weights that its bits stand for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from designs import ARCHITECTURES, BARE, DESIGNS
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from hylorada import (
    Adapter,
    BatchOrder,
    HyLoRADAConfig,
    HyLoRADAModel,
    InputError,
    Lanes,
    Pack,
    Seat,
    TrainingConfig,
    load_base,
    probe,
    train_step,
)
from hylorada.adapters.lora import weight_of
from hylorada.base_models.architectures import linear_modules

bitsandbytes = pytest.importorskip("bitsandbytes")

MakeBase = Callable[..., PreTrainedModel]
MakeConfig = Callable[..., HyLoRADAConfig]
Ids = npt.NDArray[np.int32]
_BLOCK = 64  # weights that share a scale


@pytest.fixture(scope="session")
def folder_of(make_base: MakeBase, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Return a function that saves a tiny base of a family and returns its folder."""

    def save(family: str) -> str:
        folder = tmp_path_factory.mktemp("base") / family
        make_base(family).save_pretrained(folder)
        return str(folder)

    return save


def _weight(module: Any) -> Tensor:
    """Return the weight that a module's bits stand for, read nibble by nibble."""
    packed, state = module.weight.data.flatten(), module.weight.quant_state
    nibbles = torch.stack([packed >> 4, packed & 15], dim=1).flatten().long()
    values = state.code[nibbles][: state.shape.numel()]
    scales = state.absmax.repeat_interleave(_BLOCK)[: len(values)]
    full: Tensor = (values * scales).view(state.shape)
    return full


def _twins(folder: str, **options: Any) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return a base of 4 bits, and a full one with the weights that its bits stand for."""
    base, full = load_base(folder, quantization="4bit", **options), load_base(folder, **options)
    for path in linear_modules(full):
        module, weight = full.get_submodule(path), _weight(base.get_submodule(path))
        target = module.get_parameter("weight")
        target.copy_(weight.T if isinstance(module, Conv1D) else weight)
    return base, full


def _seats(base: PreTrainedModel, make_config: MakeConfig, ids: Ids) -> dict[str, Seat]:
    training = TrainingConfig(max_steps=3, batch_size=2, learning_rate=1e-2)
    return {
        name: Seat(
            Adapter(base, make_config(**changes, lora_dropout=0.1), seed=seed),
            training,
            BatchOrder(len(ids), 2, 0),
        )
        for seed, (name, changes) in enumerate(DESIGNS.items())
    }


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_all_designs_train_as_on_the_full_weights(
    folder_of: Callable[..., str],
    make_config: MakeConfig,
    token_blocks: Ids,
    family: str,
    recompute: bool,
) -> None:
    losses = []
    for base in _twins(folder_of(family)):
        pack = Pack(base, gradient_checkpointing=recompute)
        seats = _seats(base, make_config, token_blocks)
        losses.append([list(train_step(pack, seats, token_blocks).values()) for _ in range(3)])
    # fp32 rounds to 1e-7 of losses of about 4, and three steps of training carry that on
    assert losses[0] == [pytest.approx(step, rel=0, abs=1e-5) for step in losses[1]]


@pytest.mark.parametrize("shape", [(6, 16), (5, 10), (8, 64), (3, 96), (7, 9)])
def test_weights_of_any_width_are_read_back(shape: tuple[int, int]) -> None:
    """Blocks that share a scale run on from row to row."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    module = bitsandbytes.nn.Linear4bit(*shape[::-1], bias=False, quant_type="nf4")
    module.weight = bitsandbytes.nn.Params4bit(
        weight, compress_statistics=False, quant_type="nf4"
    ).to("cpu")
    torch.testing.assert_close(weight_of(module), _weight(module), rtol=1e-6, atol=0)


def test_logits_and_gradients_equal_those_on_the_full_weights(
    folder_of: Callable[..., str], make_config: MakeConfig, scramble: Callable[..., Adapter]
) -> None:
    ids, found = torch.arange(16)[None], []
    for base in _twins(folder_of("llama")):
        model = HyLoRADAModel(base, make_config(use_dora=True, target_modules=("all-linear",)))
        scramble(model.adapter)
        output = model(input_ids=ids, labels=ids)
        output.loss.backward()
        found.append([output.logits, *(p.grad for p in model.adapter.parameters())])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_magnitudes_of_dora_are_the_norms_of_the_full_weights(
    folder_of: Callable[..., str], make_config: MakeConfig, family: str
) -> None:
    base = load_base(folder_of(family), quantization="4bit")
    adapter = Adapter(base, make_config(use_dora=True), seed=0)
    for path in adapter.targets:
        expected = torch.linalg.vector_norm(_weight(base.get_submodule(path)), dim=1)
        torch.testing.assert_close(adapter.magnitude_at(path), expected, rtol=1e-6, atol=0)


def test_seats_of_a_pack_compute_as_alone(
    folder_of: Callable[..., str],
    make_config: MakeConfig,
    token_blocks: Ids,
    scramble: Callable[..., Adapter],
) -> None:
    base = load_base(folder_of("llama"), quantization="4bit")
    configs = [make_config(), make_config(**BARE, use_dora=True)]
    adapters = [scramble(Adapter(base, c, seed=k), k) for k, c in enumerate(configs)]
    pack, ids = Pack(base), torch.from_numpy(token_blocks[:4]).long().view(2, 2, -1)
    together = pack.token_nll(adapters, ids)
    for k, adapter in enumerate(adapters):
        alone = pack.token_nll([adapter], ids[k : k + 1])[0]
        torch.testing.assert_close(together[k], alone, rtol=1e-5, atol=1e-5)


def test_lora_equals_that_of_peft(make_config: MakeConfig) -> None:
    ids = torch.arange(32).view(2, 16)
    ours = HyLoRADAModel(load_base("tiny", quantization="4bit"), make_config(**BARE))
    config = ours.active_peft_config
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    settings: dict[str, Any] = {
        "r": config.r,
        "lora_alpha": config.lora_alpha,
        "use_rslora": config.use_rslora,
    }
    stock = get_peft_model(
        load_base("tiny", quantization="4bit"), LoraConfig(**settings, target_modules=targets)
    )
    assert "Linear4bit" in {type(m).__name__ for m in stock.modules() if hasattr(m, "lora_A")}
    generator, pairs = torch.Generator().manual_seed(0), []
    for path in ours.adapter.targets:
        lora = ours.adapter.lora_at(path)
        layer: Any = stock.get_submodule(f"base_model.model.{path}")
        assert lora is not None
        for mine, theirs in ((lora.lora_A, layer.lora_A), (lora.lora_B, layer.lora_B)):
            mine.data.normal_(0.0, 0.03, generator=generator)
            theirs["default"].weight.data.copy_(mine.data)
            pairs.append((mine, theirs["default"].weight))
    losses = [model(input_ids=ids, labels=ids).loss for model in (ours, stock)]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-5)
    for mine, theirs in pairs:
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_bits_are_checked_shared_by_lanes_and_unchanged(
    folder_of: Callable[..., str], make_config: MakeConfig, token_blocks: Ids
) -> None:
    base = load_base(folder_of("llama"), quantization="4bit")
    path = next(iter(linear_modules(base)))
    before = base.get_submodule(path).get_parameter("weight").clone()
    lanes = Lanes(base, cores=2)
    weights = [pack.base.get_parameter(f"{path}.weight") for pack in lanes.packs]
    assert len({w.data_ptr() for w in weights}) == 1 < len(weights)
    seat = next(iter(_seats(base, make_config, token_blocks).values()))
    probe(lanes.packs[0], [seat], torch.from_numpy(token_blocks))
    lanes.close()
    module = base.get_submodule(path)
    assert type(module) is bitsandbytes.nn.Linear4bit
    assert torch.equal(module.get_parameter("weight").data, before.data)


def test_state_is_loaded_and_all_weights_are_counted(
    folder_of: Callable[..., str], make_config: MakeConfig
) -> None:
    base, full = _twins(folder_of("llama"))
    models = [HyLoRADAModel(b, make_config(), seed=k) for k, b in enumerate((base, full))]
    models[0].load_state_dict(models[1].state_dict())
    for ours, theirs in zip(*(m.adapter.parameters() for m in models), strict=True):
        assert torch.equal(ours, theirs)
    assert models[0].num_parameters() == models[1].num_parameters()


def test_saved_adapter_names_the_bits_of_its_base(
    folder_of: Callable[..., str], make_config: MakeConfig, tmp_path: Path
) -> None:
    for name, base in zip(("bits", "full"), _twins(folder_of("llama")), strict=True):
        HyLoRADAModel(base, make_config()).save_pretrained(tmp_path / name)
    saved = [
        json.loads((tmp_path / n / "hylorada_config.json").read_text()) for n in ("bits", "full")
    ]
    assert [values["base"].get("quantization") for values in saved] == ["4bit", None]


def test_merge_is_refused_and_changes_nothing(
    folder_of: Callable[..., str], make_config: MakeConfig
) -> None:
    model = HyLoRADAModel(load_base(folder_of("llama"), quantization="4bit"), make_config(**BARE))
    before = [p.clone() for p in model.base.parameters()]
    with pytest.raises(InputError, match="can't be merged into weights of 4 bits"):
        model.merge()
    for now, then in zip(model.base.parameters(), before, strict=True):
        assert torch.equal(now.data, then.data)


def test_modules_of_8_bits_are_refused_by_name(
    make_base: MakeBase, make_config: MakeConfig
) -> None:
    base = make_base()
    path = next(iter(linear_modules(base)))
    size = base.config.hidden_size
    base.set_submodule(path, bitsandbytes.nn.Linear8bitLt(size, size, bias=False))
    with pytest.raises(InputError, match="modules of class Linear8bitLt are not supported"):
        HyLoRADAModel(base, make_config())


def test_weights_with_rounded_scales_are_refused(
    folder_of: Callable[..., str], make_config: MakeConfig
) -> None:
    """On some CPUs bitsandbytes' own forward rounds the scales, in place."""
    base = load_base(folder_of("llama"), quantization="4bit")
    module: Any = base.get_submodule(next(iter(linear_modules(base))))
    module.weight.quant_state.packing_format_for_cpu = True
    with pytest.raises(InputError, match="4-bit weights; load it afresh"):
        HyLoRADAModel(base, make_config())


def test_base_alone_keeps_its_bits() -> None:
    base, full = _twins("tiny")
    ids = torch.arange(16)[None]
    with torch.no_grad():
        torch.testing.assert_close(base(ids).logits, full(ids).logits, rtol=1e-4, atol=1e-4)
    module: Any = base.get_submodule(next(iter(linear_modules(base))))
    assert not getattr(module.weight.quant_state, "packing_format_for_cpu", False)


@pytest.mark.gpu
def test_compiled_packs_on_a_gpu_train_as_on_the_full_weights(
    folder_of: Callable[..., str], make_config: MakeConfig, token_blocks: Ids
) -> None:
    losses = []
    for base in _twins(folder_of("llama"), dtype=torch.bfloat16, device="cuda"):
        pack = Pack(base, compile_backend="inductor")
        seats = _seats(base, make_config, token_blocks)
        ids = torch.from_numpy(token_blocks).cuda()
        losses.append([list(train_step(pack, seats, ids).values()) for _ in range(3)])
    # bf16 has three digits
    assert losses[0] == [pytest.approx(step, rel=2e-2) for step in losses[1]]
