"""The best loss that a search would have reached with fewer trials."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from studies.statistics.differences import Floats

_FEWEST = 4  # trials: the smallest number that can be halved twice
_AT_ONCE = 1000  # numbers of trials: with 10,000 losses, 10,000 at once would take 800 MB


def expected_best(losses: Sequence[float], trials: int) -> Floats:
    """Return [trials]: the expected lowest loss among n of a search's trials, n = 1 to `trials`.

    Every order of the trials counts equally, so this is the mean over all subsets of n trials. With
    C ascending losses x_1..x_C (the other trials have no loss), the lowest of n is x_i with
    probability C(trials - i, n - 1) / C(trials, n); subsets without any loss are left out. With a
    loss for every trial this is the unbiased estimate (Tang et al. 2020, "Showing Your Work Doesn't
    Always Work") of the curve of Dodge et al. (2019), "Show Your Work".

    Args:
        losses: Losses of the trials that were trained to the end.
        trials: Number of all trials of the search, including those that were stopped early,
            diverged or failed.

    Example:
        >>> expected_best([1.0, 2.0, 4.0], 4).round(3).tolist()
        [2.333, 1.833, 1.25, 1.0]
    """
    values = np.sort(np.asarray(losses, dtype=np.float64))
    if not 1 <= values.size <= trials or not np.isfinite(values).all():
        raise ValueError(f"`losses` must be 1 to {trials} finite numbers, got {list(losses)}")
    counts = np.arange(1, trials + 1)
    parts = [_means(values, trials, counts[i : i + _AT_ONCE]) for i in range(0, trials, _AT_ONCE)]
    return np.concatenate(parts)


def _means(values: Floats, trials: int, counts: npt.NDArray[np.int64]) -> Floats:
    """Return the expected lowest of ascending losses among each of these numbers of trials."""
    # The recursion over i avoids binomials, which overflow with many trials.
    shares = np.empty((values.size, counts.size))
    shares[0] = counts / trials
    for before, i in pairwise(range(values.size)):
        shares[i] = shares[before] * np.maximum(trials - i - counts + 1, 0) / (trials - i)
    return np.asarray((values @ shares) / shares.sum(axis=0))


@dataclass(frozen=True, eq=False)
class TuningCurve:
    """The expected best loss after n trials, averaged over searches.

    Attributes:
        losses: [N] expected best loss per token after 1 to N trials, where N is the number of
            trials of the shortest search.
        searches: Number of searches in the mean.
        finished: Smallest number of finished trials in a search; if few trials escape early
            stopping, the curve is flat.
    """

    losses: Floats
    searches: int
    finished: int

    @property
    def trials(self) -> int:
        """Number of trials, N."""
        return int(self.losses.size)

    @property
    def half(self) -> int:
        """Number of trials at which the second half begins."""
        return (self.trials + 1) // 2

    @property
    def last_gain(self) -> float | None:
        """Fall in perplexity over the second half of the trials, in %; None with too few trials."""
        if min(self.trials, self.finished) < _FEWEST:
            return None
        return float(-100 * np.expm1(self.losses[-1] - self.losses[self.half - 1]))


def tuning_curve(searches: Sequence[tuple[Sequence[float], int]]) -> TuningCurve | None:
    """Average the curves of an arm's searches; None if no search has a loss.

    Args:
        searches: Losses and number of trials of each search.
    """
    curves = [expected_best(losses, trials) for losses, trials in searches if losses]
    if not curves:
        return None
    shortest = min(map(len, curves))
    finished = min(len(losses) for losses, _ in searches if losses)
    return TuningCurve(np.mean([c[:shortest] for c in curves], axis=0), len(curves), finished)
