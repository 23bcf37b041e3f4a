"""Dropout of what landmarks add: by hand, per seat, off in evaluation, recomputed alike."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hylorada import (
    Adapter,
    AttentionIntegratedLandmark,
    BatchOrder,
    HyLoRADAConfig,
    HyLoRADAModel,
    Pack,
    Seat,
    TrainingConfig,
    train_step,
)
from hylorada.adapters.landmarks.attention_integrated import head_mixes
from hylorada.base_models.architectures import architecture_of
from hylorada.multi_adapter.dropout import Masks, draws_in_layers

MakeBase = Callable[..., PreTrainedModel]
MakeConfig = Callable[..., HyLoRADAConfig]
MakeModel = Callable[..., HyLoRADAModel]

DESIGNS: dict[str, dict[str, Any]] = {
    "fixed": {},
    "soft": {"landmark_bucketing": "soft"},
    "global": {"landmark_design": "global"},
    "per layer": {"landmark_design": "per_layer"},
    "attention": {"landmark_design": "attention"},
}
RATE = 0.4

every_design = pytest.mark.parametrize("design", DESIGNS)


def _ids() -> Tensor:
    return torch.randint(1, 50, (2, 12), generator=torch.Generator().manual_seed(0))


def _mask(stream: torch.Generator, like: Tensor) -> Tensor:
    """Draw an inverted dropout mask."""
    kept = torch.empty(like.shape, dtype=like.dtype).bernoulli_(1 - RATE, generator=stream)
    return kept / (1 - RATE)


def _hang(base: PreTrainedModel, adapter: Adapter) -> None:
    """Hang the landmark module's own ``forward`` on a plain base, with masks drawn by hand."""
    architecture, landmark = architecture_of(base.config.model_type), adapter.landmark
    stream = copy.deepcopy(adapter.dropout_stream)
    assert landmark is not None

    def add(output: Tensor, *arguments: Any) -> Tensor:
        added: Tensor = landmark(output, *arguments) - output
        return output + _mask(stream, output) * added

    positions = () if landmark.design == "global" else (torch.arange(12)[None],)
    if landmark.design == "per_layer":
        for i, layer in enumerate(base.get_submodule(architecture.layers).children()):
            layer.get_submodule("mlp").register_forward_hook(lambda _m, _i, out, i=i: add(out, i))
        return
    norm = base.get_submodule(architecture.final_norm)
    norm.register_forward_hook(lambda _m, _i, out: add(out, *positions))


@pytest.mark.parametrize("design", ["fixed", "soft", "global", "per layer"])
def test_masks_are_those_of_a_loop_with_the_same_stream(
    make_base: MakeBase, make_model: MakeModel, design: str
) -> None:
    model = make_model(**DESIGNS[design], landmark_dropout=RATE, position_bias=False).train()
    for path in model.adapter.targets:
        nn.init.zeros_(model.adapter.lora_at(path).lora_B)  # type: ignore[union-attr]
    plain = make_base("llama", torch.float64)
    _hang(plain, model.adapter)
    expected = [plain(_ids()).logits for _ in range(2)]
    assert (expected[1] - expected[0]).abs().max() > 1e-3  # each pass has masks of its own
    for wanted in expected:
        torch.testing.assert_close(model(_ids()).logits, wanted, rtol=0, atol=1e-12)


def test_masks_in_attention_are_those_of_a_loop_with_the_same_stream(
    make_base: MakeBase, make_config: MakeConfig, scramble: Callable[..., Adapter]
) -> None:
    base = make_base("llama", torch.float64)
    config = make_config(**DESIGNS["attention"])
    adapters = [scramble(Adapter(base, config, seed=k), k) for k in range(2)]
    modules = [a.landmark for a in adapters if isinstance(a.landmark, AttentionIntegratedLandmark)]
    heads = 2 * modules[0].keys.shape[1]
    query = torch.randn(6, heads, 5, modules[0].keys.shape[-1], dtype=torch.float64)
    streams = [copy.deepcopy(a.dropout_stream) for a in adapters]
    plain = head_mixes(modules, torch.float64, None)[1].context(query, 0.5)
    wanted = [_mask(s, rows) * rows for s, rows in zip(streams, plain.chunk(2), strict=True)]
    dropping = head_mixes(modules, torch.float64, None, Masks(adapters, [RATE, RATE]))
    assert torch.equal(dropping[1].context(query, 0.5), torch.cat(wanted))


