"""Simulated studies of three arms with repeated looks, and of arms over a learning rate profile."""

from collections.abc import Sequence

import numpy as np
from simulated_studies import UNIT

from studies.statistics.comparison import Comparison, compare
from studies.statistics.decision import level_per_look
from studies.statistics.differences import Differences, Floats
from studies.statistics.profile import ArmProfile, at_point, depends_on_rate, own_best

PAIRS = ((0, 1), (0, 2), (1, 2))
BLOCKS = 100


def arm_losses(rng: np.random.Generator, shape: tuple[int, int], search: float) -> Floats:
    """Return one arm's [R, S, N] losses; differences of two arms have seed noise of `UNIT`."""
    by_search = search * rng.normal(size=(shape[0], 1, 1))
    by_seed = rng.normal(size=(*shape, 1))
    shared = 5 * rng.normal(size=BLOCKS)
    own = 5 * rng.normal(size=(*shape, BLOCKS))
    return np.asarray(UNIT / np.sqrt(2) * (by_search + by_seed + shared + own))


def family_errs(
    rng: np.random.Generator,
    looks: Sequence[int],
    *,
    search: float = 1.0,
    effect: float = 0.0,
    seeds: int = 3,
) -> bool:
    """Return whether any look at three arms calls one of two equal arms better or worse.

    The third arm differs by `effect`; without an effect all three pairs are equal.
    """
    level = level_per_look(looks)
    arms = [arm_losses(rng, (looks[-1], seeds), search) for _ in range(3)]
    arms[2] = arms[2] + effect
    equal = PAIRS if effect == 0 else PAIRS[:1]
    for count in looks:
        pairs = [Differences(str(a), str(b), tuple((arms[a] - arms[b])[:count])) for a, b in PAIRS]
        results = dict(zip(PAIRS, compare(pairs, level=level), strict=True))
        if any(results[pair].decision in ("better", "worse") for pair in equal):
            return True
    return False


def wrongly_equivalent(rng: np.random.Generator, margin: float) -> bool:
    """Return whether arms that differ by just the margin are called equivalent."""
    shift = np.log1p(margin / 100)
    d = arm_losses(rng, (3, 3), 1.0) - arm_losses(rng, (3, 3), 1.0) + shift
    return compare([Differences("a", "b", tuple(d))], margin=margin)[0].decision == "equivalent"


CURVATURE = 0.02  # half the best learning rate costs 1 % of perplexity
STEP = np.log(2)


def profile_study(
    rng: np.random.Generator, shift: float, searches: int, skew: float = 0.0
) -> tuple[Comparison, bool]:
    """Compare two arms of equal loss at their own best rates, which differ by `shift` in the log.

    Each search has its own centre of the profile (missing the best rate by 0.2 in the log), and
    each arm its own best rate in it (by 0.1). With `skew`, the curves have a cubic part: too high a
    rate costs more than too low a one.

    Returns:
        The own-best comparison, whose truth is 0, and whether the answer is said to depend on the
        learning rate.
    """
    rates = [np.array([-STEP, 0.0, STEP]) + 0.2 * rng.normal() for _ in range(searches)]
    arms = [_arm_profile(rng, rates, best, skew) for best in (shift / 2, -shift / 2)]
    result = own_best(arms[0], arms[1], point=1)
    matched, own = (compare([d])[0] for d in (at_point(arms[0], arms[1], 1), result.differences))
    return own, depends_on_rate(matched, own, result.gap)


def _arm_profile(
    rng: np.random.Generator, rates: list[Floats], best: float, skew: float
) -> ArmProfile:
    losses = []
    for points in rates:
        x = points - best - 0.1 * rng.normal()
        curve = CURVATURE * (x**2 + skew * x**3)
        seeds = rng.normal(size=(3, 1, 1)) + 0.5 * rng.normal(size=(3, 3, 1))
        blocks = 5 * rng.normal(size=(3, 3, BLOCKS))
        losses.append(curve[:, None] + UNIT / np.sqrt(2) * (seeds + blocks))
    return ArmProfile("arm", tuple(losses), tuple(rates))
