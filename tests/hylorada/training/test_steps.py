"""Evaluation of adapters on blocks: independent of the batching, equal to the model's own loss."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from hylorada import Adapter, HyLoRADAConfig, HyLoRADAModel, Pack, TrainingConfig
from hylorada.data.batch_order import BatchOrder
from hylorada.data.blocks import Blocks
from hylorada.data.perplexity import Evaluation
from hylorada.errors import DoesNotFit
from hylorada.training.seat import Seat
from hylorada.training.steps import evaluate, train_step

MakeBase = Callable[..., PreTrainedModel]
MakeConfig = Callable[..., HyLoRADAConfig]
Scramble = Callable[..., Adapter]


def _close(evaluation: Evaluation, expected: Evaluation, rel: float) -> None:
    np.testing.assert_allclose(evaluation.block_nll, expected.block_nll, rtol=rel)
    np.testing.assert_allclose(evaluation.bin_nll, expected.bin_nll, rtol=rel)
    assert evaluation.bin_tokens.tolist() == expected.bin_tokens.tolist()
    assert evaluation.num_bytes == expected.num_bytes


def _adapters(base: PreTrainedModel, make_config: MakeConfig, scramble: Scramble) -> list[Adapter]:
    """Build three adapters with dropout, the middle one of another rank."""
    learnable = {"r": 3, "landmark_bucketing": "learnable"}
    changes: list[dict[str, Any]] = [{"r": 2}, learnable, {"r": 2, "position_bias": False}]
    return [
        scramble(Adapter(base, make_config(lora_dropout=0.3, **c), seed=i), i)
        for i, c in enumerate(changes)
    ]


def test_evaluation_does_not_depend_on_rows_or_company(
    make_base: MakeBase, make_config: MakeConfig, scramble: Scramble, blocks: Blocks
) -> None:
    base = make_base()
    pack, adapters = Pack(base), _adapters(base, make_config, scramble)
    alone = [evaluate(pack, [a], blocks, rows=1)[0] for a in adapters]
    assert len({round(e.nll, 3) for e in alone}) == 3
    for rows in (5, 64):
        for evaluation, expected in zip(
            evaluate(pack, adapters, blocks, rows=rows), alone, strict=True
        ):
            _close(evaluation, expected, 1e-6)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox"])
def test_evaluation_equals_the_models_built_in_loss(
    make_base: MakeBase, make_config: MakeConfig, scramble: Scramble, blocks: Blocks, family: str
) -> None:
    model = HyLoRADAModel(make_base(family), make_config(landmark_bucketing="learnable")).eval()
    scramble(model.adapter)
    ids = torch.from_numpy(blocks.input_ids).long()
    with torch.no_grad():
        expected = model(ids, labels=ids).loss.item()
    (evaluation,) = evaluate(Pack(model.base), [model.adapter], blocks)
    assert evaluation.nll == pytest.approx(expected, rel=1e-6)
    assert evaluation.tokens == 24 * 15
    assert evaluation.num_bytes == blocks.num_bytes.sum()


def test_no_adapter_evaluates_the_base(make_base: MakeBase, blocks: Blocks) -> None:
    base = make_base("gpt2")
    ids = torch.from_numpy(blocks.input_ids).long()
    (evaluation,) = evaluate(Pack(base), [], blocks, rows=5)
    with torch.no_grad():
        assert evaluation.nll == pytest.approx(base(ids, labels=ids).loss.item(), rel=1e-6)


def test_bf16_base_sums_in_fp64(make_base: MakeBase, blocks: Blocks) -> None:
    base = make_base("llama", torch.bfloat16)
    (evaluation,) = evaluate(Pack(base), [], blocks, rows=24)
    ids = torch.from_numpy(blocks.input_ids).long()
    with torch.no_grad():
        log_p = base(ids).logits[:, :-1].float().log_softmax(-1)
    expected = -log_p.gather(2, ids[:, 1:, None]).squeeze(2).double().numpy()
    np.testing.assert_allclose(evaluation.block_nll, expected.sum(axis=1), rtol=1e-6)
    assert evaluation.block_nll.dtype == evaluation.bin_nll.dtype == np.float64


def test_model_that_knows_the_next_token_has_no_loss() -> None:
    """Logits favour the current id + 1; with labels shifted twice the loss would be large."""
    with torch.random.fork_rng(devices=[]):
        base = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=16,
                n_embd=16,
                n_layer=1,
                n_head=2,
                n_positions=8,
                tie_word_embeddings=False,
                bos_token_id=0,
                eos_token_id=0,
            )
        )
    for parameter in base.transformer.h.parameters():
        torch.nn.init.zeros_(parameter)
    base.transformer.wte.weight.data.copy_(torch.eye(16))
    torch.nn.init.zeros_(base.transformer.wpe.weight)
    base.lm_head.weight.data.copy_(20 * torch.eye(16).roll(1, dims=0))
    counting = Blocks(np.arange(8, dtype=np.int32)[None], np.array([7]), 0, "")
    (evaluation,) = evaluate(Pack(base), [], counting)
    assert evaluation.nll < 1e-6
    assert evaluation.tokens == 7


def test_evaluation_leaves_training_as_it_was(
    make_base: MakeBase,
    make_config: MakeConfig,
    token_blocks: npt.NDArray[np.int32],
    blocks: Blocks,
) -> None:
    base = make_base()
    pack, training = Pack(base), TrainingConfig(max_steps=6, batch_size=2)

    def losses(evaluated: bool) -> list[object]:
        seat = Seat(
            Adapter(base, make_config(lora_dropout=0.2), seed=0), training, BatchOrder(24, 2, 0)
        )
        outcomes: list[object] = []
        for _ in range(6):
            outcomes.append(train_step(pack, {"a": seat}, token_blocks)["a"])
            if evaluated:
                evaluate(pack, [seat.adapter], blocks)
        return outcomes

    assert losses(True) == losses(False)


def test_step_sees_the_batch_of_its_place_in_the_order(
    make_base: MakeBase, make_config: MakeConfig, token_blocks: npt.NDArray[np.int32]
) -> None:
    base = make_base()
    order = BatchOrder(24, 3, seed=9)
    seat = Seat(
        Adapter(base, make_config(), seed=0),
        TrainingConfig(batch_size=3, learning_rate=1e-30),
        order,
    )
    for step in range(4):
        ids = torch.from_numpy(token_blocks[order.indices(step)]).long()
        expected = base(ids, labels=ids).loss.item()
        assert train_step(Pack(base), {0: seat}, token_blocks)[0] == pytest.approx(
            expected, rel=1e-6
        )


def test_training_equals_a_plain_loop(
    make_base: MakeBase, make_config: MakeConfig, token_blocks: npt.NDArray[np.int32]
) -> None:
    """A step equals model, loss, penalty, clipping, schedule and AdamW made of torch's parts."""
    config = make_config(
        landmark_bucketing="learnable", boundary_repulsion=0.5, boundary_lr_scale=5.0
    )
    model = HyLoRADAModel(make_base("gpt2", torch.float64), config, seed=2)
    boundaries = model.adapter.boundaries
    assert boundaries is not None
    rest = [p for p in model.adapter.parameters() if p is not boundaries]
    groups: list[dict[str, Any]] = [{"params": rest}, {"params": [boundaries], "lr": 5e-2}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 10)
    expected = []
    for step in range(10):
        ids = torch.from_numpy(token_blocks[BatchOrder(24, 2, 6).indices(step)]).long()
        loss = F.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        expected.append(loss.item())
        edges = torch.cat([torch.zeros(1), boundaries.sort().values, torch.ones(1)])
        optimizer.zero_grad()
        (loss - 0.5 * edges.diff().min()).backward()
        torch.nn.utils.clip_grad_norm_(model.adapter.parameters(), 0.2)
        optimizer.step()
        schedule.step()
        boundaries.data.clamp_(0, 1)
    linear: dict[str, Any] = {
        "lr_scheduler_type": "linear",
        "warmup_ratio": 0.0,
        "max_grad_norm": 0.2,
    }
    training = TrainingConfig(max_steps=10, batch_size=2, learning_rate=1e-2, **linear)
    seat = Seat(Adapter(model.base, config, seed=2), training, BatchOrder(24, 2, 6))
    pack = Pack(model.base)
    assert [train_step(pack, {0: seat}, token_blocks)[0] for _ in range(10)] == pytest.approx(
        expected, abs=1e-10
    )


