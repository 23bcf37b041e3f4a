"""In your own loop and under Trainer, the optimizer trains boundaries as a seat does."""

import copy
import gc
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

from hylorada import (
    BatchOrder,
    HyLoRADAConfig,
    HyLoRADAModel,
    InputError,
    Seat,
    TrainingConfig,
    train_step,
)
from hylorada.training.seat import learning_rate_factor

MakeModel = Callable[..., HyLoRADAModel]

_STEPS, _BATCH = 8, 3
# all fields that act on boundaries, at a rate that moves some of them to the ends of the block
_ACTING: dict[str, Any] = {
    "landmark_bucketing": "learnable", "temperature": 0.1, "boundary_init": "fixed",
    "boundary_warmup": 0.4, "boundary_lr_scale": 20.0, "boundary_diversity": 0.3,
    "boundary_repulsion": 0.2,
}  # fmt: skip
_TRAINING = TrainingConfig(
    max_steps=_STEPS, batch_size=_BATCH, learning_rate=0.02, lr_scheduler_type="linear",
    warmup_ratio=0.0, weight_decay=0.1, max_grad_norm=0.3,
    adam_beta1=0.8, adam_beta2=0.95, adam_epsilon=1e-6,
)  # fmt: skip


class _InOrder(BatchOrder):
    """Batches of blocks in order, as of a sequential sampler."""

    def indices(self, step: int) -> npt.NDArray[np.int64]:
        return np.arange(step * self.batch_size, (step + 1) * self.batch_size)


@pytest.fixture
def make(make_model: MakeModel) -> MakeModel:
    """Return a function that builds a model with unmoved boundaries, so that a hold shows."""

    def make(**changes: Any) -> HyLoRADAModel:
        model = make_model(**{**_ACTING, **changes}).train()
        boundaries = model.adapter.boundaries
        if boundaries is not None:
            boundaries.data = torch.tensor([0.02, 0.5, 0.97], dtype=boundaries.dtype)
        return model

    return make


def _seat_run(model: HyLoRADAModel, token_blocks: npt.NDArray[np.int32]) -> list[Tensor]:
    """Return the adapter's parameters after a seat's run, and its boundaries after each step."""
    seat = Seat(model.adapter, _TRAINING, _InOrder(len(token_blocks), _BATCH, 0))
    path = []
    for _ in range(_STEPS):
        train_step(model._calls.pack, {0: seat}, token_blocks)
        path.append(_boundaries(model))
    return path


def _boundaries(model: HyLoRADAModel) -> Tensor:
    assert model.adapter.boundaries is not None
    return model.adapter.boundaries.detach().clone()


def _own_loop(model: HyLoRADAModel, token_blocks: npt.NDArray[np.int32]) -> list[Tensor]:
    """Train in a plain loop with a hand-written loss, because that of transformers is fp32."""
    optimizer = model.create_optimizer(_TRAINING)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, _TRAINING)
    )
    blocks, path = torch.from_numpy(token_blocks.astype(np.int64)), []
    boundaries = model.adapter.boundaries
    assert boundaries is not None
    for step in range(_STEPS):
        ids = blocks[step * _BATCH : (step + 1) * _BATCH]
        logits = model(input_ids=ids).logits[:, :-1]
        ends = torch.cat(
            [boundaries.new_zeros(1), boundaries.sort().values, boundaries.new_ones(1)]
        )
        penalty = -0.3 * boundaries.std(correction=0) - 0.2 * ends.diff().min()
        (
            nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()) + penalty
        ).backward()
        nn.utils.clip_grad_norm_(model.parameters(), _TRAINING.max_grad_norm)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        path.append(_boundaries(model))
    return path


def _mean_nll(*, logits: Tensor, labels: Tensor, num_items_in_batch: Tensor, **_: Any) -> Tensor:
    total = nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"
    )
    return total / num_items_in_batch


