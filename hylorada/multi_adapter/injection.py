"""How a pack adds to the base: every linear module of a decoder layer gets a slot.

The modules change their class and stay where they are, so paths, parameters and ``isinstance``
checks still hold. Forward hooks would do the same, but torch.compile distinguishes modules by their
hooks, and one compiled layer could not serve all layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from hylorada.adapters.landmarks.per_layer import LayerMix
from hylorada.base_models.quantization import is_repacked, linear_4bit
from hylorada.errors import InputError
from hylorada.multi_adapter.four_bit_linear import FourBitProduct
from hylorada.multi_adapter.spread_base import change_class, has_own_forward


@dataclass(eq=False)
class LowRank:
    """The low-rank updates of K seats to one module; :meth:`LoRA.forward` is the same for one seat.

    No tensor is a view, because compiled code also checks the size of a view's base.

    Attributes:
        lora_A: [K, r * d_in], each row a flattened [r, d_in].
        lora_B: [K, d_out * r], each row a flattened [d_out, r].
        gain: scaling times position factors, [K, 1 or b, 1 or T, 1].
        rows: b; None takes it from the input, which costs recompilations in compiled code.
        masks: draws the dropout mask of an input [K, b, T, d_in]; None without dropout.
        excess: [K, d_out] DoRA's magnitude over the norm of the updated weight, minus 1; 0 for
            seats without DoRA, None if no seat has it. In bf16, a factor near 1 would keep only two
            digits; the difference keeps them.
    """

    lora_A: Tensor  # noqa: N815 (PEFT's names)
    lora_B: Tensor  # noqa: N815
    gain: Tensor
    rows: int | None
    masks: Any = None
    excess: Tensor | None = None

    def dynamic(self) -> list[tuple[Tensor, int]]:
        """Return each tensor with the dimension that varies between packs: K."""
        tensors = (self.lora_A, self.lora_B, self.gain, self.excess)
        return [(t, 0) for t in tensors if t is not None]

    def add_to(self, output: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return output + gain * (x @ A.T) @ B.T, all but the bias scaled by 1 + excess (DoRA).

        Dropout applies to the update alone (Liu et al. 2024); PEFT also drops from the input of the
        frozen weight where it scales that weight's output.

        Args:
            output: of the frozen module, [K * b, T, d_out].
            x: its input, [K * b, T, d_in].
            bias: of the frozen module, [d_out], or None.
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
        # compiled code fuses this sum with what follows; a baddbmm would copy the output first
        updated = output + delta.view(output.shape)
        if self.excess is None:
            return updated
        unbiased = (updated if bias is None else updated - bias).view(delta.shape)
        return updated + (unbiased * self.excess[:, None]).view(output.shape)


@dataclass(eq=False)
class Slot:
    """Additions to one module's output: low-rank updates, then landmarks (MLP outputs only)."""

    update: LowRank | None = None
    landmarks: LayerMix | None = None

    def dynamic(self) -> list[tuple[Tensor, int]]:
        """Return each tensor with the dimensions that vary between packs."""
        update = [] if self.update is None else self.update.dynamic()
        return update if self.landmarks is None else [*update, *self.landmarks.dynamic()]

    def add_to(self, output: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return the output [K * b, T, d_out] with everything in the slot added."""
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


class _Slotted4Bit(nn.Linear):
    slot: Slot | None

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = FourBitProduct.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return output if self.slot is None else self.slot.add_to(output, x, self.bias)


_SLOTTED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: _SlottedLinear,
    Conv1D: _SlottedConv1D,
}
_PLAIN = {slotted: plain for plain, slotted in _SLOTTED.items()}


def _support_4bit() -> None:
    """Add bitsandbytes' 4-bit modules to the supported classes, if it has been imported."""
    plain = linear_4bit()
    if plain is not None and plain not in _SLOTTED:
        _SLOTTED[plain] = type("_SlottedLinear4bit", (_Slotted4Bit, plain), {})
        _PLAIN[_SLOTTED[plain]] = plain


def has_slot(module: nn.Module) -> bool:
    """Return whether a pack has given a module a slot."""
    return type(module) in _PLAIN


def open_slot(module: nn.Module) -> None:
    """Give a linear module a slot; the module is restored when its last pack closes.

    Raises:
        InputError: the module is of another class, such as one of 8 bits, another tool has
            replaced its forward, or bitsandbytes has rounded its scales.
    """
    _support_4bit()
    if type(module) not in _SLOTTED.keys() | _PLAIN.keys():
        raise InputError(
            f"linear modules of class {type(module).__name__} are not supported; "
            "load the base unquantized"
        )
    if is_repacked(module):
        raise InputError(
            "the base has computed without an adapter, for which bitsandbytes has rounded its "
            "4-bit weights; load it afresh"
        )
    if has_own_forward(module):
        raise InputError(
            f"a linear module of class {type(module).__name__} has a forward of its own, which "
            "adapters don't reach; load the base afresh"
        )
    if type(module) in _SLOTTED:
        change_class(module, _SLOTTED[type(module)])
        vars(module).update(slot=None, slot_users=0)
    vars(module)["slot_users"] += 1


def open_slots(modules: Sequence[nn.Module]) -> None:
    """Give each linear module a slot, or none of them.

    Raises:
        InputError: :func:`open_slot` refuses a module; all are left as they were.
    """
    for number, module in enumerate(modules):
        try:
            open_slot(module)
        except InputError:
            for opened in modules[:number]:
                close_slot(opened)
            raise


def close_slot(module: nn.Module) -> None:
    """Take one pack's use of a slot back; without any use left, restore the module's class."""
    state = vars(module)
    state["slot_users"] -= 1
    if not state["slot_users"]:
        change_class(module, _PLAIN[type(module)])
        del state["slot"], state["slot_users"]


def fill_slot(module: nn.Module, slot: Slot | None) -> Slot | None:
    """Set what the next forward adds, and return what was set before."""
    before: Slot | None = vars(module)["slot"]
    vars(module)["slot"] = slot
    return before