def test_seats_with_landmark_dropout_train_as_alone(
    make_base: MakeBase, make_config: MakeConfig, token_blocks: Any
) -> None:
    pack = Pack(make_base("llama", torch.float64))
    arms = {name: {**changes, "landmark_dropout": RATE} for name, changes in DESIGNS.items()}
    arms["both"] = {**arms["per layer"], "lora_dropout": 0.2, "target_modules": ("q_proj",)}
    arms["neither"] = {"landmarks": False}

    def train(*names: str) -> dict[str, tuple[list[Any], Tensor]]:
        seats = {}
        for name in names:
            adapter = Adapter(pack.base, make_config(**arms[name]), seed=3)
            training = TrainingConfig(max_steps=3, batch_size=2, learning_rate=1e-2)
            seats[name] = Seat(adapter, training, BatchOrder(len(token_blocks), 2, seed=5))
        losses = [train_step(pack, seats, token_blocks) for _ in range(3)]
        return {
            name: ([row[name] for row in losses], seat.adapter.dropout_stream.get_state())
            for name, seat in seats.items()
        }

    for name, (losses, stream) in train(*arms).items():
        expected, own_stream = train(name)[name]
        assert losses == pytest.approx(expected, rel=0, abs=1e-10)
        assert torch.equal(stream, own_stream)


@every_design
def test_landmark_dropout_is_off_in_evaluation(make_model: MakeModel, design: str) -> None:
    model = make_model(**DESIGNS[design], landmark_dropout=RATE)
    expected, stream = make_model(**DESIGNS[design])(_ids()).logits, model.adapter.dropout_stream
    before = stream.get_state()
    assert torch.equal(model(_ids()).logits, expected)
    assert torch.equal(stream.get_state(), before)
    assert not torch.equal(model.train()(_ids()).logits, expected)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.99])
def test_masks_keep_the_mean(make_base: MakeBase, make_config: MakeConfig, rate: float) -> None:
    adapters = [Adapter(make_base(), make_config(), seed=k) for k in range(2)]
    masks = Masks(adapters, [rate, 0.0])(torch.empty(2, 10, 100, 400, dtype=torch.float64))
    assert sorted(masks[0].unique().tolist()) == pytest.approx([0, 1 / (1 - rate)])
    deviation = (rate / (1 - rate) / masks[0].numel()) ** 0.5
    assert abs(masks[0].mean().item() - 1) < 5 * deviation
    assert torch.equal(masks[1], torch.ones_like(masks[1]))


@every_design
def test_recomputed_layers_drop_the_same(make_model: MakeModel, design: str) -> None:
    gradients = []
    for checkpointing in (False, True):
        model = make_model(**DESIGNS[design], landmark_dropout=RATE, lora_dropout=0.2).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        for _ in range(2):
            model(_ids(), labels=_ids()).loss.backward()
        gradients.append({n: p.grad for n, p in model.adapter.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("design", "lora_dropout", "expected"),
    [("fixed", 0.0, False), ("fixed", 0.1, True), ("per layer", 0.0, True)],
)
def test_only_masks_inside_layers_keep_these_uncompiled(
    make_base: MakeBase,
    make_config: MakeConfig,
    design: str,
    lora_dropout: float,
    expected: bool,
) -> None:
    config = make_config(**DESIGNS[design], landmark_dropout=RATE, lora_dropout=lora_dropout)
    adapter = Adapter(make_base(), config, seed=0)
    assert draws_in_layers(adapter.train()) is expected
    assert not draws_in_layers(adapter.eval())
