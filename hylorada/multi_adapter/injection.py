"""Where the pack reaches into the base: every linear module of a decoder layer has a slot for what is added to it.

The modules change class, not place: paths, parameters and ``isinstance`` checks stay as they were. A forward hook would
do the same, but hooks are told apart by number, and one compiled layer could then not serve all layers.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from hylorada.adapters.landmarks.per_layer import LayerMix
from hylorada.errors import InputError


@dataclass(eq=False)
class LowRank:
    """The low-rank updates of K seats to one module.

    All are tensors of their own, no views: compiled code checks the sizes of what a view is a view of, too.

    Attributes:
        lora_A: [K, r * d_in], seat by seat [r, d_in].
        lora_B: [K, d_out * r], seat by seat [d_out, r].
        gain: scaling times position bias, [K, 1 or b, 1 or T, 1].
        rows: b; None takes it from the input, at a price in compiled code.
        masks: draws the dropout mask of an input [K, b, T, d_in]; None without dropout.
        excess: [K, d_out] DoRA's magnitude over the norm of the updated weight, less 1; 0 for seats without DoRA, None
            where no seat has it. Less 1, for in bf16 a factor near 1 would keep two digits.
    """

    lora_A: Tensor  # noqa: N815 (PEFT's names)
    lora_B: Tensor  # noqa: N815
    gain: Tensor
    rows: int | None
    masks: Any = None
    excess: Tensor | None = None

    def dynamic(self) -> list[tuple[Tensor, int]]:
        """Tensors and their dimensions that differ from pack to pack: K."""
        found = (self.lora_A, self.lora_B, self.gain, self.excess)
        return [(t, 0) for t in found if t is not None]

    def add_to(self, output: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        """output + gain * (x @ A.T) @ B.T; x is [K * b, T, d_in], output [K * b, T, d_out].

        With DoRA all but the bias is scaled by 1 + excess. Dropout is on the update alone (Liu et al. 2024); PEFT drops
        from the input of the frozen weight's share of the scaling, too.
        """
        seats, length = self.lora_A.shape[0], x.shape[1]
        rows = x.shape[0] // seats if self.rows is None else self.rows
        d_in, d_out, rank = x.shape[2], output.shape[2], self.lora_A.shape[1] // x.shape[2]
        x = x.reshape(seats, rows * length, d_in)
        if self.masks is not None:
            x = x * self.masks(x.view(seats, rows, length, d_in)).view(x.shape)
        low = torch.bmm(x, self.lora_A.view(seats, rank, d_in).mT)  # [K, b * T, r]
        low = (low.view(seats, rows, length, rank) * self.gain).view(seats, rows * length, rank)
        delta = torch.bmm(low, self.lora_B.view(seats, d_out, rank).mT)
        updated = output + delta.view(
            output.shape
        )  # compiled, it joins what comes next; a baddbmm would copy first
        if self.excess is None:
            return updated
        scaled = (updated if bias is None else updated - bias).view(delta.shape) * self.excess[
            :, None
        ]
        return updated + scaled.view(output.shape)


@dataclass(eq=False)
class Slot:
    """What is added to the output of one module: low-rank updates, then (at a layer's MLP output) landmarks."""

    update: LowRank | None = None
    landmarks: LayerMix | None = None

    def dynamic(self) -> list[tuple[Tensor, int]]:
        """Tensors and their dimensions that differ from pack to pack."""
        return [
            pair
            for part in (self.update, self.landmarks)
            if part is not None
            for pair in part.dynamic()
        ]

    def add_to(self, output: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.update is not None:
            output = self.update.add_to(output, x, bias)
        return output if self.landmarks is None else self.landmarks.add_to(output)


class _SlottedLinear(nn.Linear):
    slot: Slot | None

    def forward(self, x: Tensor) -> Tensor:
        output = F.linear(x, self.weight, self.bias)
        return output if self.slot is None else self.slot.add_to(output, x, self.bias)


class _SlottedConv1D(Conv1D):
    slot: Slot | None

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = Conv1D.forward(self, x)
        return output if self.slot is None else self.slot.add_to(output, x, self.bias)


_SLOTTED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: _SlottedLinear,
    Conv1D: _SlottedConv1D,
}
_PLAIN = {slotted: plain for plain, slotted in _SLOTTED.items()}


def open_slot(module: nn.Module) -> None:
    """Give a linear module a slot; several packs may share a base, the last to close gives the module back.

    Raises:
        InputError: a linear module of another class (a quantized one, say), whose arithmetic isn't known here.
    """
    if type(module) not in _SLOTTED.keys() | _PLAIN.keys():
        raise InputError(
            f"linear modules of class {type(module).__name__} are not supported; load the base unquantized"
        )
    if type(module) in _SLOTTED:
        module.__class__ = _SLOTTED[type(module)]
        vars(module).update(slot=None, slot_users=0)
    vars(module)["slot_users"] += 1


def close_slot(module: nn.Module) -> None:
    state = vars(module)
    state["slot_users"] -= 1
    if not state["slot_users"]:
        module.__class__ = _PLAIN[type(module)]
        del state["slot"], state["slot_users"]


def fill_slot(module: nn.Module, slot: Slot | None) -> Slot | None:
    """Set what is added in the next forward; returns what was set before."""
    before: Slot | None = vars(module)["slot"]
    vars(module)["slot"] = slot
    return before
