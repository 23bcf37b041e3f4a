"""The published entry points compute what a model with the same landmarks does, and train."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel, Trainer, TrainingArguments

from hylorada import (
    Adapter,
    HyLoRADAConfig,
    HyLoRADAModel,
    InputError,
    Pack,
    RegisteredLandmarks,
    apply_per_layer_landmarks,
    count_landmark_params,
    register_landmark_hook,
)

MakeBase = Callable[..., PreTrainedModel]
MakeConfig = Callable[..., HyLoRADAConfig]

AT_NORM: dict[str, dict[str, Any]] = {
    "fixed": {},
    "soft": {"landmark_bucketing": "soft", "boundary_init": "random"},
    "learnable": {"landmark_bucketing": "learnable"},
    "global": {"landmark_design": "global"},
}
PER_LAYER: dict[str, dict[str, Any]] = {
    "per layer": {"landmark_design": "per_layer"},
    "shared": {"landmark_design": "per_layer", "share_landmarks": True},
}
DESIGNS = {**AT_NORM, **PER_LAYER}

every_design = pytest.mark.parametrize("design", DESIGNS)


def _ids(rows: int = 2, length: int = 12) -> Tensor:
    return torch.randint(1, 50, (rows, length), generator=torch.Generator().manual_seed(0))


def _register(
    base: PreTrainedModel, config: HyLoRADAConfig, *, seed: int = 3
) -> RegisteredLandmarks:
    register = (
        apply_per_layer_landmarks
        if config.landmark_design == "per_layer"
        else register_landmark_hook
    )
    return register(base, config, seed=seed)


@pytest.fixture
def pair(
    make_base: MakeBase, make_config: MakeConfig, scramble: Callable[..., Adapter]
) -> Callable[..., tuple[PreTrainedModel, RegisteredLandmarks, HyLoRADAModel]]:
    """Return a function for a model with landmarks, and a HyLoRADAModel with the same ones."""

    def make(
        design: str, family: str = "llama"
    ) -> tuple[PreTrainedModel, RegisteredLandmarks, HyLoRADAModel]:
        config = make_config(**DESIGNS[design], position_bias=False)
        base = make_base(family, torch.float64)
        landmarks = _register(base, config)
        scramble(landmarks.adapter)
        model = HyLoRADAModel(make_base(family, torch.float64), config, seed=3).eval()
        model.adapter.load_state_dict(landmarks.adapter.state_dict(), strict=False)
        return base, landmarks, model

    return make


@every_design
@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox"])
def test_logits_are_those_of_a_model_with_the_same_landmarks(
    pair: Callable[..., Any], make_base: MakeBase, design: str, family: str
) -> None:
    base, _, model = pair(design, family)
    mask = torch.tensor([[1] * 12, [0] * 5 + [1] * 7])
    for call in ({}, {"attention_mask": mask}, {"use_cache": False}):
        assert torch.equal(base(_ids(), **call).logits, model(_ids(), **call).logits)
    assert torch.equal(base(input_ids=_ids()).logits, model(_ids()).logits)
    plain = make_base(family, torch.float64)(_ids()).logits
    assert (base(_ids()).logits - plain).abs().max() > 1e-2


@every_design
def test_generation_and_cache_are_those_of_a_model_with_the_same_landmarks(
    pair: Callable[..., Any], design: str
) -> None:
    base, _, model = pair(design)
    mask = torch.tensor([[1] * 12, [0] * 5 + [1] * 7])
    options: dict[str, Any] = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None}
    expected = model.generate(_ids(), attention_mask=mask, pad_token_id=0, **options)
    found = base.generate(_ids(), attention_mask=mask, pad_token_id=0, **options)
    assert torch.equal(found, expected)
    first = base(_ids()[:, :7], use_cache=True)
    names = {"cache", "past_key_values"} & first.keys()  # the former in newer transformers
    second = base(_ids()[:, 7:], **{name: first[name] for name in names})
    whole = torch.cat([first.logits, second.logits], 1)
    torch.testing.assert_close(whole, base(_ids()).logits, rtol=0, atol=1e-10)


@every_design
def test_optimizer_of_the_module_or_of_the_model_trains_every_parameter(
    make_base: MakeBase, make_config: MakeConfig, design: str
) -> None:
    base = make_base("llama", torch.float64)
    bits = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    landmarks = _register(base, make_config(**DESIGNS[design]))
    trained = [p for p in base.parameters() if p.requires_grad]
    assert {id(p) for p in trained} == {id(p) for p in landmarks.parameters()}
    assert sum(p.numel() for p in trained) == count_landmark_params(base)
    before = copy.deepcopy(list(landmarks.parameters()))
    optimizer = torch.optim.SGD(landmarks.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        base(_ids(), labels=_ids()).loss.backward()
        optimizer.step()
    assert all(not torch.equal(p, b) for p, b in zip(landmarks.parameters(), before, strict=True))
    assert all(torch.equal(base.state_dict()[name], tensor) for name, tensor in bits.items())


def test_trainer_trains_the_landmarks(
    make_base: MakeBase, make_config: MakeConfig, tmp_path: Path
) -> None:
    base = make_base()
    landmarks = register_landmark_hook(base, make_config(**AT_NORM["learnable"]))
    args = TrainingArguments(
        str(tmp_path), max_steps=3, use_cpu=True, report_to=[], learning_rate=0.05, save_steps=3
    )
    texts = [{"input_ids": row, "labels": row} for row in _ids(8)]
    before = copy.deepcopy(landmarks.state_dict())
    Trainer(base, args, train_dataset=texts).train()
    assert all(not torch.equal(landmarks.state_dict()[n], t) for n, t in before.items())
    saved = load_file(tmp_path / "checkpoint-3" / "model.safetensors")
    for name, tensor in landmarks.state_dict().items():
        assert torch.equal(saved[f"hylorada_landmarks.{name}"], tensor)


@every_design
def test_removed_landmarks_leave_the_model_as_it_was(
    pair: Callable[..., Any], make_base: MakeBase, design: str
) -> None:
    base, landmarks, _ = pair(design)
    plain = make_base("llama", torch.float64)
    landmarks.remove()
    landmarks.remove()
    assert torch.equal(base(_ids()).logits, plain(_ids()).logits)
    assert [type(m) for m in base.modules()] == [type(m) for m in plain.modules()]
    assert base.state_dict().keys() == plain.state_dict().keys()
    HyLoRADAModel(base, HyLoRADAConfig(max_positions=64))


@every_design
def test_copied_model_runs_its_own_landmarks(pair: Callable[..., Any], design: str) -> None:
    base, landmarks, _ = pair(design)
    expected, other = base(_ids()).logits, copy.deepcopy(base)
    with torch.no_grad():
        landmarks.landmark.scale.zero_()
    assert torch.equal(other(_ids()).logits, expected)
    assert not torch.equal(base(_ids()).logits, expected)


def test_landmarks_follow_the_models_device_and_mode_but_stay_fp32(
    make_base: MakeBase, make_config: MakeConfig
) -> None:
    base = make_base()
    landmarks = register_landmark_hook(base, make_config(landmark_dropout=0.5))
    base.to(dtype=torch.bfloat16)  # type: ignore[call-arg]
    assert {p.dtype for p in landmarks.parameters()} == {torch.float32}
    nn.init.normal_(landmarks.landmark.landmarks)  # type: ignore[arg-type]
    base.train()
    assert not torch.equal(base(_ids()).logits, base(_ids()).logits)
    assert torch.equal(base.eval()(_ids()).logits, base(_ids()).logits)


@pytest.mark.parametrize("design", PER_LAYER)
def test_recomputed_layers_are_refused_where_they_would_lose_their_landmarks(
    make_base: MakeBase, make_config: MakeConfig, design: str
) -> None:
    base = make_base()
    _register(base, make_config(**DESIGNS[design]))
    # the name in newer transformers
    newer = getattr(base, "activation_checkpointing_enable", None)
    (newer or base.gradient_checkpointing_enable)()
    base.train()
    with pytest.raises(InputError, match="would recompute layers without their landmarks; use"):
        base(_ids())
    base.eval()(_ids())
    with torch.no_grad():
        base.train()(_ids())


def test_learned_boundaries_are_token_positions(
    make_base: MakeBase, make_config: MakeConfig
) -> None:
    learnable = register_landmark_hook(make_base(), make_config(**AT_NORM["learnable"]))
    assert learnable.adapter.boundaries is not None
    with torch.no_grad():
        learnable.adapter.boundaries.copy_(torch.tensor([0.75, 0.25, 0.5]))
    found = learnable.get_learned_boundaries()
    assert found is not None
    assert found.tolist() == [4.0, 8.0, 12.0]
    for changes in (AT_NORM["fixed"], AT_NORM["soft"], AT_NORM["global"]):
        fixed = register_landmark_hook(make_base(), make_config(**changes))
        assert fixed.get_learned_boundaries() is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"landmarks": False}, "config must have landmarks, got landmarks=False or num_landmarks"),
        (
            {"landmark_design": "per_layer"},
            "landmark_design must be 'position_adaptive' or 'global' here, got 'per_layer'",
        ),
        ({"landmark_design": "attention"}, "got 'attention'; HyLoRADAModel takes every design"),
        ({"max_positions": None}, "max_positions must be set to the trained block length"),
        (
            {"landmark_bucketing": "learnable", "boundary_lr_scale": 5.0},
            "boundary_lr_scale 5.0 would do nothing: only the optimizer and the loss",
        ),
    ],
)
def test_configuration_that_does_not_fit_is_refused(
    make_base: MakeBase, make_config: MakeConfig, changes: dict[str, Any], message: str
) -> None:
    base = make_base()
    with pytest.raises(InputError, match=message):
        register_landmark_hook(base, make_config(**changes))
    assert all(p.requires_grad for p in base.parameters())
    with pytest.raises(InputError, match="landmark_design must be 'per_layer' here, got 'posi"):
        apply_per_layer_landmarks(base, make_config())


def test_two_sets_of_additions_to_one_model_are_refused(
    make_base: MakeBase, make_config: MakeConfig
) -> None:
    base = make_base()
    landmarks = register_landmark_hook(base, make_config())
    for add in (register_landmark_hook, HyLoRADAModel):
        with pytest.raises(InputError, match=r"of HyLoRADA already|registered landmarks"):
            add(base, make_config())
    with pytest.raises(InputError, match=r"registered landmarks; call their remove\(\) first"):
        Pack(base)
    landmarks.remove()
    model = HyLoRADAModel(base, make_config())
    with pytest.raises(InputError, match="model has an adapter of HyLoRADA already; give that one"):
        register_landmark_hook(base, make_config())
    model.close()
    register_landmark_hook(base, make_config())


def test_fields_that_only_a_whole_adapter_heeds_change_nothing(
    make_base: MakeBase, make_config: MakeConfig
) -> None:
    base = make_base("llama", torch.float64)
    expected = base(_ids()).logits
    register_landmark_hook(base, make_config(shifted_sparse_attention=True))
    assert torch.equal(base.train()(_ids()).logits, expected)  # untrained landmarks add nothing
    untrained = make_config(landmark_bucketing="learnable", replication_untrained="landmarks")
    with pytest.raises(InputError, match="replication_untrained 'landmarks' needs a HyLoRADAModel"):
        register_landmark_hook(make_base("llama", torch.float64), untrained)


def test_base_in_eval_mode_trains_as_a_model_with_the_same_landmarks(
    pair: Callable[..., Any],
) -> None:
    base, landmarks, model = pair("learnable", "gpt2")
    base.train()  # turns on GPT-2's own dropout
    assert not torch.equal(base(_ids()).logits, model(_ids()).logits)
    base.eval()
    landmarks.train()
    assert torch.equal(base(_ids()).logits, model.train()(_ids()).logits)
