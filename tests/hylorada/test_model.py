"""A model with one adapter: only its own calls use it (see also test_contract)."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from designs import DESIGNS
from transformers import PreTrainedModel

from hylorada import (
    Adapter,
    HyLoRADAConfig,
    HyLoRADAModel,
    InputError,
    Pack,
    TrainingConfig,
    load_adapter,
)

MakeBase = Callable[..., PreTrainedModel]
MakeConfig = Callable[..., HyLoRADAConfig]
MakeModel = Callable[..., HyLoRADAModel]

FAMILIES = ["llama", "gpt2", "gpt_neox"]
LEARNABLE: dict[str, Any] = {"landmark_bucketing": "learnable"}


def _ids(rows: int, length: int = 16, seed: int = 0) -> torch.Tensor:
    return torch.randint(50, (rows, length), generator=torch.Generator().manual_seed(seed))


def test_two_open_packs_over_one_base_do_not_add_up(
    make_base: MakeBase, make_config: MakeConfig, scramble: Callable[..., Adapter]
) -> None:
    base, ids = make_base(), _ids(2)
    plain = base(ids).logits
    models = [HyLoRADAModel(base, make_config(), seed=s).eval() for s in (0, 1)]
    scramble(models[0].adapter)
    adapted = models[0](ids).logits
    assert torch.equal(models[1](ids).logits, plain)
    assert torch.equal(models[0](ids).logits, adapted)
    assert not torch.allclose(adapted, plain)


def test_adapter_is_off_outside_a_pass_also_after_an_error(
    make_base: MakeBase, make_config: MakeConfig, scramble: Callable[..., Adapter]
) -> None:
    base, ids = make_base(), _ids(2)
    plain = base(ids).logits
    model = HyLoRADAModel(base, make_config()).eval()
    scramble(model.adapter)
    with pytest.raises(IndexError, match="index out of range"):
        model(ids + 1000)
    assert torch.equal(base(ids).logits, plain)
    with pytest.raises(KeyError, match="inside"), model.disable_adapter():
        raise KeyError("inside")
    assert not torch.allclose(model(ids).logits, plain)


def test_training_mode_switches_the_adapters_dropout_alone(
    make_base: MakeBase, make_config: MakeConfig, scramble: Callable[..., Adapter]
) -> None:
    model = HyLoRADAModel(make_base(), make_config(lora_dropout=0.5))
    scramble(model.adapter)
    ids = _ids(2)
    model.train()
    assert not any(m.training for m in model.base.modules())
    assert not torch.equal(model(ids).logits, model(ids).logits)
    model.eval()
    assert torch.equal(model(ids).logits, model(ids).logits)


def test_built_in_loss_is_the_mean_of_the_packs(
    make_base: MakeBase, make_config: MakeConfig, scramble: Callable[..., Adapter]
) -> None:
    for family in FAMILIES:
        model = HyLoRADAModel(make_base(family), make_config(**LEARNABLE)).eval()
        scramble(model.adapter)
        ids = _ids(3)
        nll = Pack(model.base).token_nll([model.adapter], ids[None])
        assert model(ids, labels=ids).loss.item() == pytest.approx(nll.mean().item(), rel=1e-6)


def test_learned_boundaries_are_token_positions(
    make_base: MakeBase, make_config: MakeConfig
) -> None:
    base = make_base()
    model = HyLoRADAModel(base, make_config(**LEARNABLE, boundary_init="uniform"))
    boundaries = model.get_learned_boundaries()
    assert boundaries is not None
    assert boundaries.tolist() == [3.5, 7.5, 11.5]
    assert HyLoRADAModel(base, make_config()).get_learned_boundaries() is None
    assert model.active_peft_config.landmark_bucketing == "learnable"
    assert model.config is base.config  # as in PEFT's models


def _gradients(model: HyLoRADAModel, ids: torch.Tensor) -> dict[str, torch.Tensor | None]:
    model.zero_grad()
    model(ids, labels=ids).loss.backward()
    return {name: parameter.grad for name, parameter in model.adapter.named_parameters()}


@pytest.mark.parametrize("design", DESIGNS)
def test_deep_copy_computes_the_same_and_shares_nothing(make_model: MakeModel, design: str) -> None:
    model, ids = make_model(**DESIGNS[design]), _ids(2)
    twin = copy.deepcopy(model)
    logits, gradients = model(ids).logits, _gradients(model, ids)
    assert torch.equal(twin(ids).logits, logits)
    for name, gradient in _gradients(twin, ids).items():
        assert gradient is not None, name
        torch.testing.assert_close(gradient, gradients[name], rtol=0, atol=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    model.close()
    assert torch.equal(twin(ids).logits, logits)


def test_deep_copy_of_a_merged_model_that_checkpoints(
    make_model: MakeModel, make_base: MakeBase
) -> None:
    model, ids = make_model(**LEARNABLE, position_bias=False), _ids(2)
    expected = _gradients(model, ids)
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model.merge()
    twin = copy.deepcopy(model)
    twin.unmerge()
    for name, gradient in _gradients(twin.train(), ids).items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=1e-12)
    assert all(p.grad is None for p in model.parameters())
    twin.close()
    fresh = make_base(dtype=torch.float64)
    assert torch.equal(twin.base(ids).logits, fresh(ids).logits)
    assert {type(m) for m in twin.base.modules()} == {type(m) for m in fresh.modules()}
    assert not any(m._forward_hooks for m in twin.base.modules())


def test_deep_copied_adapter_of_a_seat_has_parameters_of_its_own(
    make_base: MakeBase, make_config: MakeConfig
) -> None:
    adapter = Adapter(make_base(), make_config(), seed=0)
    adapter.flatten()
    twin = copy.deepcopy(adapter)
    torch.nn.init.ones_(next(twin.lora.parameters()))
    expected = torch.cat([p.detach().reshape(-1) for p in twin.lora.parameters()])
    assert torch.equal(twin.lora_vector(), expected)
    assert not torch.equal(twin.lora_vector(), adapter.lora_vector())


def test_base_with_compiled_layers_cannot_be_copied(make_model: MakeModel) -> None:
    model = make_model()
    pack = Pack(model.base, compile_backend="eager")
    with pytest.raises(RuntimeError, match="compiled or checkpointed layers can't be copied"):
        copy.deepcopy(model)
    pack.close()
    assert torch.equal(copy.deepcopy(model)(_ids(1)).logits, model(_ids(1)).logits)


def test_disabled_twice_stays_disabled_until_the_outer_exit(
    make_model: MakeModel, make_base: MakeBase
) -> None:
    model, ids = make_model(), _ids(2)
    adapted, plain = model(ids).logits, make_base(dtype=torch.float64)(ids).logits
    with model.disable_adapter():
        with pytest.raises(KeyError, match="inside"), model.disable_adapter():
            raise KeyError("inside")
        assert torch.equal(model(ids).logits, plain)
    assert torch.equal(model(ids).logits, adapted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_cast_model_is_the_adapter_in_fp32_on_a_cast_base(
    make_model: MakeModel, make_base: MakeBase, make_config: MakeConfig, dtype: torch.dtype
) -> None:
    model, ids = make_model(dtype=torch.float32, **LEARNABLE), _ids(2)
    other = HyLoRADAModel(make_base(dtype=dtype), make_config(**LEARNABLE)).eval()
    other.adapter.load_state_dict(model.adapter.state_dict())
    before = {name: p.detach().clone() for name, p in model.adapter.named_parameters()}
    cast = model.half() if dtype == torch.float16 else model.to(dtype)
    assert cast is model
    assert {p.dtype for p in model.base.parameters()} == {dtype}
    for name, parameter in model.adapter.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, before[name])  # it never passed through half precision
    assert torch.equal(model(ids).logits, other(ids).logits)


def test_adapter_on_a_cast_base_takes_small_steps(make_model: MakeModel) -> None:
    """The adapter stays fp32: in bf16 a step of 1e-3 at 1.0 rounds to nothing."""
    model = make_model(dtype=torch.float32).to(torch.bfloat16)
    scale = model.adapter.get_parameter("landmark.scale")
    torch.nn.init.ones_(scale)
    model(_ids(2), labels=_ids(2)).loss.backward()
    assert scale.grad is not None
    assert scale.grad.dtype == torch.float32
    step = -1e-3 * scale.grad.sign().item()
    torch.optim.SGD([scale], lr=1e-3 / scale.grad.abs().item()).step()
    assert scale.item() == pytest.approx(1 + step, abs=1e-6)


def test_adapter_follows_its_base_to_fp64_and_to_other_devices(make_model: MakeModel) -> None:
    model, ids = make_model(dtype=torch.float32), _ids(1)
    logits = model(ids).logits
    torch.testing.assert_close(model.double()(ids).logits.float(), logits, rtol=0, atol=1e-4)
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    model.to("meta", torch.bfloat16)
    assert {(p.device.type, p.dtype) for p in model.base.parameters()} == {("meta", torch.bfloat16)}
    assert {(p.device.type, p.dtype) for p in model.adapter.parameters()} == {
        ("meta", torch.float32)
    }


def test_adapter_in_training_is_not_moved_away_from_its_seat(make_model: MakeModel) -> None:
    model = make_model(dtype=torch.float32)
    model.adapter.flatten()
    model.to(torch.bfloat16)  # the adapter stays as it is
    with pytest.raises(RuntimeError, match="an adapter in training can't be moved or cast"):
        model.double()
    assert {p.dtype for p in model.base.parameters()} == {torch.bfloat16}


@pytest.mark.gpu
def test_moved_adapter_draws_dropout_on_its_new_device(make_model: MakeModel) -> None:
    model, ids = make_model(lora_dropout=0.5), _ids(2)
    logits = model(ids).logits
    model.to("cuda")
    torch.testing.assert_close(model(ids.cuda()).logits.cpu(), logits, rtol=0, atol=1e-8)
    assert not torch.equal(model.train()(ids.cuda()).logits.cpu(), logits)


def _wrapped(kind: str, base: PreTrainedModel, config: HyLoRADAConfig) -> Any:
    lora = peft.LoraConfig(r=2, target_modules=["q_proj"])
    if kind == "ours":
        return HyLoRADAModel(base, config)
    if kind == "peft":
        return peft.get_peft_model(base, lora)
    return peft.inject_adapter_in_model(lora, base) if kind == "injected" else "tiny"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "ours",
            r"base must be an unwrapped PreTrainedModel of .* got hylorada\.model\.HyLoRADAModel",
        ),
        (
            "peft",
            r"an unwrapped PreTrainedModel of transformers, got peft\.peft_model\.PeftModel",
        ),
        (
            "text",
            r"base must be an unwrapped PreTrainedModel of transformers, got builtins\.str",
        ),
        (
            "injected",
            r"free of other adapters, .* layers of PEFT: peft\.tuners\.lora\.layer\.Linear",
        ),
    ],
)
def test_what_is_no_base_is_named(
    make_base: MakeBase, make_config: MakeConfig, tmp_path: Path, kind: str, message: str
) -> None:
    HyLoRADAModel(make_base(), make_config()).save_pretrained(tmp_path)
    base = _wrapped(kind, make_base(), make_config())
    for use in (
        lambda: HyLoRADAModel(base, make_config()),
        lambda: Pack(base),
        lambda: load_adapter(base, tmp_path),
    ):
        with pytest.raises(InputError, match=message):
            use()


@pytest.mark.parametrize(
    "config", [None, {"r": 8}, TrainingConfig()], ids=["none", "dict", "other"]
)
def test_config_of_another_kind_is_refused(make_base: MakeBase, config: Any) -> None:
    with pytest.raises(InputError) as caught:
        HyLoRADAModel(make_base(), config)
    assert caught.value.problems == [f"config must be a HyLoRADAConfig, got {config!r}"]


def test_seed_of_any_whole_number_is_the_plain_one(
    make_base: MakeBase, make_config: MakeConfig, tmp_path: Path
) -> None:
    seeds: tuple[Any, ...] = (3, np.int64(3))
    plain, other = (HyLoRADAModel(make_base(), make_config(), seed=s) for s in seeds)
    for ours, theirs in zip(plain.adapter.parameters(), other.adapter.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    other.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "hylorada_config.json").read_text())["seed"] == 3
    seed: Any
    for seed in (None, 3.0, "3"):
        with pytest.raises(InputError, match=rf"^seed must be a whole number, got {seed!r}"):
            HyLoRADAModel(make_base(), make_config(), seed=seed)


def test_replicas_of_data_parallel_are_refused(make_model: MakeModel) -> None:
    # nn.DataParallel calls it on every module that it replicates
    with pytest.raises(InputError, match=r"nn\.DataParallel is not supported; start with torchrun"):
        make_model()._replicate_for_data_parallel()


@pytest.mark.parametrize(
    "call", [{}, {"inputs_embeds": None}, {"attention_mask": torch.ones(1, 4)}]
)
def test_call_without_tokens_is_refused(make_model: MakeModel, call: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="no tokens given: pass input_ids"):
        make_model()(**call)


def test_closed_model_is_not_saved(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model()
    model.close()
    with pytest.raises(RuntimeError, match="this model is closed"):
        model.save_pretrained(tmp_path / "adapter")
    assert not list(tmp_path.iterdir())
