"""Differences by position within a block: each tenth, and the published LIM-PPL."""

from collections.abc import Sequence

import numpy as np

from studies.statistics.differences import Differences, Floats, Ints

BINS = 10


def by_position(
    names: tuple[str, str],
    arm_bins: Sequence[Floats],
    reference_bins: Sequence[Floats],
    tokens_per_bin: Ints,
    documents: Ints | None = None,
) -> dict[str, Differences]:
    """Return differences for "lim_ppl" and "ppl_bin_0" to "ppl_bin_9".

    Pass all of them to `comparison.compare` together: Holm's adjustment is made within that family.

    Args:
        names: The arm and its reference.
        arm_bins: One [S_r, N, 10] array for each search: summed losses of each tenth of each test
            block.
        reference_bins: The same of the reference.
        tokens_per_bin: [10] predicted tokens in each tenth of a block; tenths without tokens are
            left out.
        documents: [N] document of each block.
    """
    if tokens_per_bin.shape != (BINS,) or tokens_per_bin.min() < 0 or not tokens_per_bin.any():
        raise ValueError(
            f"`tokens_per_bin` must be {BINS} numbers of tokens, got {tokens_per_bin.tolist()}"
        )
    shapes = [np.shape(x) for x in (*arm_bins, *reference_bins)]
    if any(len(s) != 3 or s[-1] != BINS for s in shapes):
        raise ValueError(
            f"losses must be [seeds, blocks, {BINS}] in every search, "
            f"got {[list(s) for s in shapes]}"
        )
    used = np.flatnonzero(tokens_per_bin)
    ours = [np.asarray(x, dtype=np.float64)[..., used] / tokens_per_bin[used] for x in arm_bins]
    theirs = [
        np.asarray(x, dtype=np.float64)[..., used] / tokens_per_bin[used] for x in reference_bins
    ]
    pairs = list(zip(ours, theirs, strict=True))
    result = {
        "lim_ppl": Differences(
            *names, tuple(lim_ppl_losses(a) - lim_ppl_losses(r) for a, r in pairs), documents
        )
    }
    for column, number in enumerate(used):
        tenth = tuple(a[..., column] - r[..., column] for a, r in pairs)
        result[f"ppl_bin_{number}"] = Differences(*names, tenth, documents)
    return result


def lim_ppl_losses(bins: Floats) -> Floats:
    """Return [..., N] block values whose mean is the log of LIM-PPL.

    LIM-PPL = mean_b exp(m_b), where m_b is the mean loss of bin b over blocks. Block n gets
    log LIM-PPL + sum_b w_b (x_nb - m_b) with w_b = exp(m_b) / sum exp(m). This is the first-order
    influence of each block (the delta method), so differences of LIM-PPL get the same intervals as
    differences of perplexity.

    Args:
        bins: [..., N, B] losses per token, x_nb.
    """
    means = bins.mean(axis=-2, keepdims=True)
    top = means.max(axis=-1, keepdims=True)
    exponentials = np.exp(means - top)
    log_lim = np.log(exponentials.mean(axis=-1)) + top[..., 0]
    weights = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return np.asarray(log_lim + ((bins - means) * weights).sum(axis=-1))
