"""A pack adds to each seat what that seat's landmark module adds by itself."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from hylorada import Adapter, HyLoRADAConfig, HyLoRADAModel, Pack
from hylorada.adapters.landmarks.position_adaptive import PositionLandmark
from hylorada.base_models.architectures import architecture_of

MakeBase = Callable[..., PreTrainedModel]
MakeConfig = Callable[..., HyLoRADAConfig]

LANDMARKS_ALONE: dict[str, Any] = {"position_bias": False}
SEATS: list[dict[str, Any]] = [
    {},
    {"landmark_bucketing": "learnable", "num_buckets": 7, "num_landmarks": 5},
    {"landmark_design": "global", "num_landmarks": 2},
    {"landmark_design": "global", "replication_noncausal_pooling": True},
    {"landmark_design": "per_layer"},
    {"landmark_design": "per_layer", "replication_noncausal_pooling": True, "num_landmarks": 2},
    {"landmark_design": "per_layer", "share_landmarks": True, "num_landmarks": 4},
    {"landmark_design": "attention"},
    {"landmark_design": "attention", "num_landmarks": 5},
    {"landmarks": False},
    {"landmark_bucketing": "soft", "boundary_init": "uniform", "num_buckets": 6},
    {"num_buckets": 1, "num_landmarks": 2},
    {"landmark_design": "per_layer", "share_landmarks": True, "share_gates": True},
]


def _by_hand(base: PreTrainedModel, adapter: Adapter, ids: torch.Tensor) -> torch.Tensor:
    """Logits with the module's own ``forward`` hung on a plain base by hooks."""
    architecture, landmark = architecture_of(base.config.model_type), adapter.landmark
    layers, handles = list(base.get_submodule(architecture.layers).children()), []

    def hang(module: nn.Module, hook: Callable[..., Any]) -> None:
        handles.append(module.register_forward_hook(hook))

    design = adapter.config.landmark_design
    if landmark is not None and design in ("position_adaptive", "global"):
        arguments = (torch.arange(ids.shape[1])[None],) if design == "position_adaptive" else ()
        hang(
            base.get_submodule(architecture.final_norm),
            lambda _m, _i, out: landmark(out, *arguments),
        )
    if landmark is not None and design == "per_layer":
        for i, layer in enumerate(layers):
            hang(layer.get_submodule("mlp"), lambda _m, _i, out, i=i: landmark(out, i))
    if landmark is not None and design == "attention":
        for i, layer in enumerate(layers):
            _hang_attention(layer.get_submodule("attn"), landmark, i, handles)
    try:
        logits: torch.Tensor = base(ids).logits
    finally:
        for handle in handles:
            handle.remove()
    return logits


def _hang_attention(
    attention: nn.Module, landmark: nn.Module, layer: int, handles: list[Any]
) -> None:
    """On GPT-2, whose queries are the first third of ``c_attn``'s output."""
    queries: list[torch.Tensor] = []

    def keep(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        queries[:] = [output[..., :16].unflatten(-1, (2, 8)).transpose(1, 2)]

    def add(_module: nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        return (inputs[0] + landmark(queries[0], layer).transpose(1, 2).flatten(2),)

    handles.append(attention.get_submodule("c_attn").register_forward_hook(keep))
    handles.append(attention.get_submodule("c_proj").register_forward_pre_hook(add))


@pytest.mark.parametrize(
    "order",
    [range(13), [7, 2, 9, 12, 4, 0, 11, 8, 5, 3, 10, 6, 1], [12, 4], [2, 0], [10, 9, 1], [11], [3]],
)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_seats_of_all_designs_compute_what_each_module_does(
    make_base: MakeBase,
    make_config: MakeConfig,
    scramble: Callable[..., Adapter],
    attention: str,
    order: list[int],
) -> None:
    base = make_base("gpt2", torch.float64)
    base.set_attn_implementation(attention)
    adapters = [
        scramble(Adapter(base, make_config(**LANDMARKS_ALONE, **SEATS[k]), seed=k), k)
        for k in order
    ]
    for adapter in adapters:
        for path in adapter.targets:
            adapter.lora_at(path).lora_B.data.zero_()  # type: ignore[union-attr]
    ids = torch.randint(1, 50, (len(adapters), 2, 16), generator=torch.Generator().manual_seed(1))
    expected = [
        _by_hand(base, a, i).log_softmax(-1)[:, :-1] for a, i in zip(adapters, ids, strict=True)
    ]
    pack = Pack(base)
    with torch.no_grad():
        found = pack.token_nll(adapters, ids)
    for nll, wanted, own in zip(found, expected, ids, strict=True):
        torch.testing.assert_close(
            -nll, wanted.gather(-1, own[:, 1:, None])[..., 0], rtol=0, atol=1e-10
        )
    assert base.config._attn_implementation == attention


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("design", ["attention", "per_layer", "global"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox"])
def test_pads_change_no_logit_of_a_real_token(
    make_model: Callable[..., HyLoRADAModel], family: str, design: str, side: str, attention: str
) -> None:
    eager = (
        attention == "eager"
    )  # which takes its softmax in fp32, where a mask of fp64's least number is infinite
    model = make_model(family, torch.float32 if eager else torch.float64, landmark_design=design)
    model.base.set_attn_implementation(attention)
    long, short = torch.arange(1, 10)[None], torch.arange(20, 25)[None]
    pad = (4, 0) if side == "left" else (0, 4)
    ids = torch.cat([long, torch.nn.functional.pad(short, pad)])
    mask = torch.cat([torch.ones_like(long), torch.nn.functional.pad(torch.ones_like(short), pad)])
    logits = model(ids, attention_mask=mask).logits
    assert logits.isfinite().all()
    tolerance = 1e-4 if eager else 1e-10
    torch.testing.assert_close(logits[:1], model(long).logits, rtol=0, atol=tolerance)
    torch.testing.assert_close(
        logits[1:, mask[1].bool()], model(short).logits, rtol=0, atol=tolerance
    )


def test_attention_that_is_not_known_is_refused(make_model: Callable[..., HyLoRADAModel]) -> None:
    model = make_model("llama", landmark_design="attention")
    model.base.config._attn_implementation = "flex_attention"
    with pytest.raises(
        ValueError, match="works with the attention implementations sdpa and eager; the base has"
    ):
        model(torch.ones(1, 4, dtype=torch.long))


@pytest.mark.parametrize("length", [128, 4096])
@pytest.mark.parametrize("changes", SEATS, ids=str)
def test_long_blocks_train_and_positions_beyond_the_trained_length_are_defined(
    make_base: MakeBase,
    make_config: MakeConfig,
    scramble: Callable[..., Adapter],
    changes: dict[str, Any],
    length: int,
) -> None:
    base = make_base("gpt_neox")
    base.config.max_position_embeddings = 2 * length
    pack = Pack(base)
    adapter = scramble(Adapter(base, make_config(**{**changes, "max_positions": length}), seed=0))
    ids = torch.randint(50, (1, 1, length), generator=torch.Generator().manual_seed(0))
    pack.token_nll([adapter], ids).mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in adapter.parameters())
    beyond = torch.arange(length, length + 8)[None]
    last = torch.full_like(beyond, length + 10**6)
    assert adapter.position_bias is not None
    assert torch.equal(adapter.position_bias(beyond), adapter.position_bias(last))
    if isinstance(adapter.landmark, PositionLandmark):
        weights = adapter.landmark.bucket_weights(beyond)
        torch.testing.assert_close(
            weights, adapter.landmark.bucket_weights(last), rtol=0, atol=0.05
        )
        assert (weights.argmax(-1) == weights.shape[-1] - 1).all()
