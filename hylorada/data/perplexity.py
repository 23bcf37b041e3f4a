"""Perplexity and related figures from per-token losses, as fp64 sums and never means of means."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NUM_BINS = 10

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Losses of one model on N blocks of T tokens.

    Attributes:
        block_bins: [N, 10] sums of NLL in nats over the predicted tokens of each block, by tenths
            of the position range; target position p is in bin floor(10 p / T).
        bin_tokens: [10], numbers of predicted tokens in each bin.
        num_bytes: number of UTF-8 bytes of the predicted tokens.
    """

    block_bins: Floats
    bin_tokens: npt.NDArray[np.int64]
    num_bytes: int

    @property
    def block_nll(self) -> Floats:
        """Sums [N] of NLL over each block's T-1 predicted tokens."""
        return np.asarray(self.block_bins.sum(axis=1))

    @property
    def bin_nll(self) -> Floats:
        """Sums [10] of NLL by tenths of the position range."""
        return np.asarray(self.block_bins.sum(axis=0))

    @property
    def tokens(self) -> int:
        """Number of predicted tokens."""
        return int(self.bin_tokens.sum())

    @property
    def nll(self) -> float:
        """Mean NLL in nats per predicted token."""
        return float(self.block_nll.sum() / self.tokens)

    @property
    def ppl(self) -> float:
        """Perplexity: exp(nll)."""
        return perplexity(self.nll)

    @property
    def bits_per_byte(self) -> float:
        """Mean NLL in bits per byte; NaN if no token has bytes (one-token blocks of separators)."""
        return (
            float(self.block_nll.sum()) / math.log(2) / self.num_bytes
            if self.num_bytes
            else math.nan
        )

    @property
    def ppl_bins(self) -> tuple[float, ...]:
        """PPL by tenths of the position range.

        It is NaN for a bin without targets (blocks of fewer than 11 tokens).
        """
        pairs = zip(self.bin_nll.tolist(), self.bin_tokens.tolist(), strict=True)
        return tuple(perplexity(s / n) if n else math.nan for s, n in pairs)

    @property
    def lim_ppl(self) -> float:
        """Mean PPL of the bins that have targets: the published "LIM-PPL"."""
        return float(
            np.mean([ppl for ppl, n in zip(self.ppl_bins, self.bin_tokens, strict=True) if n])
        )

    @property
    def ppl_middle(self) -> float:
        """PPL of the middle four tenths of the position range."""
        middle = slice(3, 7)
        return perplexity(float(self.bin_nll[middle].sum() / max(1, self.bin_tokens[middle].sum())))

    def metrics(self) -> dict[str, float]:
        """Return every figure under the name that the command line and MLflow use."""
        bins = {f"ppl_bin_{i}": p for i, p in enumerate(self.ppl_bins)}
        named = ("nll", "ppl", "bits_per_byte", "lim_ppl", "ppl_middle")
        return {**{name: getattr(self, name) for name in named}, **bins}


def perplexity(nll: float) -> float:
    """Return exp(nll), which is infinite beyond the range of a double, and NaN for NaN."""
    return math.inf if nll >= 709 else math.exp(nll)


def position_bins(block_size: int, num_bins: int = NUM_BINS) -> npt.NDArray[np.int64]:
    """Return the bin of each target position 1..T-1 of a block: floor(num_bins * p / T)."""
    return np.arange(1, block_size) * num_bins // block_size


def summarize(token_nll: Floats, num_bytes: int) -> Evaluation:
    """Sum per-token losses by block and bin.

    Args:
        token_nll: [N, T-1] NLL in nats.
        num_bytes: number of UTF-8 bytes of the predicted tokens.
    """
    bins = position_bins(token_nll.shape[1] + 1)
    return Evaluation(
        block_bins=np.stack([token_nll[:, bins == b].sum(axis=1) for b in range(NUM_BINS)], axis=1),
        bin_tokens=np.bincount(bins, minlength=NUM_BINS) * len(token_nll),
        num_bytes=num_bytes,
    )
