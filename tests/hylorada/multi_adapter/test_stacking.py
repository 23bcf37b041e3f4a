"""Stacked factors hold each adapter's own numbers, and zeros where it has none."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from hylorada import Adapter, HyLoRADAConfig
from hylorada.adapters.lora import LoRA
from hylorada.multi_adapter.stacking import (
    all_targets,
    factor_sizes,
    padded_updates,
    stacked_factors,
)

# Ranks below, at and above the width 16 of the base, on nested sets of modules.
SEATS: list[dict[str, Any]] = [
    {"r": 3},
    {"r": 17, "target_modules": ("c_attn",)},
    {"r": 1, "target_modules": ("all-linear",)},
    {"r": 17, "target_modules": ("all-linear",)},
]
RANK = 17


@pytest.fixture
def adapters(
    make_base: Callable[..., PreTrainedModel],
    make_config: Callable[..., HyLoRADAConfig],
    scramble: Callable[..., Adapter],
) -> list[Adapter]:
    base = make_base("gpt2", torch.float64)
    return [scramble(Adapter(base, make_config(**c), seed=k), k) for k, c in enumerate(SEATS)]


def _expected(adapters: list[Adapter], values: Callable[[LoRA], tuple[Tensor, Tensor]]) -> Tensor:
    """Return the stacked tensor, filled module by module."""
    rows = []
    for adapter in adapters:
        row = []
        for path, target in all_targets(adapters).items():
            A = torch.zeros(RANK, target.in_features, dtype=torch.float64)  # noqa: N806
            B = torch.zeros(target.out_features, RANK, dtype=torch.float64)  # noqa: N806
            if (update := adapter.lora_at(path)) is not None:
                rank = adapter.config.r
                A[:rank], B[:, :rank] = values(update)
            row += [A.flatten(), B.flatten()]
        rows.append(torch.cat(row))
    return torch.stack(rows)


def test_each_factor_lies_in_its_place_and_zeros_fill_the_rest(adapters: list[Adapter]) -> None:
    targets = all_targets(adapters)
    assert len(targets) == 8  # all linear modules of two layers
    stacked = stacked_factors(adapters, targets, RANK)
    assert torch.equal(
        stacked, _expected(adapters, lambda u: (u.lora_A.detach(), u.lora_B.detach()))
    )


def test_only_own_factors_get_gradients(adapters: list[Adapter]) -> None:
    """The gradient of <stacked, w> is w at the places of the factors."""
    stacked = stacked_factors(adapters, all_targets(adapters), RANK)
    weights = torch.randn(
        stacked.shape, dtype=stacked.dtype, generator=torch.Generator().manual_seed(0)
    )
    (stacked * weights).sum().backward()

    def gradients(update: LoRA) -> tuple[Tensor, Tensor]:
        assert update.lora_A.grad is not None
        assert update.lora_B.grad is not None
        return update.lora_A.grad, update.lora_B.grad

    own = _expected(adapters, lambda u: (torch.ones_like(u.lora_A), torch.ones_like(u.lora_B)))
    assert torch.equal(_expected(adapters, gradients), weights * own.detach())


def test_sizes_add_up_to_the_row(adapters: list[Adapter]) -> None:
    targets = all_targets(adapters)
    sizes = [n for t in targets.values() for n in factor_sizes(t, RANK)]
    assert stacked_factors(adapters, targets, RANK).shape == (len(SEATS), sum(sizes))


def test_places_made_in_inference_serve_training(adapters: list[Adapter]) -> None:
    targets = all_targets(adapters)
    with torch.inference_mode():
        stacked_factors(adapters, targets, RANK + 1)  # a rank that no other test uses
    stacked_factors(adapters, targets, RANK + 1).sum().backward()
    assert all(p.grad is not None for p in adapters[0].lora.parameters())


def test_padded_updates_have_the_same_products(adapters: list[Adapter]) -> None:
    path = next(iter(adapters[1].targets))
    updates = [u for a in adapters if (u := a.lora_at(path)) is not None]
    lora_A, lora_B = padded_updates(updates)  # noqa: N806
    assert lora_A.shape[:2] == (4, RANK)
    for update, product in zip(updates, lora_B @ lora_A, strict=True):
        torch.testing.assert_close(product, update.lora_B @ update.lora_A, rtol=0, atol=1e-13)
