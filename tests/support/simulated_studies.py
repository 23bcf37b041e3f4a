"""Simulated studies with a known true difference, to measure the coverage of intervals."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import signal

from studies.statistics.differences import Differences, Floats, Ints
from studies.statistics.intervals import Interval, interval
from studies.statistics.power import smallest_visible

# Loss per token: a change of 0.05 % in perplexity, the seed noise measured on a real model.
UNIT = 5e-4


@dataclass(frozen=True)
class Scenario:
    """A kind of simulated study; every standard deviation is in units of the seeds' noise.

    Attributes:
        name: Row of the table.
        coverage: Range in % that must contain the coverage of the 95 % interval.
        power: Range in % that must contain the power at the stated smallest visible effect.
        searches: R.
        seeds: S.
        blocks: N.
        search: Standard deviation between searches.
        seed: Standard deviation between paired seeds.
        block: What blocks shared by all runs add to the standard deviation of the mean, if they
            were independent.
        rest: What one run's own noise over blocks adds to the standard deviation of its mean.
        rho: Autocorrelation from block to block, of both kinds of block noise.
        document: Mean number of blocks of a document; 0 for a text without documents.
        noise: Distribution of seed noise: "normal", "heavy" (Student's t with 3 degrees of
            freedom), "outliers" (one run in eight of either arm ends 2 % worse) or "one-sided" (of
            the arm in question only).
        matched: If not, search noise is the difference of two squared normals (each arm misses its
            best rate).
    """

    name: str
    searches: int = 3
    seeds: int = 3
    blocks: int = 100
    search: float = 1.0
    seed: float = 1.0
    block: float = 0.5
    rest: float = 0.5
    rho: float = 0.0
    document: int = 0
    noise: str = "normal"
    matched: bool = True
    coverage: tuple[float, float] = (93.0, 97.0)
    power: tuple[float, float] = (75.0, 85.0)


def simulate(s: Scenario, rng: np.random.Generator) -> tuple[Differences, float]:
    """Return a study without a true difference, and the value its interval should cover.

    The value is 0 for the method; a study with one search speaks of its configurations, and one
    with one seed of its run, so what they happened to draw is part of their truth.
    """
    documents = _documents(s, rng) if s.document else None
    search = _search_noise(s, rng)
    seed = s.seed * _SEED_NOISE[s.noise](rng, (s.searches, s.seeds))
    shared = s.block * _block_noise(s, rng, (s.blocks,), documents)
    rest = s.rest * _block_noise(s, rng, (s.searches, s.seeds, s.blocks), documents)
    values = search[:, None, None] + seed[..., None] + np.sqrt(s.blocks) * (shared + rest)
    truth = OUTLIERS_MEAN if s.noise == "one-sided" else 0.0
    if s.searches == 1:
        truth += float(search[0])
    if s.searches == s.seeds == 1:
        truth += float(seed[0, 0])
    return Differences("arm", "reference", tuple(UNIT * values), documents), UNIT * truth


@dataclass(frozen=True)
class Calibration:
    """Shares over many simulated studies of one scenario, in %."""

    coverage: float
    power: float
    visible: float
    error: float


def calibrate(s: Scenario, studies: int, seed: int = 0) -> Calibration:
    """Measure coverage of the 95 % interval, and power at the smallest visible effect reported."""
    rng = np.random.default_rng(seed)
    drawn = [simulate(s, rng) for _ in range(studies)]
    intervals = [interval(d) for d, _ in drawn]
    truths = [truth for _, truth in drawn]
    return summarise(intervals, truths)


def summarise(intervals: list[Interval], truths: list[float]) -> Calibration:
    """Return the calibration of `intervals`, whose true values are `truths`."""
    low, high, true = (
        np.array(x) for x in ([i.low for i in intervals], [i.high for i in intervals], truths)
    )
    visible = float(np.mean([smallest_visible(i.uncertainty) for i in intervals]))
    effect = np.log1p(-visible / 100)
    coverage = np.mean((low <= true) & (true <= high))
    return Calibration(
        coverage=100 * float(coverage),
        power=100 * float(np.mean(high - true + effect < 0)),
        visible=visible,
        error=100 * float(np.sqrt(coverage * (1 - coverage) / len(intervals))),
    )


OUTLIER = 0.02 / UNIT
OUTLIERS_MEAN = OUTLIER / 8


def _outliers(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    ours, theirs = rng.random((2, *shape)) < 1 / 8
    return np.asarray(rng.normal(size=shape) + OUTLIER * ours - OUTLIER * theirs)


def _one_sided(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return np.asarray(rng.normal(size=shape) + OUTLIER * (rng.random(shape) < 1 / 8))


_SEED_NOISE: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Floats]] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "heavy": lambda rng, shape: rng.standard_t(3, size=shape) / np.sqrt(3),
    "outliers": _outliers,
    "one-sided": _one_sided,
}


def _search_noise(s: Scenario, rng: np.random.Generator) -> Floats:
    if s.matched:
        return s.search * rng.normal(size=s.searches)
    missed = np.square(rng.normal(size=(2, s.searches)))
    return np.asarray(s.search * (missed[0] - missed[1]) / 2)


def _documents(s: Scenario, rng: np.random.Generator) -> Ints:
    lengths = rng.geometric(1 / s.document, size=s.blocks)
    return np.asarray(np.repeat(np.arange(s.blocks), lengths)[: s.blocks])


def _block_noise(
    s: Scenario, rng: np.random.Generator, shape: tuple[int, ...], documents: Ints | None
) -> Floats:
    """Return noise [..., N] of variance 1/N, half of it shared within documents, if any."""
    if documents is not None:
        shared = rng.normal(size=(*shape[:-1], s.blocks))[..., documents]
        return np.asarray((shared + rng.normal(size=shape)) / np.sqrt(2 * s.blocks))
    if not s.rho:
        return np.asarray(rng.normal(size=shape) / np.sqrt(s.blocks))
    steps = rng.normal(size=(*shape[:-1], shape[-1] + 50))
    steps[..., 0] /= np.sqrt(1 - s.rho**2)
    series = signal.lfilter([1.0], [1.0, -s.rho], steps, axis=-1)[..., 50:]
    return np.asarray(series * np.sqrt((1 - s.rho**2) / s.blocks))
