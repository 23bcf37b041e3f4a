"""The published ways to compare two runs: a mean of perplexities, and one unpaired seed."""

import numpy as np
import numpy.typing as npt
from scipy import special

Floats = npt.NDArray[np.float64]


def log_ratio_parts(arm: Floats, reference: Floats, *, mean_of_ppl: bool) -> Floats:
    """Return what each test block adds to the log of the ratio of two perplexities.

    With losses per token a and b of N blocks, the log ratio of exp(mean loss) is mean(a - b). That
    of the published mean of perplexities, mean(exp(a)) / mean(exp(b)), is no mean over blocks; its
    parts are those of its linearization, around the exact value:

        log(A/B) + exp(a_i)/A - exp(b_i)/B        A = mean(exp(a)), B = mean(exp(b))

    Their mean is exactly log(A/B), and their spread gives its variance (the delta method).

    Args:
        arm: [S, N] losses per token, by seed and test block.
        reference: [S, N] losses of the reference.
        mean_of_ppl: whether perplexities are averaged instead of losses.

    Returns:
        [S, N], with the log ratio of each seed as the mean of its row.
    """
    if not mean_of_ppl:
        return arm - reference
    ours, theirs = np.exp(arm), np.exp(reference)
    means = [x.mean(axis=1, keepdims=True) for x in (ours, theirs)]
    parts: Floats = np.log(means[0] / means[1]) + ours / means[0] - theirs / means[1]
    return parts


def unpaired_reach(arm: Floats, reference: Floats, level: float = 0.05) -> float:
    """Return how far chance alone takes the difference between one run of each of two arms.

    The two runs have different seeds, so the variances of the arms add up. The reach is Student's t
    with Welch's degrees of freedom times the root of their sum: a fraction 1 - ``level`` of such
    pairs differ from the true difference by less. Source: Welch (1947), "The Generalization of
    'Student's' Problem when Several Different Population Variances are Involved".

    Args:
        arm: [S] mean losses of S runs, S at least 2.
        reference: [S'] mean losses of the reference's runs.
        level: share of pairs beyond the reach.
    """
    variances = [float(np.var(x, ddof=1)) for x in (arm, reference)]
    total = sum(variances)
    if total == 0:
        return 0.0
    by_run = (v**2 / (len(x) - 1) for v, x in zip(variances, (arm, reference), strict=True))
    return float(special.stdtrit(total**2 / sum(by_run), 1 - level / 2) * np.sqrt(total))
