"""How far ASHA is expected to let a trial train, in closed form."""

from collections.abc import Sequence
from itertools import pairwise


def pass_probability(before: int, reduction_factor: int) -> float:
    """Return the probability that a trial passes a rung which ``before`` others have reached.

    ASHA compares its loss with the interpolated quantile 1 / eta of the losses before it. With n
    independent losses of any one distribution, the k-th smallest has expected rank k / (n + 1), so
    the probability is 1 - ((n - 1)(1 - 1/eta) + 1) / (n + 1). The first trial always passes.
    """
    if before == 0:
        return 1.0
    rank = (before - 1) * (1 - 1 / reduction_factor) + 1
    return 1 - rank / (before + 1)


def survivors(arrivals: float, reduction_factor: int) -> float:
    """Return the expected number of trials that pass a rung.

    Args:
        arrivals: Expected number of trials that reach it; fractions are interpolated.
        reduction_factor: ASHA's eta.
    """
    whole = int(arrivals)
    passing = sum(pass_probability(i, reduction_factor) for i in range(whole))
    return passing + (arrivals - whole) * pass_probability(whole, reduction_factor)


def expected_trial(
    trials: int, report_steps: Sequence[int], rungs: Sequence[int], reduction_factor: int
) -> tuple[float, float]:
    """Return the expected steps and reports of a search trial.

    It is assumed that the order in which trials are proposed says nothing about how good they are.

    Args:
        trials: Number of trials of the arm in a search.
        report_steps: Steps of the reports of a trial that runs to its end.
        rungs: ASHA's rungs, which are among them.
        reduction_factor: ASHA's eta.
    """
    if trials < 1:
        return 0.0, 0.0
    alive, steps, reports = float(trials), 0.0, 0.0
    for start, end in pairwise((0, *rungs, report_steps[-1])):
        steps += alive * (end - start)
        reports += alive * sum(start < step <= end for step in report_steps)
        if end in rungs:
            alive = survivors(alive, reduction_factor)
    return steps / trials, reports / trials
