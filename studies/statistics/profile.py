"""Differences over a profile of learning rates: matched, and with each arm at its own best rate."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from studies.statistics.comparison import Comparison
from studies.statistics.differences import Differences, Floats, Ints
from studies.statistics.intervals import interval


@dataclass(frozen=True, eq=False)
class ArmProfile:
    """Test losses of one arm at each point of the profile.

    Attributes:
        arm: Name of the arm.
        losses: One [S_r, P, N] array for each search: loss per token of each seed, profile point
            and test block.
        log_rates: One [P] array for each search: log of the learning rate of each point, ascending.
    """

    arm: str
    losses: tuple[Floats, ...]
    log_rates: tuple[Floats, ...]

    def __post_init__(self) -> None:
        if len(self.losses) != len(self.log_rates):
            raise ValueError(
                f"arm {self.arm!r}: {len(self.losses)} searches of losses, "
                f"{len(self.log_rates)} of rates"
            )
        for losses, rates in zip(self.losses, self.log_rates, strict=True):
            if losses.ndim != 3 or losses.shape[1] != rates.size or not (np.diff(rates) > 0).all():
                raise ValueError(
                    f"arm {self.arm!r}: losses must be [seeds, {rates.size} points, blocks] "
                    "at ascending rates, "
                    f"got {list(losses.shape)} at log rates {rates.tolist()}"
                )


@dataclass(frozen=True, eq=False)
class Best:
    """The lowest point of one arm's curve in one search.

    Attributes:
        log_rate: Log of the best learning rate.
        weights: [P] weights of the profile points in the fitted loss there; they sum to 1.
        at_edge: Whether the best measured point stands in because the curve has no minimum within
            the profile.
    """

    log_rate: float
    weights: Floats
    at_edge: bool


@dataclass(frozen=True, eq=False)
class OwnBest:
    """Differences with each arm at its own best learning rate.

    Attributes:
        differences: Paired differences; `comparison.compare` gives their interval.
        gap: Own-best difference minus the matched one, seed by seed and block by block.
        arm: The best point of the arm in each search.
        reference: The best point of the reference in each search.
    """

    differences: Differences
    gap: Differences
    arm: tuple[Best, ...]
    reference: tuple[Best, ...]


def best_point(log_rates: Floats, curve: Floats) -> Best:
    """Return the minimum of a quadratic in the log rate, fitted to `curve` [P].

    The fit goes through 3 points and is least squares with more. The fitted loss at the minimum is
    a weighted sum of the measured losses, and the same weights serve every seed and block: at a
    minimum, an error in its location changes the loss only to second order. With fewer than 3
    points, without upward curvature, or with a minimum outside the profile, the result is the best
    measured point.
    """
    lowest = int(np.argmin(curve))
    measured = Best(float(log_rates[lowest]), np.eye(curve.size)[lowest], at_edge=True)
    if curve.size < 3:
        return measured
    centre, width = float(log_rates.mean()), float(np.ptp(log_rates))
    fit = np.linalg.pinv(np.vander((log_rates - centre) / width, 3))  # rows: x^2, x, 1
    curvature, slope, _ = fit @ curve
    if curvature <= 0:
        return measured
    x = -slope / (2 * curvature)
    best = centre + width * float(x)
    if not log_rates[0] <= best <= log_rates[-1]:
        return measured
    return Best(best, np.asarray(np.array([x**2, x, 1.0]) @ fit), at_edge=False)


def at_point(
    arm: ArmProfile, reference: ArmProfile, point: int, documents: Ints | None = None
) -> Differences:
    """Return the matched differences at one point of the profile."""
    pairs = zip(arm.losses, reference.losses, strict=True)
    return Differences(
        arm.arm, reference.arm, tuple(a[:, point] - r[:, point] for a, r in pairs), documents
    )


def own_best(
    arm: ArmProfile, reference: ArmProfile, point: int, documents: Ints | None = None
) -> OwnBest:
    """Return the differences with each arm at the minimum of its own curve, seeds paired.

    Each search fits each arm's curve to the mean over its seeds and blocks. "Learning Rate Matters"
    (arXiv:2602.04998) argues for this comparison; the matched one at `point` stands beside it.
    """
    if [r.tolist() for r in arm.log_rates] != [r.tolist() for r in reference.log_rates]:
        raise ValueError(
            f"arms {arm.arm!r} and {reference.arm!r} must be measured at the same learning rates"
        )
    ours, theirs = _best_points(arm), _best_points(reference)
    own = tuple(
        np.einsum("spn,p->sn", a, x.weights) - np.einsum("spn,p->sn", r, y.weights)
        for a, r, x, y in zip(arm.losses, reference.losses, ours, theirs, strict=True)
    )
    matched = at_point(arm, reference, point, documents).by_search
    gap = tuple(o - m for o, m in zip(own, matched, strict=True))
    names = (arm.arm, reference.arm)
    return OwnBest(
        Differences(*names, own, documents), Differences(*names, gap, documents), ours, theirs
    )


def depends_on_rate(matched: Comparison, own: Comparison, gap: Differences) -> bool:
    """Return whether the answer depends on the learning rate.

    It does if the matched and the own-best difference are decided in opposite directions, or if
    their decisions differ and the gap between them is itself certain (its interval at the
    comparison's level excludes 0).
    """
    if matched.decision == own.decision:
        return False
    if {matched.decision, own.decision} == {"better", "worse"}:
        return True
    return interval(gap, matched.level).p < matched.level


def _best_points(profile: ArmProfile) -> tuple[Best, ...]:
    curves: Sequence[Floats] = [losses.mean(axis=(0, 2)) for losses in profile.losses]
    return tuple(best_point(rates, c) for rates, c in zip(profile.log_rates, curves, strict=True))