@pytest.mark.parametrize("limit", [9, 3, 2, 1])
def test_evaluation_splits_where_memory_runs_out(
    make_base: MakeBase,
    make_config: MakeConfig,
    scramble: Scramble,
    blocks: Blocks,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
) -> None:
    """No pass has more rows than fit: first blocks, then adapters are taken in turns."""
    pack = Pack(make_base())
    adapters = _adapters(pack.base, make_config, scramble)
    expected, whole = evaluate(pack, adapters, blocks), pack.token_nll
    sizes: list[int] = []

    def limited(some: Sequence[Adapter], ids: torch.Tensor) -> torch.Tensor:
        if ids.shape[0] * ids.shape[1] > limit:
            raise torch.OutOfMemoryError
        sizes.append(ids.shape[0] * ids.shape[1])
        return whole(some, ids)

    monkeypatch.setattr(pack, "token_nll", limited)
    for evaluation, alone in zip(evaluate(pack, adapters, blocks), expected, strict=True):
        _close(evaluation, alone, 1e-6)
    assert sum(sizes) >= len(adapters) * blocks.num_blocks
    limit = 0
    with pytest.raises(DoesNotFit, match=r"does not fit into the memory of cpu$"):
        evaluate(pack, adapters, blocks)


def test_other_errors_of_an_evaluation_are_raised(
    make_base: MakeBase, blocks: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("shape mismatch")

    pack = Pack(make_base())
    monkeypatch.setattr(pack, "token_nll", fail)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        evaluate(pack, [], blocks)


def test_evaluation_runs_on_devices_of_any_type(
    make_base: MakeBase, blocks: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = Pack(make_base())
    (expected,) = evaluate(pack, [], blocks)
    rows: list[int] = []

    def on_mps(*arguments: Any) -> list[Evaluation]:
        rows.append(arguments[-1])
        return [expected]

    monkeypatch.setattr("hylorada.training.steps._evaluate_together", on_mps)
    monkeypatch.setattr(type(pack.base), "device", torch.device("mps"))
    assert evaluate(pack, [], blocks) == [expected]
    assert rows == [4096 // 16]
