"""Ranks share a pass as long as padding the lower ones costs little beside the base."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from hylorada import Adapter, HyLoRADAConfig
from hylorada.training.passes import shared_passes


@pytest.fixture
def make_adapters(
    make_base: Callable[..., PreTrainedModel], make_config: Callable[..., HyLoRADAConfig]
) -> Callable[..., dict[str, Adapter]]:
    base = make_base("gpt2")

    def make(*ranks: int) -> dict[str, Adapter]:
        configs = [make_config(r=r, landmarks=False, position_bias=False) for r in ranks]
        return {f"{k}: {c.r}": Adapter(base, c, seed=k) for k, c in enumerate(configs)}

    return make


def _base(parameters: int) -> nn.Module:
    return nn.Linear(parameters, 1, bias=False)


def test_no_adapters_need_no_pass() -> None:
    assert shared_passes({}, _base(1)) == []


def test_equal_ranks_and_ranks_within_a_tile_share_a_pass(
    make_adapters: Callable[..., dict[str, Adapter]],
) -> None:
    for ranks in ((40, 40, 40), (4, 16, 8, 1)):
        adapters = make_adapters(*ranks)
        assert shared_passes(adapters, _base(1)) == [list(adapters)]


def test_padding_may_add_a_tenth_of_the_bases_operations(
    make_adapters: Callable[..., dict[str, Adapter]],
) -> None:
    """Rank 8, which costs as much as 16, beside rank 32: 16 rows are missing in one of two seats.

    They take 6 x 16 x 192 operations per token, where the base takes 2 x 4 per parameter.
    """
    adapters = make_adapters(32, 8)
    widths = sum(t.in_features + t.out_features for t in adapters["0: 32"].targets.values())
    assert widths == 2 * (16 + 48 + 16 + 16)
    parameters = 6 * 16 * widths / (2 * 4 * 0.1)
    assert shared_passes(adapters, _base(int(parameters) + 1)) == [["0: 32", "1: 8"]]
    assert shared_passes(adapters, _base(int(parameters) - 1)) == [["0: 32"], ["1: 8"]]


def test_highest_ranks_leave_first_and_names_keep_their_order(
    make_adapters: Callable[..., dict[str, Adapter]],
) -> None:
    adapters = make_adapters(8, 256, 4, 24, 8)
    assert shared_passes(adapters, _base(20_000)) == [
        ["1: 256"],
        ["0: 8", "2: 4", "3: 24", "4: 8"],
    ]


def test_more_seats_of_high_rank_make_room_for_one_of_low_rank(
    make_adapters: Callable[..., dict[str, Adapter]],
) -> None:
    base = _base(10_000)
    assert len(shared_passes(make_adapters(32, 8), base)) == 2
    assert len(shared_passes(make_adapters(32, 32, 32, 32, 8), base)) == 1


def test_an_adapter_without_lora_needs_no_padding(
    make_base: Callable[..., PreTrainedModel], make_config: Callable[..., HyLoRADAConfig]
) -> None:
    base = make_base("gpt2", torch.float32)
    adapters = {
        "with": Adapter(base, make_config(r=64), seed=0),
        "without": Adapter(base, make_config(r=2), seed=0, lora=False),
    }
    assert shared_passes(adapters, _base(1)) == [["with", "without"]]
