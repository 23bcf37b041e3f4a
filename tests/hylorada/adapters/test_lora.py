"""LoRA and position bias: the formula by hand, and stock PEFT as the reference."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from hylorada import Adapter, HyLoRADAConfig, HyLoRADAModel, Pack, PositionBias
from hylorada.adapters.buckets import fixed_edges
from hylorada.adapters.lora import LoRA, initial_magnitude, updated_norms, weight_of
from hylorada.adapters.running_pools import Tokens
from hylorada.multi_adapter.pack import _Pass

BARE: dict[str, Any] = {"r": 4, "lora_alpha": 8.0, "position_bias": False, "landmarks": False}
FAMILIES = ["llama", "gpt2", "gpt_neox"]


def _ours_and_stock(
    base: PreTrainedModel, again: PreTrainedModel, config: HyLoRADAConfig, targets: list[str]
) -> tuple[HyLoRADAModel, PeftModel, dict[str, nn.Parameter]]:
    """Return our model, PEFT's with the same factors on a copy, and PEFT's factors by our names."""
    ours = HyLoRADAModel(base, config, seed=3)
    generator = torch.Generator().manual_seed(1)
    for module in ours.adapter.modules():
        if isinstance(module, LoRA):
            module.lora_B.data.normal_(0.0, 0.1, generator=generator)
    for magnitude in ours.adapter.magnitudes.values():
        magnitude.data *= 1 + 0.1 * torch.randn(magnitude.shape, generator=generator)
    lora = LoraConfig(
        r=config.r,
        lora_alpha=config.lora_alpha,  # type: ignore[arg-type]
        use_rslora=config.use_rslora,
        use_dora=config.use_dora,
        target_modules=targets,
        fan_in_fan_out=base.config.model_type == "gpt2",
    )
    stock: PeftModel = get_peft_model(again, lora).to(base.dtype)
    named = dict(stock.named_parameters())
    factors = {}
    for path in ours.adapter.targets:
        for factor in ("lora_A", "lora_B"):
            parameter = named[f"base_model.model.{path}.{factor}.default.weight"]
            name = f"lora.{path.replace('.', '/')}.{factor}"
            parameter.data.copy_(ours.adapter.get_parameter(name).data)
            factors[name] = parameter
        magnitude = ours.adapter.magnitude_at(path)
        if magnitude is not None:
            parameter = named[f"base_model.model.{path}.lora_magnitude_vector.default.weight"]
            torch.testing.assert_close(
                parameter.data, initial_magnitude(base.get_submodule(path), base.dtype)
            )
            parameter.data.copy_(magnitude)
            factors[f"magnitudes.{path.replace('.', '/')}"] = parameter
    assert factors.keys() == {n for n, _ in ours.adapter.named_parameters()}
    assert len(factors) == sum(p.requires_grad for p in stock.parameters())
    return ours, stock, factors


DEFAULT_TARGETS = {
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "gpt2": ["c_attn", "attn.c_proj"],
    "gpt_neox": ["query_key_value", "attention.dense"],
}


@pytest.mark.parametrize(
    "kind", [{}, {"use_rslora": False}, {"use_dora": True}], ids=["rsLoRA", "LoRA", "DoRA"]
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("family", FAMILIES)
def test_forward_and_training_equal_stock_peft(
    make_base: Callable[..., PreTrainedModel],
    make_config: Callable[..., HyLoRADAConfig],
    token_blocks: npt.NDArray[np.int32],
    family: str,
    dtype: torch.dtype,
    tolerance: float,
    kind: dict[str, Any],
) -> None:
    config, targets = make_config(**BARE, **kind), DEFAULT_TARGETS[family]
    ours, stock, factors = _ours_and_stock(
        make_base(family, dtype), make_base(family, dtype), config, targets
    )
    pairs = [(ours, ours.adapter.parameters()), (stock, factors.values())]
    optimizers = [torch.optim.AdamW(parameters, lr=1e-3) for _, parameters in pairs]
    for step in range(20):
        ids = torch.from_numpy(token_blocks[step : step + 2]).long()
        losses = []
        for (model, _), optimizer in zip(pairs, optimizers, strict=True):
            optimizer.zero_grad()
            # not the model's built-in loss, which is fp32 on an fp64 base
            loss = F.cross_entropy(
                model(input_ids=ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
            )
            loss.backward()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], abs=tolerance)
        for name, parameter in ours.adapter.named_parameters():
            close = tolerance * (
                3 if family == "gpt_neox" else 1
            )  # whose activations here are the largest
            torch.testing.assert_close(
                parameter.grad, factors[name].grad, rtol=10 * tolerance, atol=close
            )
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("use_dora", [False, True])
def test_feed_forward_targets_equal_stock_peft(
    make_base: Callable[..., PreTrainedModel],
    make_config: Callable[..., HyLoRADAConfig],
    use_dora: bool,
) -> None:
    targets = ["mlp.c_proj", "c_fc", "c_attn"]
    config = make_config(**BARE, target_modules=tuple(targets), use_dora=use_dora)
    bases = make_base("gpt2", torch.float64), make_base("gpt2", torch.float64)
    ours, stock, _ = _ours_and_stock(*bases, config, targets)
    ids = torch.arange(32).view(2, 16)
    torch.testing.assert_close(ours(ids).logits, stock(input_ids=ids).logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("use_rslora", "scaling"), [(True, 8.0), (False, 2.0)])
def test_scaling_follows_the_rule(use_rslora: bool, scaling: float) -> None:
    assert HyLoRADAConfig(r=16, lora_alpha=32, use_rslora=use_rslora).scaling == scaling


def test_norms_of_the_updated_weight_equal_those_of_its_sum() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = {"weight": (7, 5), "a": (3, 2, 5), "b": (3, 7, 2)}
    weight, a, b = (
        torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes.values()
    )
    scaling = torch.tensor([0.5, 2.0, 0.0], dtype=torch.float64)
    expected = torch.linalg.vector_norm(weight + scaling[:, None, None] * (b @ a), dim=2)
    torch.testing.assert_close(updated_norms(weight, a, b, scaling), expected)


def test_small_magnitudes_survive_a_bf16_base(
    make_base: Callable[..., PreTrainedModel], make_config: Callable[..., HyLoRADAConfig]
) -> None:
    """A factor of 1.001 is 1 in bf16; what it adds is not nothing."""
    model = HyLoRADAModel(make_base("llama", torch.bfloat16), make_config(**BARE, use_dora=True))
    path = next(iter(model.adapter.targets))
    magnitude = model.adapter.magnitude_at(path)
    assert magnitude is not None
    magnitude.data *= 1.001
    update = (
        _Pass([model.adapter], torch.arange(4)[None], 1, Tokens(), model.base).slots()[path].update
    )
    assert update is not None
    assert update.excess is not None
    torch.testing.assert_close(
        update.excess.float(), torch.full_like(update.excess, 1e-3).float(), rtol=0.01, atol=0
    )


def test_factors_start_orthonormal_and_zero() -> None:
    wide = LoRA(6, 5, r=3, seed=0, dtype=torch.float64)
    torch.testing.assert_close(wide.lora_A @ wide.lora_A.T, torch.eye(3, dtype=torch.float64))
    tall = LoRA(2, 5, r=3, seed=0, dtype=torch.float64)
    torch.testing.assert_close(tall.lora_A.T @ tall.lora_A, torch.eye(2, dtype=torch.float64))
    assert wide.lora_B.shape == (5, 3)
    assert not wide.lora_B.any()


def test_arms_with_one_seed_start_from_the_same_factors(
    make_base: Callable[..., PreTrainedModel], make_config: Callable[..., HyLoRADAConfig]
) -> None:
    base = make_base()
    arms = [
        make_config(),
        make_config(landmark_bucketing="learnable"),
        make_config(**BARE | {"r": 2}),
    ]
    first, *others = [dict(Adapter(base, c, seed=5).lora.named_parameters()) for c in arms]
    for other in others:
        assert all(torch.equal(first[n], p) for n, p in other.items())
    stranger = dict(Adapter(base, arms[0], seed=6).lora.named_parameters())
    assert not any(torch.equal(first[n], p) for n, p in stranger.items() if n.endswith("lora_A"))


def test_position_bias_factors_follow_the_formula() -> None:
    module = PositionBias(3, max_positions=16, num_buckets=4)
    with torch.no_grad():
        module.bias.copy_(torch.tensor([0.3, -0.2, 2.0, -1.0]))
        module.layer_gates.copy_(torch.tensor([0.0, 1.0, -5.0]))
    found = module(torch.tensor([[0, 1, 2, 5, 15, 40], [9, 9, 0, 0, 3, 3]]))
    edges = fixed_edges(4, 16, "log")
    for layer, gate in enumerate([0.0, 1.0, -5.0]):
        for row, positions in enumerate([[0, 1, 2, 5, 15, 40], [9, 9, 0, 0, 3, 3]]):
            for t, p in enumerate(positions):
                bias = [0.3, -0.2, 2.0, -1.0][sum(p >= e for e in edges)]
                expected = 1 + math.tanh(bias) / (1 + math.exp(-gate))
                assert found[layer, row, t].item() == pytest.approx(expected, abs=1e-6)


def test_position_bias_starts_at_one() -> None:
    assert torch.equal(
        PositionBias(2, max_positions=512)(torch.arange(600)[None]), torch.ones(2, 1, 600)
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_position_bias_scales_each_layers_update(
    make_base: Callable[..., PreTrainedModel],
    make_config: Callable[..., HyLoRADAConfig],
    family: str,
) -> None:
    """With a constant bias the factor is one number a layer, so it can be folded into B."""
    base = make_base(family, torch.float64)
    biased = HyLoRADAModel(base, make_config(**BARE | {"position_bias": True}), seed=1)
    folded = HyLoRADAModel(base, make_config(**BARE), seed=1)
    assert biased.adapter.position_bias is not None
    with torch.no_grad():
        biased.adapter.position_bias.bias.fill_(0.8)
        biased.adapter.position_bias.layer_gates.copy_(torch.tensor([-1.0, 2.0]))
        for path, target in biased.adapter.targets.items():
            ours, theirs = biased.adapter.lora_at(path), folded.adapter.lora_at(path)
            assert ours is not None
            assert theirs is not None
            ours.lora_B.normal_(0.0, 0.1, generator=torch.Generator().manual_seed(0))
            factor = 1 + math.tanh(0.8) / (1 + math.exp(-[-1.0, 2.0][target.layer]))
            theirs.lora_B.copy_(ours.lora_B * factor)
    ids = torch.arange(32).view(2, 16)
    torch.testing.assert_close(biased(ids).logits, folded(ids).logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_pack_adds_to_every_module_what_lora_forward_returns(
    make_base: Callable[..., PreTrainedModel],
    make_config: Callable[..., HyLoRADAConfig],
    token_blocks: npt.NDArray[np.int32],
    family: str,
) -> None:
    base = make_base(family, torch.float64)
    configs = (make_config(**BARE), make_config(**BARE | {"position_bias": True, "lora_alpha": 3}))
    adapters = [Adapter(base, c, seed=k).eval() for k, c in enumerate(configs)]
    for adapter in adapters:
        for parameter in adapter.parameters():
            parameter.data.normal_(generator=torch.Generator().manual_seed(len(parameter)))
    pack, calls = Pack(base), {}
    paths = list(adapters[0].targets)
    for path in paths:
        base.get_submodule(path).register_forward_hook(
            lambda module, args, output, path=path: calls.update({path: (args[0], output)})
        )
    pack.token_nll(adapters, torch.from_numpy(token_blocks[:4]).long().view(2, 2, -1))
    for path in paths:
        module, (x, output) = base.get_submodule(path), calls[path]
        frozen = F.linear(x, weight_of(module), dict(module.named_parameters()).get("bias"))
        positions = torch.arange(x.shape[1])[None]
        for k, adapter in enumerate(adapters):
            lora, bias = adapter.lora_at(path), adapter.position_bias
            assert lora is not None
            layer = adapter.targets[path].layer
            factors = None if bias is None else bias(positions)[layer]
            rows = slice(2 * k, 2 * k + 2)
            expected = frozen[rows] + lora(x[rows], adapter.config.scaling, factors)
            torch.testing.assert_close(output[rows], expected, rtol=0, atol=1e-12)
