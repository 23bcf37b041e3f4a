"""One compiled decoder layer serves all layers, adapters and pack sizes, and changes no loss."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import PreTrainedModel

from hylorada import (
    Adapter,
    BatchOrder,
    Blocks,
    HyLoRADAConfig,
    Pack,
    Seat,
    TrainingConfig,
    evaluate,
    train_step,
)

# torch._dynamo itself uses what torch deprecates; the "eager" backend traces and guards as
# inductor does, but in seconds
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
ARMS: list[dict[str, Any]] = [
    {"landmark_bucketing": "learnable"},
    {},
    {"landmarks": False, "position_bias": False, "target_modules": ("v_proj",)},
    {"num_landmarks": 5},
    {"landmark_bucketing": "learnable", "num_buckets": 7},
]


def _losses(
    pack: Pack,
    make_config: Callable[..., HyLoRADAConfig],
    ids: npt.NDArray[np.int32],
    blocks: Blocks,
    sizes: list[int],
) -> list[list[float]]:
    found = []
    for size in sizes:
        training = TrainingConfig(max_steps=4, batch_size=2)
        seats = {
            k: Seat(
                Adapter(pack.base, make_config(**ARMS[k]), seed=k),
                training,
                BatchOrder(len(ids), 2, 0),
            )
            for k in range(size)
        }
        losses = [float(x) for _ in range(3) for x in train_step(pack, seats, ids).values()]  # type: ignore[arg-type]
        found.append(
            losses
            + [e.nll for e in evaluate(pack, [s.adapter for s in seats.values()], blocks, rows=4)]
        )
    return found


def test_compiled_layers_serve_every_pack_and_change_no_loss(
    make_base: Callable[..., PreTrainedModel],
    make_config: Callable[..., HyLoRADAConfig],
    token_blocks: npt.NDArray[np.int32],
    blocks: Blocks,
) -> None:
    from torch._dynamo.utils import counters

    expected = _losses(Pack(make_base("llama")), make_config, token_blocks, blocks, [3, 2, 5, 4])
    torch._dynamo.reset()
    counters.clear()
    base = make_base("llama")
    pack = Pack(base, compile_backend="eager")
    first = _losses(pack, make_config, token_blocks, blocks, [3])
    graphs = counters["stats"]["unique_graphs"]
    assert (
        1 <= graphs <= 4
    )  # the first layer, which gets no gradient, the others, and both without gradients
    rest = _losses(pack, make_config, token_blocks, blocks, [2, 5, 4])
    assert (
        counters["stats"]["unique_graphs"] <= graphs + 1
    )  # evaluation takes other numbers of rows once
    for found, wanted in zip([*first, *rest], expected, strict=True):
        assert found == pytest.approx(wanted, rel=1e-5)
    pack.close()
    assert "forward" not in vars(pack.base.get_submodule("model.layers.0"))


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"use_dora": True}),
        ("llama", {"landmark_design": "global"}),
        ("llama", {"landmark_design": "per_layer", "replication_noncausal_pooling": True}),
        ("llama", {"landmark_design": "attention"}),
        ("gpt2", {"landmark_design": "attention"}),
        ("llama", {"shifted_sparse_attention": True}),
    ],
)
def test_every_design_compiles_once_for_all_layers_and_packs(
    make_base: Callable[..., PreTrainedModel],
    make_config: Callable[..., HyLoRADAConfig],
    token_blocks: npt.NDArray[np.int32],
    family: str,
    changes: dict[str, Any],
) -> None:
    from torch._dynamo.utils import counters

    def losses(pack: Pack, size: int) -> list[float]:
        configs = [make_config(**changes), *[make_config(landmarks=False)] * (size - 1)]
        training = TrainingConfig(max_steps=4, batch_size=2)
        seats = {
            k: Seat(Adapter(pack.base, c, seed=k), training, BatchOrder(24, 2, 0))
            for k, c in enumerate(configs)
        }
        return [float(x) for _ in range(3) for x in train_step(pack, seats, token_blocks).values()]  # type: ignore[arg-type]

    plain = Pack(make_base(family))
    expected = [losses(plain, size) for size in (3, 2, 4)]
    torch._dynamo.reset()
    counters.clear()
    pack = Pack(make_base(family), compile_backend="eager")
    found = [losses(pack, 3)]
    graphs = counters["stats"]["unique_graphs"]
    assert 1 <= graphs <= 2  # the first layer, whose input needs no gradient, and the others
    found += [losses(pack, 2), losses(pack, 4)]
    assert counters["stats"]["unique_graphs"] == graphs
    assert not counters["graph_break"]
    for one, wanted in zip(found, expected, strict=True):
        assert one == pytest.approx(wanted, rel=1e-5)


def test_packs_of_unequal_ranks_compile_only_for_the_second_highest_rank(
    make_base: Callable[..., PreTrainedModel],
    make_config: Callable[..., HyLoRADAConfig],
    token_blocks: npt.NDArray[np.int32],
) -> None:
    """Lower ranks are padded, and from the second highest rank on its size is a variable."""
    from torch._dynamo.utils import counters

    def losses(pack: Pack, *ranks: int) -> list[float]:
        training = TrainingConfig(max_steps=4, batch_size=2)
        seats = {
            k: Seat(Adapter(pack.base, make_config(r=r), seed=k), training, BatchOrder(24, 2, 0))
            for k, r in enumerate(ranks)
        }
        return [float(x) for x in train_step(pack, seats, token_blocks).values()]  # type: ignore[arg-type]

    packs = ((2, 4, 8), (8, 3), (4, 2), (3, 5), (2, 7, 1, 6))
    plain = Pack(make_base("llama"))
    expected = [losses(plain, *ranks) for ranks in packs]
    torch._dynamo.reset()
    counters.clear()
    pack = Pack(make_base("llama"), compile_backend="eager")
    graphs, actual = [], []
    for ranks in packs:
        actual.append(losses(pack, *ranks))
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1] <= 2
    assert graphs[2] == graphs[-1] <= 4
    for one, wanted in zip(actual, expected, strict=True):
        assert one == pytest.approx(wanted, rel=1e-5)


def test_dropout_runs_uncompiled_with_each_seats_own_stream(
    make_base: Callable[..., PreTrainedModel],
    make_config: Callable[..., HyLoRADAConfig],
    token_blocks: npt.NDArray[np.int32],
) -> None:
    losses = []
    for backend in (None, "eager"):
        pack = Pack(make_base("llama"), compile_backend=backend)
        seats = {
            k: Seat(
                Adapter(pack.base, make_config(lora_dropout=0.3), seed=k),
                TrainingConfig(),
                BatchOrder(24, 2, 0),
            )
            for k in range(2)
        }
        losses.append([list(train_step(pack, seats, token_blocks).values()) for _ in range(2)])
    assert losses[0] == losses[1]
