"""The compared training loops: stock PEFT with one trial at a time, and a pack of K trials."""

import math
import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from hylorada import (
    Adapter,
    BatchOrder,
    HyLoRADAConfig,
    Lanes,
    Seat,
    TrainingConfig,
    load_base,
    read_step,
)
from hylorada.base_models.architectures import architecture_of, head_of
from studies.bench.designs import ALPHA, LORA, trial_adapter
from studies.bench.options import Setting

Tokens = npt.NDArray[np.int32]
_MAX_STEPS = 10_000  # length of the schedule, which no measurement reaches


class Loop(Protocol):
    """A loop that trains its trials one step further with each call."""

    def step(self) -> None:
        """Train one step of each trial."""

    def finish(self) -> None:
        """Read the results of steps that have been started."""


def bench_base(setting: Setting) -> PreTrainedModel:
    """Load the base, frozen and in eval mode.

    Dropout in the base would only slow the rows that support it.
    """
    return load_base(setting.base, dtype=getattr(torch, setting.dtype), device=setting.device)


def bench_lanes(base: PreTrainedModel, setting: Setting) -> Lanes:
    """Build lanes as a host does."""
    return Lanes(
        base,
        compile_backend="inductor" if base.device.type == "cuda" else None,
        gradient_checkpointing=setting.gradient_checkpointing,
    )


def trial_training(setting: Setting, trial: int) -> TrainingConfig:
    """Return the training config of a trial; learning rates differ as in a search."""
    rate = 1e-3 * (1 + trial / 16)
    return TrainingConfig(max_steps=_MAX_STEPS, batch_size=setting.batch_size, learning_rate=rate)


def trial_order(setting: Setting, input_ids: Tokens) -> BatchOrder:
    """Return the batch order, the same for every trial."""
    return BatchOrder(len(input_ids), setting.batch_size, seed=0)


class PlainLoop:
    """A loop of stock PEFT with ``torch.optim.AdamW`` and torch's cross entropy.

    LoRA has the same rank, alpha, scaling and targets as in a pack. The adapter is fp32 over a base
    of any dtype, which is PEFT's default. The loop clips gradients as a pack does, but reads no
    loss before the end of a measurement.
    """

    def __init__(
        self,
        base: PreTrainedModel,
        setting: Setting,
        input_ids: Tokens,
        *,
        learning_rate: float = 1e-3,
    ) -> None:
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(
            r=setting.r,
            lora_alpha=ALPHA,
            use_rslora=True,
            target_modules=list(architecture_of(base.config.model_type).attention_projections),
            fan_in_fan_out=base.config.model_type == "gpt2",
            task_type="CAUSAL_LM",
        )
        with warnings.catch_warnings():
            # PEFT 0.19-0.21 reads a deprecated attribute.
            warnings.simplefilter("ignore", FutureWarning)
            self._model: Any = get_peft_model(base, config).eval()
        self._device = base.device
        self._trained = [p for p in self._model.parameters() if p.requires_grad]
        self._training = trial_training(setting, 0)
        self._optimizer = torch.optim.AdamW(self._trained, lr=learning_rate, weight_decay=0.0)
        self._order, self._input_ids, self._step = trial_order(setting, input_ids), input_ids, 0

    def step(self) -> None:
        """Train one step."""
        batch = self._input_ids[self._order.indices(self._step)]
        tokens = torch.from_numpy(batch).to(self._device, torch.long)
        loss = self._model(input_ids=tokens, labels=tokens, use_cache=False).loss
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._trained, self._training.max_grad_norm)
        self._optimizer.step()
        self._step += 1

    @torch.no_grad()
    def evaluate(self, input_ids: Tokens) -> float:
        """Return the mean NLL of blocks [N, T]."""
        losses: list[float] = []
        for start in range(0, len(input_ids), self._order.batch_size):
            batch = input_ids[start : start + self._order.batch_size]
            tokens = torch.from_numpy(batch).to(self._device, torch.long)
            losses += [
                self._model(input_ids=tokens, labels=tokens, use_cache=False).loss.item()
            ] * len(batch)
        return sum(losses) / len(losses)

    def finish(self) -> None:
        """Do nothing: the caller that measures time waits for the device."""


class PackLoop:
    """A loop of a pack with the given trial numbers."""

    def __init__(
        self,
        lanes: Lanes,
        setting: Setting,
        input_ids: Tokens,
        trials: Sequence[int],
        design: str = LORA,
    ) -> None:
        order = trial_order(setting, input_ids)
        self._lanes, self._input_ids = lanes, torch.from_numpy(input_ids).to(lanes.base.device)
        self._seats = {
            k: self._seat(k, trial_adapter(setting, design, k), setting, order) for k in trials
        }
        self.series: dict[int, list[float]] = {k: [] for k in trials}
        self._unread: list[Any] = []

    def _seat(
        self, trial: int, config: HyLoRADAConfig, setting: Setting, order: BatchOrder
    ) -> Seat:
        adapter = Adapter(self._lanes.base, config, seed=trial)
        return Seat(adapter, trial_training(setting, trial), order)

    def step(self) -> None:
        """Start a step and read the previous one, as the host of a study does."""
        before, self._unread = self._unread, self._lanes.start_step(self._seats, self._input_ids)
        self._read(before)

    def finish(self) -> None:
        """Read the last step."""
        before, self._unread = self._unread, []
        self._read(before)

    def _read(self, started: list[Any]) -> None:
        if self._lanes.max_seats is not None:
            raise torch.OutOfMemoryError(f"a pack of {len(self._seats)}")
        for trial, loss in read_step(started).items():
            self.series[trial].append(loss if isinstance(loss, float) else math.nan)

    def num_parameters(self) -> int:
        """Return the number of trained parameters of a seat, the largest if ranks differ."""
        return max(seat.adapter.num_parameters() for seat in self._seats.values())


def matmul_parameters(base: PreTrainedModel) -> int:
    """Return the number of parameters that each token is multiplied with.

    These are all of the base, with a tied head counted once and an untied input table not at all.
    """
    (head, _), table = head_of(base), next(base.get_input_embeddings().parameters())
    total = sum(p.numel() for p in base.parameters())
    return total if head is table else total - table.numel()


def step_operations(base: PreTrainedModel, setting: Setting) -> int:
    """Return the operations of one trial-step, 4 x parameters x tokens.

    The forward pass takes a multiplication and an addition for each parameter and token, and the
    backward pass as many for the gradients of the activations; a frozen base has no gradients of
    weights. Attention's own products and the adapter's are left out, so the share of the matmul
    rate is a lower bound.
    """
    return 4 * matmul_parameters(base) * setting.tokens
