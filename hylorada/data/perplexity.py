"""Perplexity and its kin from per-token losses; sums in fp64, never a mean of means."""

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
        block_bins: [N, 10] sums of NLL in nats over the predicted tokens of each block, by tenths of the position
            range; target position p is in bin floor(10 p / T).
        bin_tokens: [10] predicted tokens in each bin.
        num_bytes: UTF-8 bytes of the predicted tokens.
    """

    block_bins: Floats
    bin_tokens: npt.NDArray[np.int64]
    num_bytes: int

    @property
    def block_nll(self) -> Floats:
        """[N] sums of NLL over each block's T-1 predicted tokens."""
        return np.asarray(self.block_bins.sum(axis=1))

    @property
    def bin_nll(self) -> Floats:
        """[10] sums of NLL by tenths of the position range."""
        return np.asarray(self.block_bins.sum(axis=0))

    @property
    def tokens(self) -> int:
        """Predicted tokens."""
        return int(self.bin_tokens.sum())

    @property
    def nll(self) -> float:
        """Nats a predicted token."""
        return float(self.block_nll.sum() / self.tokens)

    @property
    def ppl(self) -> float:
        return perplexity(self.nll)

    @property
    def bits_per_byte(self) -> float:
        """NaN if the text has no bytes (one-token blocks of separators)."""
        return (
            float(self.block_nll.sum()) / math.log(2) / self.num_bytes
            if self.num_bytes
            else math.nan
        )

    @property
    def ppl_bins(self) -> tuple[float, ...]:
        """PPL by tenths of the position range; NaN for a bin without targets (blocks of fewer than 11 tokens)."""
        pairs = zip(self.bin_nll.tolist(), self.bin_tokens.tolist(), strict=True)
        return tuple(perplexity(s / n) if n else math.nan for s, n in pairs)

    @property
    def lim_ppl(self) -> float:
        """Mean of the ten bins' PPL, of those that have targets: the published "LIM-PPL"."""
        return float(
            np.mean([ppl for ppl, n in zip(self.ppl_bins, self.bin_tokens, strict=True) if n])
        )

    @property
    def ppl_middle(self) -> float:
        """PPL of the middle four tenths of the position range."""
        middle = slice(3, 7)
        return perplexity(float(self.bin_nll[middle].sum() / max(1, self.bin_tokens[middle].sum())))

    def metrics(self) -> dict[str, float]:
        """Every figure by the name that the command line and MLflow use."""
        bins = {f"ppl_bin_{i}": p for i, p in enumerate(self.ppl_bins)}
        named = ("nll", "ppl", "bits_per_byte", "lim_ppl", "ppl_middle")
        return {**{name: getattr(self, name) for name in named}, **bins}


def perplexity(nll: float) -> float:
    """exp(nll); infinite where that exceeds a double, NaN for NaN."""
    return math.inf if nll >= 709 else math.exp(nll)


def position_bins(block_size: int, num_bins: int = NUM_BINS) -> npt.NDArray[np.int64]:
    """Bin of each target position 1..T-1 of a block: floor(num_bins * p / T)."""
    return np.arange(1, block_size) * num_bins // block_size


def summarize(token_nll: Floats, num_bytes: int) -> Evaluation:
    """Reduce per-token losses.

    Args:
        token_nll: [N, T-1] NLL in nats.
        num_bytes: UTF-8 bytes of the predicted tokens.
    """
    bins = position_bins(token_nll.shape[1] + 1)
    return Evaluation(
        block_bins=np.stack([token_nll[:, bins == b].sum(axis=1) for b in range(NUM_BINS)], axis=1),
        bin_tokens=np.bincount(bins, minlength=NUM_BINS) * len(token_nll),
        num_bytes=num_bytes,
    )
