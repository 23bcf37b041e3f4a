"""Paired differences between two arms, the input of every comparison."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False)
class Differences:
    """Difference in loss per token, arm minus reference, of each search, seed and test block.

    Attributes:
        arm: Name of the arm.
        reference: Name of the arm that it is compared with.
        by_search: One [S_r, N] array for each of the R independent searches: S_r paired seeds, N
            test blocks in the order of the text, the same blocks in every search. Searches may
            differ in their number of seeds.
        documents: [N] label of the document to which each block belongs, or None where the text has
            no documents.
    """

    arm: str
    reference: str
    by_search: tuple[Floats, ...]
    documents: Ints | None = None

    def __post_init__(self) -> None:
        name = f"{self.arm!r} against {self.reference!r}"
        if not self.by_search:
            raise ValueError(f"{name}: `by_search` must hold at least one search")
        shapes = [list(d.shape) for d in self.by_search]
        if any(len(s) != 2 or s[0] < 1 or s[1] < 2 or s[1] != shapes[0][1] for s in shapes):
            raise ValueError(
                f"{name}: every search must be [seeds, blocks] with the same 2 or more blocks, "
                f"got {shapes}"
            )
        for number, values in enumerate(self.by_search):
            if not np.isfinite(values).all():
                raise ValueError(
                    f"{name}: losses must be finite, but those of search {number} are not"
                )
        if self.documents is not None and self.documents.shape != (self.blocks,):
            raise ValueError(
                f"{name}: `documents` must be [{self.blocks}], got {list(self.documents.shape)}"
            )

    @property
    def searches(self) -> int:
        """Number of independent searches, R."""
        return len(self.by_search)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Number of paired seeds of each search."""
        return tuple(len(d) for d in self.by_search)

    @property
    def blocks(self) -> int:
        """Number of test blocks, N."""
        return int(self.by_search[0].shape[1])

    @property
    def by_unit(self) -> Floats:
        """Independent replicates [U, N]: the searches, or the seeds of a single search."""
        if self.searches == 1:
            return self.by_search[0]
        return np.stack([d.mean(axis=0) for d in self.by_search])


def paired(
    arm: str,
    reference: str,
    arm_nll: Sequence[Floats],
    reference_nll: Sequence[Floats],
    tokens_per_block: int,
    documents: Ints | None = None,
) -> Differences:
    """Return the differences per token between two arms' summed block losses.

    Args:
        arm: Name of the arm.
        reference: Name of the arm that it is compared with.
        arm_nll: One [S_r, N] array for each search: sums of the negative log-likelihood over each
            test block.
        reference_nll: The same searches, seeds and blocks of the reference.
        tokens_per_block: Predicted tokens in each block.
        documents: [N] document of each block, if the text has documents.

    Example:
        >>> d = paired("learnable", "fixed", [np.full((2, 3), 99.0)], [np.full((2, 3), 100.0)], 50)
        >>> float(d.by_unit.mean())
        -0.02
    """
    if tokens_per_block < 1:
        raise ValueError(f"`tokens_per_block` must be at least 1, got {tokens_per_block}")
    ours, theirs = [np.shape(x) for x in arm_nll], [np.shape(x) for x in reference_nll]
    if ours != theirs:
        raise ValueError(
            f"arm {arm!r} has searches of shapes {ours}, "
            f"but its reference {reference!r} has {theirs}"
        )
    pairs = zip(arm_nll, reference_nll, strict=True)
    by_search = tuple((np.asarray(a, dtype=np.float64) - b) / tokens_per_block for a, b in pairs)
    return Differences(arm, reference, by_search, documents)