def _trainer(
    model: HyLoRADAModel, folder: Path, token_blocks: npt.NDArray[np.int32], **changes: Any
) -> Trainer:
    data = [
        {"input_ids": ids, "labels": ids} for ids in torch.from_numpy(token_blocks.astype(np.int64))
    ]
    options = _TRAINING.to_dict()
    for name in ("batch_size", "warmup_ratio", "replication_bf16", "replication_pads"):
        del options[name]  # Trainer has no such arguments
    options |= {"per_device_train_batch_size": _BATCH, **changes}
    args = TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to=[], disable_tqdm=True, save_steps=2,
        logging_steps=1, train_sampling_strategy="sequential", **options,
    )  # fmt: skip
    return Trainer(
        model,
        args,
        train_dataset=data,
        eval_dataset=data,
        optimizers=(model.create_optimizer(args), None),
    )


def _differences(one: HyLoRADAModel, other: HyLoRADAModel) -> dict[str, float]:
    pairs = zip(one.adapter.named_parameters(), other.adapter.parameters(), strict=True)
    return {name: float((a - b).detach().abs().max()) for (name, a), b in pairs}


def test_own_loop_trains_as_a_seat_does(
    make: MakeModel, token_blocks: npt.NDArray[np.int32]
) -> None:
    seated, own = make(), make()
    start = _boundaries(own)
    theirs, ours = _seat_run(seated, token_blocks), _own_loop(own, token_blocks)
    assert max(_differences(seated, own).values()) < 1e-10
    for one, other in zip(theirs, ours, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    held = [torch.equal(path, start) for path in ours]
    assert held == [True] * 4 + [False] * 4  # 0.4 x 8 steps, so step 3 begins within them
    assert any(
        bool(((path == 0) | (path == 1)).any()) for path in ours
    )  # without the clamp one would be outside


@pytest.mark.parametrize("accumulated", [1, 3])
def test_trainer_trains_as_a_seat_does(
    make: MakeModel, token_blocks: npt.NDArray[np.int32], tmp_path: Path, accumulated: int
) -> None:
    seated, trained = make(), make()
    trained.base.loss_function = _mean_nll  # the loss of transformers rounds the logits to fp32
    _seat_run(seated, token_blocks)
    sizes = {
        "per_device_train_batch_size": _BATCH // accumulated,
        "gradient_accumulation_steps": accumulated,
    }
    _trainer(trained, tmp_path, token_blocks, **sizes).train()
    assert max(_differences(seated, trained).values()) < 1e-10


def test_trainer_goes_on_bit_for_bit_while_boundaries_are_held(
    make: MakeModel, token_blocks: npt.NDArray[np.int32], tmp_path: Path
) -> None:
    whole, again = make(), make()
    _trainer(whole, tmp_path, token_blocks).train()
    _trainer(again, tmp_path, token_blocks).train(
        resume_from_checkpoint=str(tmp_path / "checkpoint-2")
    )
    assert set(_differences(whole, again).values()) == {0.0}


def test_loss_has_the_regularizers_in_training_alone(
    make: MakeModel, token_blocks: npt.NDArray[np.int32]
) -> None:
    model, ids = make(), torch.from_numpy(token_blocks[:2].astype(np.int64))
    penalty = -0.3 * float(torch.tensor([0.02, 0.5, 0.97]).std(correction=0)) - 0.2 * 0.02
    plain = float(model.eval()(input_ids=ids, labels=ids).loss.detach())
    model.train()
    assert float(model(input_ids=ids, labels=ids).loss.detach()) == pytest.approx(
        plain + penalty, abs=1e-6
    )
    loss, *rest = model(input_ids=ids, labels=ids, return_dict=False)
    assert float(loss.detach()) == pytest.approx(plain + penalty, abs=1e-6)
    assert rest[0].shape == (*ids.shape, model.config.vocab_size)
    with model.disable_adapter():
        base_alone = float(model.base(input_ids=ids, labels=ids).loss)
        assert float(model(input_ids=ids, labels=ids).loss) == base_alone


def _steps(
    model: HyLoRADAModel, optimizer: torch.optim.Optimizer, token_blocks: npt.NDArray[np.int32]
) -> list[bool]:
    """Return whether boundaries were held in each of eight steps."""
    ids, held = torch.from_numpy(token_blocks[:2].astype(np.int64)), []
    for _ in range(_STEPS):
        before = _boundaries(model)
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        held.append(torch.equal(before, _boundaries(model)))
    return held


_FOUR = [True] * 4 + [False] * 4  # of 0.4 x 8 steps the fourth begins within the hold


@pytest.mark.parametrize(
    "frozen", ["lora", "lora.model/layers/0/self_attn/q_proj.lora_A", "landmark.landmarks"]
)
def test_hold_ends_whatever_else_is_frozen(
    make: MakeModel, token_blocks: npt.NDArray[np.int32], frozen: str
) -> None:
    model = make()
    for name, parameter in model.adapter.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    assert _steps(model, model.create_optimizer(_TRAINING), token_blocks) == _FOUR


def test_boundaries_may_be_frozen_themselves(
    make: MakeModel, token_blocks: npt.NDArray[np.int32]
) -> None:
    model = make()
    model.adapter.get_parameter("landmark.boundaries").requires_grad_(False)
    assert _steps(model, model.create_optimizer(_TRAINING), token_blocks) == [True] * _STEPS


def test_closure_is_held_too(make: MakeModel, token_blocks: npt.NDArray[np.int32]) -> None:
    plain, closing = make(), make()
    ids = torch.from_numpy(token_blocks[:2].astype(np.int64))
    assert _steps(plain, plain.create_optimizer(_TRAINING), token_blocks) == _FOUR
    optimizer = closing.create_optimizer(_TRAINING)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = closing(input_ids=ids, labels=ids).loss
        loss.backward()
        return loss

    losses = [float(optimizer.step(closure).detach()) for _ in range(_STEPS)]
    assert set(_differences(plain, closing).values()) == {0.0}
    assert losses[-1] < losses[0]


def test_next_optimizer_holds_by_its_own_steps(
    make: MakeModel, token_blocks: npt.NDArray[np.int32]
) -> None:
    model = make()
    first = model.create_optimizer(_TRAINING)  # never used, but still referenced
    with pytest.raises(InputError, match="max_steps"):
        model.create_optimizer(TrainingArguments("unused", use_cpu=True))
    assert _steps(model, first, token_blocks) == _FOUR  # the refused call changed nothing
    first = model.create_optimizer(_TRAINING)
    short = model.create_optimizer(replace(_TRAINING, max_steps=1))  # holds for one step
    assert _steps(model, short, token_blocks)[:2] == [True, False]


@pytest.mark.parametrize("ending", ["gone", "closed"])
def test_hold_ends_with_its_optimizer(
    make: MakeModel, token_blocks: npt.NDArray[np.int32], ending: str
) -> None:
    model = make()
    optimizer: torch.optim.Optimizer | None = model.create_optimizer(_TRAINING)
    boundaries = model.adapter.get_parameter("landmark.boundaries")
    if ending == "gone":
        del optimizer
        gc.collect()
    else:
        model.close()
        model = HyLoRADAModel(model.base, model.active_peft_config).train()
        model.adapter.get_submodule("landmark").register_parameter("boundaries", boundaries)
    assert not all(_steps(model, torch.optim.SGD(model.adapter.parameters(), lr=0.1), token_blocks))


def test_seat_holds_by_its_own_steps(make: MakeModel, token_blocks: npt.NDArray[np.int32]) -> None:
    model, alone = make(), make()
    optimizer = model.create_optimizer(_TRAINING)
    for one, other in zip(
        _seat_run(model, token_blocks), _seat_run(alone, token_blocks), strict=True
    ):
        assert torch.equal(one, other)
    assert optimizer.holds()  # type: ignore[attr-defined]  # it was never stepped
    with pytest.raises(RuntimeError, match="a seat trains this adapter with its own optimizer"):
        model.create_optimizer(_TRAINING)


def test_copies_have_the_hold_of_their_optimizer(
    make: MakeModel, token_blocks: npt.NDArray[np.int32], tmp_path: Path
) -> None:
    model = make()
    pair = model, model.create_optimizer(_TRAINING)
    torch.save(pair, tmp_path / "pair.pt")
    copies: list[Any] = [copy.deepcopy(pair), torch.load(tmp_path / "pair.pt", weights_only=False)]
    for copied, optimizer in copies:
        assert _steps(copied, optimizer, token_blocks) == _FOUR
    free = copy.deepcopy(model)  # without an optimizer nothing holds it
    assert not any(_steps(free, torch.optim.SGD(free.adapter.parameters(), lr=0.1), token_blocks))


def test_longer_run_holds_by_its_own_number_of_steps(
    make: MakeModel, token_blocks: npt.NDArray[np.int32]
) -> None:
    model = make()
    optimizer = model.create_optimizer(_TRAINING)
    assert _steps(model, optimizer, token_blocks)[:1] == [True]
    longer = model.create_optimizer(replace(_TRAINING, max_steps=100))
    longer.load_state_dict(optimizer.state_dict())
    (group,) = (g for g in longer.param_groups if g["name"] == "boundaries")
    assert (group["steps"], group["hold_steps"]) == (_STEPS, 40)


def test_hooks_are_called_once_a_step_and_other_groups_are_let_be(
    make: MakeModel, token_blocks: npt.NDArray[np.int32]
) -> None:
    torch.optim.AdamW(
        [nn.Parameter(torch.zeros(1))]
    )  # torch has now wrapped the class's step for hooks
    model, called = make(), list[str]()
    optimizer = model.create_optimizer(_TRAINING)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    _steps(model, optimizer, token_blocks)
    assert called == ["before", "after"] * _STEPS


def test_fixed_buckets_need_no_steps_of_their_own(make: MakeModel) -> None:
    model = make(landmark_bucketing="fixed", boundary_warmup=0.0)
    optimizer = model.create_optimizer(_TRAINING)
    assert [(g["name"], g["lr"], g["weight_decay"]) for g in optimizer.param_groups] == [
        ("matrices", 0.02, 0.1), ("scalars", 0.02, 0.0)
    ]  # fmt: skip
    assert {id(p) for g in optimizer.param_groups for p in g["params"]} == {
        id(p) for p in model.adapter.parameters()
    }


@pytest.mark.parametrize(
    "changes", [{"label_smoothing_factor": 0.1}, {}], ids=["smoothing", "own loss"]
)
def test_loss_of_somebody_else_is_refused_with_regularizers(
    make: MakeModel, token_blocks: npt.NDArray[np.int32], tmp_path: Path, changes: dict[str, Any]
) -> None:
    for weights, refused in ((0.3, True), (0.0, False)):
        model = make(boundary_diversity=weights, boundary_repulsion=0.0)
        trainer = _trainer(model, tmp_path, token_blocks, **changes)
        if not changes:
            trainer.compute_loss_func = lambda output, labels, **_: output.logits.square().mean()
        if refused:
            with pytest.raises(
                InputError, match="label_smoothing_factor and compute_loss_func leave it out"
            ):
                trainer.train()
        else:
            trainer.train()


def test_hold_without_a_number_of_steps_is_refused(make: MakeModel, tmp_path: Path) -> None:
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)  # the default is three epochs
    with pytest.raises(InputError, match=r"boundary_warmup 0\.4 is a share of max_steps.*got -1"):
        make().create_optimizer(args)
    make(boundary_warmup=0.0).create_optimizer(args)


@pytest.mark.parametrize(
    "training", [None, {"max_steps": 8}, HyLoRADAConfig()], ids=["none", "dict", "adapter's"]
)
def test_other_kinds_of_training_are_refused(make: MakeModel, training: Any) -> None:
    with pytest.raises(
        InputError, match="training must be a TrainingConfig or transformers' TrainingArguments"
    ):
        make().create_optimizer(training)


def test_settings_are_checked_and_are_the_optimizers(make: MakeModel, tmp_path: Path) -> None:
    optimizer = make().create_optimizer(_TRAINING)
    assert (optimizer.defaults["lr"], optimizer.defaults["weight_decay"]) == (0.02, 0.1)
    with pytest.raises(ValueError, match="Invalid learning rate"):
        make().create_optimizer(
            TrainingArguments(str(tmp_path), learning_rate=-1.0, max_steps=8, use_cpu=True)
        )


def test_optimizer_of_a_closed_model_is_refused(make: MakeModel) -> None:
    model = make()
    model.close()
    with pytest.raises(RuntimeError, match="closed"):
        model.create_optimizer(_TRAINING)
