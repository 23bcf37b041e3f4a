"""How sure ``hylorada evaluate`` is of a loss, and of the difference between two adapters."""

from typing import Any

import numpy as np

from hylorada import Evaluation
from hylorada.data.perplexity import perplexity
from studies.statistics.comparison import percent
from studies.statistics.differences import Floats, Ints
from studies.statistics.intervals import BlockMean, block_mean


def losses(evaluation: Evaluation) -> Floats:
    """Return the mean loss per token of each block, [N]; all blocks have equally many tokens."""
    blocks = evaluation.block_nll
    return np.asarray(blocks * (blocks.size / evaluation.tokens))


def uncertainty(evaluation: Evaluation, documents: Ints | None) -> dict[str, Any]:
    """Return the standard error of the NLL and the 95 % intervals of NLL and PPL.

    Args:
        evaluation: The losses.
        documents: [N] document of each block, if the text has documents.

    Returns:
        The figures under their names in ``--json``; each is None for a single block.
    """
    names = ("nll_error", "nll_low", "nll_high", "ppl_low", "ppl_high", "interval_over")
    if len(evaluation.block_nll) < 2:
        return dict.fromkeys(names)
    found = block_mean(losses(evaluation), documents)
    ends = (perplexity(found.low), perplexity(found.high))
    return dict(zip(names, (found.error, found.low, found.high, *ends, found.kind), strict=True))


def difference(ours: Evaluation, theirs: Evaluation, documents: Ints | None) -> dict[str, Any]:
    """Return the paired difference between two evaluations of the same blocks, ours minus theirs.

    Args:
        ours: The losses of the adapter.
        theirs: The losses of the adapter that it is compared with.
        documents: [N] document of each block, if the text has documents.

    Returns:
        The figures under their names in ``--json``, with 95 % intervals. Without an interval, for a
        single block, they are the difference alone.
    """
    series = losses(ours) - losses(theirs)
    mean = float(series.mean())
    figures: dict[str, Any] = {"nll": mean, "ppl_percent": percent(mean)}
    return figures if series.size < 2 else figures | _interval(block_mean(series, documents))


def _interval(found: BlockMean) -> dict[str, Any]:
    return {
        "nll_error": found.error,
        "nll_low": found.low,
        "nll_high": found.high,
        "ppl_percent_low": percent(found.low),
        "ppl_percent_high": percent(found.high),
        "p": found.p,
        "interval_over": found.kind,
    }
