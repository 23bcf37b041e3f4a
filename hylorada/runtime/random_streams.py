"""Independent random streams derived from one study seed, without a global generator."""

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed that depends on all parts and their order.

    It is the same on every machine and Python version.
    """
    digest = hashlib.sha256("\x1f".join(f"{type(p).__name__}:{p}" for p in parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def stream(*parts: int | str, device: "torch.device | str" = "cpu") -> "torch.Generator":
    """Return a generator seeded by :func:`derive_seed`."""
    import torch  # importing torch takes seconds, and a study's driver needs only seeds

    return torch.Generator(device).manual_seed(derive_seed(*parts))
