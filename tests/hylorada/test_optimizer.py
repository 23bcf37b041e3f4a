"""The optimizer for loops of one's own, and under Trainer: boundaries train there as a seat trains them."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from hylorada import BatchOrder, HyLoRADAModel, InputError, Seat, TrainingConfig, train_step
from hylorada._seat import learning_rate_factor

MakeModel = Callable[..., HyLoRADAModel]

_STEPS, _BATCH = 8, 3
# everything that acts on boundaries, at a rate that takes some of them to the block's ends
_ACTING: dict[str, Any] = {
    "landmark_bucketing": "learnable", "temperature": 0.1, "boundary_init": "fixed", "boundary_warmup": 0.4,
    "boundary_lr_scale": 20.0, "boundary_diversity": 0.3, "boundary_repulsion": 0.2,
}  # fmt: skip
_TRAINING = TrainingConfig(
    max_steps=_STEPS, batch_size=_BATCH, learning_rate=0.02, weight_decay=0.1, max_grad_norm=0.3, warmup_ratio=0.0,
    lr_scheduler_type="linear", adam_beta1=0.8, adam_beta2=0.95, adam_epsilon=1e-6,
)  # fmt: skip


class _InOrder(BatchOrder):
    """Blocks as they lie, as a sequential sampler gives them."""

    def indices(self, step: int) -> npt.NDArray[np.int64]:
        return np.arange(step * self.batch_size, (step + 1) * self.batch_size)


@pytest.fixture
def make(make_model: MakeModel) -> MakeModel:
    """One whose boundaries are where they start, so that one can see them held."""

    def make(**changes: Any) -> HyLoRADAModel:
        model = make_model(**{**_ACTING, **changes}).train()
        boundaries = model.adapter.boundaries
        if boundaries is not None:
            boundaries.data = torch.tensor([0.02, 0.5, 0.97], dtype=boundaries.dtype)
        return model

    return make


def _seat_run(model: HyLoRADAModel, token_blocks: npt.NDArray[np.int32]) -> list[Tensor]:
    """The adapter's parameters after a seat's run, and its boundaries after each step."""
    seat = Seat(model.adapter, _TRAINING, _InOrder(len(token_blocks), _BATCH, 0))
    path = []
    for _ in range(_STEPS):
        train_step(model._pack, {0: seat}, token_blocks)
        path.append(_boundaries(model))
    return path


def _boundaries(model: HyLoRADAModel) -> Tensor:
    assert model.adapter.boundaries is not None
    return model.adapter.boundaries.detach().clone()


def _own_loop(model: HyLoRADAModel, token_blocks: npt.NDArray[np.int32]) -> list[Tensor]:
    """A loop as people write it; its loss by hand, for that of transformers is fp32."""
    optimizer = model.create_optimizer(_TRAINING)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, _TRAINING))
    blocks, path = torch.from_numpy(token_blocks.astype(np.int64)), []
    boundaries = model.adapter.boundaries
    assert boundaries is not None
    for step in range(_STEPS):
        ids = blocks[step * _BATCH : (step + 1) * _BATCH]
        logits = model(input_ids=ids).logits[:, :-1]
        ends = torch.cat([boundaries.new_zeros(1), boundaries.sort().values, boundaries.new_ones(1)])
        penalty = -0.3 * boundaries.std(correction=0) - 0.2 * ends.diff().min()
        (nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()) + penalty).backward()
        nn.utils.clip_grad_norm_(model.parameters(), _TRAINING.max_grad_norm)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        path.append(_boundaries(model))
    return path


def _mean_nll(*, logits: Tensor, labels: Tensor, num_items_in_batch: Tensor, **_: Any) -> Tensor:
    total = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
    return total / num_items_in_batch


def _trainer(model: HyLoRADAModel, folder: Path, token_blocks: npt.NDArray[np.int32], **changes: Any) -> Trainer:
    labels = torch.from_numpy(token_blocks.astype(np.int64))
    data = [{"input_ids": ids, "labels": torch.cat([ids.new_tensor([-100]), ids[1:]])} for ids in labels]
    same = ("max_steps", "learning_rate", "weight_decay", "max_grad_norm", "adam_beta1", "adam_beta2", "adam_epsilon")
    args = TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to=[], disable_tqdm=True, lr_scheduler_type="linear",
        train_sampling_strategy="sequential", save_steps=2, logging_steps=1,
        **{"per_device_train_batch_size": _BATCH, **{name: getattr(_TRAINING, name) for name in same}, **changes},
    )  # fmt: skip
    return Trainer(model, args, train_dataset=data, eval_dataset=data, optimizers=(model.create_optimizer(args), None))


def _differences(one: HyLoRADAModel, other: HyLoRADAModel) -> dict[str, float]:
    pairs = zip(one.adapter.named_parameters(), other.adapter.parameters(), strict=True)
    return {name: float((a - b).detach().abs().max()) for (name, a), b in pairs}


def test_own_loop_trains_as_a_seat_does(make: MakeModel, token_blocks: npt.NDArray[np.int32]) -> None:
    seated, own = make(), make()
    start = _boundaries(own)
    theirs, ours = _seat_run(seated, token_blocks), _own_loop(own, token_blocks)
    assert max(_differences(seated, own).values()) < 1e-10
    for one, other in zip(theirs, ours, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    held = [torch.equal(path, start) for path in ours]
    assert held == [True] * 4 + [False] * 4  # 0.4 x 8 steps, so step 3 begins within them
    assert any(bool(((path == 0) | (path == 1)).any()) for path in ours)  # without the clamp one would be outside


@pytest.mark.parametrize("accumulated", [1, 3])
def test_trainer_trains_as_a_seat_does(
    make: MakeModel, token_blocks: npt.NDArray[np.int32], tmp_path: Path, accumulated: int
) -> None:
    seated, trained = make(), make()
    trained.base.loss_function = _mean_nll  # transformers' own rounds the logits to fp32
    _seat_run(seated, token_blocks)
    sizes = {"per_device_train_batch_size": _BATCH // accumulated, "gradient_accumulation_steps": accumulated}
    _trainer(trained, tmp_path, token_blocks, **sizes).train()
    assert max(_differences(seated, trained).values()) < 1e-10


def test_trainer_goes_on_bit_for_bit_while_boundaries_are_held(
    make: MakeModel, token_blocks: npt.NDArray[np.int32], tmp_path: Path
) -> None:
    whole, again = make(), make()
    _trainer(whole, tmp_path, token_blocks).train()
    _trainer(again, tmp_path, token_blocks).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert set(_differences(whole, again).values()) == {0.0}


def test_loss_has_the_regularizers_in_training_alone(make: MakeModel, token_blocks: npt.NDArray[np.int32]) -> None:
    model, ids = make(), torch.from_numpy(token_blocks[:2].astype(np.int64))
    penalty = -0.3 * float(torch.tensor([0.02, 0.5, 0.97]).std(correction=0)) - 0.2 * 0.02
    plain = float(model.eval()(input_ids=ids, labels=ids).loss.detach())
    model.train()
    assert float(model(input_ids=ids, labels=ids).loss.detach()) == pytest.approx(plain + penalty, abs=1e-6)
    loss, *rest = model(input_ids=ids, labels=ids, return_dict=False)
    assert float(loss.detach()) == pytest.approx(plain + penalty, abs=1e-6)
    assert rest[0].shape == (*ids.shape, model.config.vocab_size)
    with model.disable_adapter():
        base_alone = float(model.base(input_ids=ids, labels=ids).loss)
        assert float(model(input_ids=ids, labels=ids).loss) == base_alone


def test_next_optimizer_holds_by_its_own_steps(make: MakeModel, token_blocks: npt.NDArray[np.int32]) -> None:
    model, ids = make(), torch.from_numpy(token_blocks[:2].astype(np.int64))
    first = model.create_optimizer(_TRAINING)  # left unused, but alive
    boundaries = model.adapter.boundaries
    assert boundaries is not None
    free = model.create_optimizer(replace(_TRAINING, max_steps=1))  # holds for one step
    for expected in (True, False):
        model(input_ids=ids, labels=ids).loss.backward()
        assert (boundaries.grad is not None and not boundaries.grad.any()) == expected
        free.step()
        free.zero_grad()
    assert not first.state


def test_copies_are_held_by_no_optimizer(make: MakeModel, token_blocks: npt.NDArray[np.int32], tmp_path: Path) -> None:
    model, ids = make(), torch.from_numpy(token_blocks[:2].astype(np.int64))
    optimizer = model.create_optimizer(_TRAINING)
    torch.save(model, tmp_path / "model.pt")
    copies: list[Any] = [copy.deepcopy(model), torch.load(tmp_path / "model.pt", weights_only=False)]
    for copied in copies:
        copied(input_ids=ids, labels=ids).loss.backward()
        assert copied.adapter.boundaries.grad.any()
    assert not optimizer.state


def test_fixed_buckets_need_no_steps_of_their_own(make: MakeModel) -> None:
    model = make(landmark_bucketing="fixed", boundary_warmup=0.0)
    optimizer = model.create_optimizer(_TRAINING)
    assert [(g["name"], g["lr"], g["weight_decay"]) for g in optimizer.param_groups] == [
        ("matrices", 0.02, 0.1), ("scalars", 0.02, 0.0)
    ]  # fmt: skip
    assert {id(p) for g in optimizer.param_groups for p in g["params"]} == {id(p) for p in model.adapter.parameters()}


def test_hold_without_a_number_of_steps_is_refused(make: MakeModel, tmp_path: Path) -> None:
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)  # three epochs
    with pytest.raises(InputError, match=r"boundary_warmup 0\.4 is a share of max_steps.*got -1"):
        make().create_optimizer(args)
    make(boundary_warmup=0.0).create_optimizer(args)


def test_optimizer_of_a_closed_model_is_refused(make: MakeModel) -> None:
    model = make()
    model.close()
    with pytest.raises(RuntimeError, match="closed"):
        model.create_optimizer(_TRAINING)
