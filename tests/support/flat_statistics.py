"""Intervals of earlier versions for comparison, which took all seeds and blocks as independent."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import special

Floats = npt.NDArray[np.float64]

LEVEL = 0.95
_TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
POWER = 0.80
SCALE = ((2.0, "strong"), (1.0, "moderate"), (0.5, "minimal"))
_NO_BETTER = ("none", "worse", "worse to none")
_OUTCOMES = {  # outcome: (said of the subject, said of arm and reference)
    "better": ("helped", "{arm} beat {reference}"),
    "worse": ("made it worse", "{arm} was worse than {reference}"),
    "no better": ("did not help", "{arm} did not beat {reference}"),
    "open": ("may or may not help", "whether {arm} beats {reference} is undecided"),
}
_CHUNK = 1_000_000  # block indices held at once while resampling (8 MB)


@dataclass(frozen=True, eq=False)
class ArmScores:
    """Test losses of one arm, each seed on the same blocks.

    Attributes:
        arm: Name of the arm.
        seeds: The S training seeds, one a row of `block_nll`.
        block_nll: [S, N] sums of the negative log-likelihood over the predicted tokens of each
            block.
        tokens_per_block: Predicted tokens in each block.
    """

    arm: str
    seeds: tuple[int, ...]
    block_nll: Floats
    tokens_per_block: int

    def __post_init__(self) -> None:
        shape = self.block_nll.shape
        if len(set(self.seeds)) != len(self.seeds) or not self.seeds:
            raise ValueError(
                f"arm {self.arm!r}: `seeds` must be distinct and at least one, got {self.seeds}"
            )
        if len(shape) != 2 or shape[0] != len(self.seeds) or shape[1] < 2:
            raise ValueError(
                f"arm {self.arm!r}: `block_nll` must be [{len(self.seeds)} seeds, "
                f"at least 2 blocks], got {list(shape)}"
            )
        if self.tokens_per_block < 1:
            raise ValueError(
                f"arm {self.arm!r}: `tokens_per_block` must be at least 1, "
                f"got {self.tokens_per_block}"
            )
        bad = [
            seed
            for seed, row in zip(self.seeds, self.block_nll, strict=True)
            if not np.isfinite(row).all()
        ]
        if bad:
            raise ValueError(
                f"arm {self.arm!r}: `block_nll` must be finite, but is not for seeds {bad}"
            )

    @property
    def nll_by_seed(self) -> Floats:
        """NLL per token [S]: the sum over all blocks divided by the number of predicted tokens."""
        return np.asarray(self.block_nll.mean(axis=1, dtype=np.float64) / self.tokens_per_block)

    @property
    def ppl_by_seed(self) -> Floats:
        """Perplexity of each seed [S]."""
        return np.exp(self.nll_by_seed)

    @property
    def ppl_mean(self) -> float:
        """Perplexity of the mean NLL over seeds."""
        return float(np.exp(self.nll_by_seed.mean()))

    @property
    def ppl_median(self) -> float:
        """Median perplexity over seeds, which one bad seed does not move."""
        return float(np.median(self.ppl_by_seed))


@dataclass(frozen=True)
class Comparison:
    """Change in test perplexity from `reference` to `arm`; negative means that `arm` is better.

    Attributes:
        arm: The arm in question.
        reference: The arm it is compared with.
        seeds: Number of paired seeds. With 1, the interval holds block noise only.
        change: 100 (exp(D) - 1), D the mean over seeds of the difference in NLL per token.
        low: Lower end of the 95 % interval, in %.
        high: Upper end of the 95 % interval, in %.
        by_seed: The change of each seed, in %.
        median: Median of `by_seed`.
        p_value: Two-sided, for no change.
        p_holm: `p_value` adjusted for all comparisons made together.
        smallest_visible: Smallest |change| in % seen with 80 % power at two-sided 5 %.
        decision: The interval on the published scale, from `decide`.
    """

    arm: str
    reference: str
    seeds: int
    change: float
    low: float
    high: float
    by_seed: tuple[float, ...]
    median: float
    p_value: float
    p_holm: float
    smallest_visible: float
    decision: str


def compare(
    scores: Sequence[ArmScores],
    pairs: Sequence[tuple[str, str]],
    *,
    resamples: int = 10_000,
    seed: int = 0,
) -> tuple[Comparison, ...]:
    """Compare arms pair by pair on paired seeds and blocks, with Holm's adjustment over the pairs.

    Args:
        scores: One entry an arm.
        pairs: (arm, reference) names, in the order of the result.
        resamples: Draws behind each interval and p-value.
        seed: Start of the random stream; each pair starts it anew, so the order of pairs does not
            matter.

    Example:
        >>> fixed = ArmScores("fixed", (0, 1), np.full((2, 3), 100.0), 50)
        >>> learnable = ArmScores("learnable", (0, 1), np.full((2, 3), 99.0), 50)
        >>> [round(c.change, 3) for c in compare([fixed, learnable], [("learnable", "fixed")])]
        [-1.98]
    """
    if resamples < 100:
        raise ValueError(f"`resamples` must be at least 100, got {resamples}")
    by_arm = {s.arm: s for s in scores}
    if len(by_arm) != len(scores):
        raise ValueError(f"arms must have distinct names, got {[s.arm for s in scores]}")
    for name in (name for pair in pairs for name in pair):
        if name not in by_arm:
            raise ValueError(f"no scores for arm {name!r}; arms with scores: {sorted(by_arm)}")
    raw = [
        _compare_pair(by_arm[arm], by_arm[reference], resamples, seed) for arm, reference in pairs
    ]
    adjusted = holm([c.p_value for c in raw])
    return tuple(replace(c, p_holm=p) for c, p in zip(raw, adjusted, strict=True))


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Adjust p-values for making several comparisons, in the order given.

    Sorted ascending, p_(i) becomes max over j <= i of min(1, (m - j + 1) p_(j)).
    Source: Holm (1979), "A Simple Sequentially Rejective Multiple Test Procedure".
    """
    p = np.asarray(p_values, dtype=np.float64)
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"p-values must lie in [0, 1], got {list(p_values)}")
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)))
    return tuple(adjusted.tolist())


def decide(low: float, high: float) -> str:
    """Place an interval of PPL change (%) on the published scale of improvements.

    Improvement is -change: >= 2 % strong, 1-2 % moderate, 0.5-1 % minimal, below none. The interval
    decides, not the point. The result is one class if the whole interval lies in it, and "worse" if
    all of it is a worsening. Otherwise it is the undecided range, which begins with "worse" if it
    reaches a worsening of 0.5 %.

    Returns:
        "strong", "moderate", "minimal", "none", "worse", or a range such as "none to moderate".
    """
    if not low <= high:
        raise ValueError(f"`low` must not exceed `high`, got {low} and {high}")
    if low > 0:
        return "worse"
    least, most = (
        next((name for edge, name in SCALE if -change >= edge), "none") for change in (high, low)
    )
    if high >= min(edge for edge, _ in SCALE):
        least = "worse"
    return least if least == most else f"{least} to {most}"


def verdict(comparisons: Sequence[Comparison], *, subject: str = "") -> str:
    """Say in two plain sentences what the comparisons show and what they could have shown.

    Args:
        comparisons: In the order to be read; the first one answers for `subject`.
        subject: What the first comparison tests, such as "Learning the boundaries"; opens the text.
    """
    if not comparisons:
        raise ValueError("`comparisons` must hold at least one comparison")
    opening = f"{subject} {_OUTCOMES[_outcome(comparisons[0])][0]}: " if subject else ""
    findings = "; ".join(_finding(c) for c in comparisons)
    limits = ", ".join(
        f"{c.smallest_visible:.2f} % for {c.arm} vs {c.reference}" for c in comparisons
    )
    several = (
        " Each interval stands alone, but what is called better or worse is so after "
        "Holm's correction."
    )
    holm = several if len(comparisons) > 1 else ""
    smallest = (
        "The smallest effect this study could have seen "
        f"(power 80 %, before Holm's correction) is {limits}."
    )
    return f"{opening}{findings}.{holm} {smallest}"


def _compare_pair(arm: ArmScores, reference: ArmScores, resamples: int, seed: int) -> Comparison:
    _check_paired(arm, reference)
    difference = (arm.block_nll.astype(np.float64) - reference.block_nll) / arm.tokens_per_block
    mean, by_seed = difference.mean(), _percent(difference.mean(axis=1))
    block_part, seed_part = _draw_deviations(difference, resamples, np.random.default_rng(seed))
    deviation = block_part + seed_part
    ends = np.quantile(deviation, _TAILS, method="hazen")  # exact on the grid of t draws
    low, high = _percent(mean + ends).tolist()
    p_value = _two_sided_p(mean + deviation)
    return Comparison(
        arm=arm.arm,
        reference=reference.arm,
        seeds=len(by_seed),
        change=float(_percent(mean)),
        low=low,
        high=high,
        by_seed=tuple(by_seed.tolist()),
        median=float(np.median(by_seed)),
        p_value=p_value,
        p_holm=p_value,
        smallest_visible=_smallest_visible(block_part, seed_part, len(by_seed)),
        decision=decide(low, high),
    )


def _check_paired(arm: ArmScores, reference: ArmScores) -> None:
    for what, ours, theirs in (
        ("seeds", arm.seeds, reference.seeds),
        ("blocks", arm.block_nll.shape[1], reference.block_nll.shape[1]),
        ("tokens a block", arm.tokens_per_block, reference.tokens_per_block),
    ):
        if ours != theirs:
            raise ValueError(
                f"arm {arm.arm!r} has {what} {ours}, "
                f"but its reference {reference.arm!r} has {theirs}"
            )


def _draw_deviations(
    difference: Floats, resamples: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Draw by how much the mean of paired differences [S, N] misses, from blocks and from seeds.

    With d[s, n] = mu + seed_s + block_n + rest_sn: g x (blocks resampled) and t_{S-1} x sd(seed
    means)/sqrt(S). Seeds are drawn from Student's t because few have few distinct resamples; t is
    exact for normal noise (the aim of the expanded percentile interval: Hesterberg 2015, "What
    Teachers Should Know About the Bootstrap"). Seed means hold rest_sn, so g^2 = 1 -
    MS(rest)/MS(blocks) takes it out of the block part; otherwise it counts twice. Blocks get that
    paper's factor sqrt(N/(N-1)) t/z, and are taken as independent.
    """
    count, blocks = difference.shape
    seed_means, block_means = difference.mean(axis=1), difference.mean(axis=0)
    factor = (
        np.sqrt(blocks / (blocks - 1))
        * special.stdtrit(blocks - 1, _TAILS[1])
        / special.ndtri(_TAILS[1])
    )
    block_part = (
        factor
        * _block_share(difference)
        * _resample_mean(block_means - block_means.mean(), resamples, rng)
    )
    if count == 1:
        return block_part, np.zeros(resamples)
    # A grid in random order has steadier tails than plain draws.
    quantiles = (np.arange(resamples) + 0.5) / resamples
    student = rng.permutation(special.stdtrit(count - 1, quantiles))
    return block_part, student * seed_means.std(ddof=1) / np.sqrt(count)


def _block_share(difference: Floats) -> float:
    """Return g = sqrt(max(0, 1 - MS(rest)/MS(blocks))), or 1 with one seed.

    MS are the mean squares of the two-way layout.
    """
    count, blocks = difference.shape
    block_means = difference.mean(axis=0)
    rest = difference - difference.mean(axis=1, keepdims=True) - block_means + difference.mean()
    ms_blocks = count * block_means.var(ddof=1)
    if count == 1 or ms_blocks == 0:
        return 1.0
    ms_rest = np.square(rest).sum() / ((count - 1) * (blocks - 1))
    return float(np.sqrt(max(0.0, 1 - ms_rest / ms_blocks)))


def _resample_mean(values: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Return [resamples] means of `values` [N] drawn with replacement.

    The values are sorted first, so that their order does not matter.
    """
    values = np.sort(values)
    rows = max(1, _CHUNK // values.size)
    sizes = [min(rows, resamples - start) for start in range(0, resamples, rows)]
    return np.concatenate(
        [values[rng.integers(values.size, size=(n, values.size))].mean(axis=1) for n in sizes]
    )


def _two_sided_p(draws: Floats) -> float:
    """Return 2 min(share of draws <= 0, share >= 0), each as (count + 1) / (draws + 1).

    Source: Davison and Hinkley (1997), "Bootstrap Methods and their Application", 4.2.5.
    """
    fewer = min(np.count_nonzero(draws <= 0), np.count_nonzero(draws >= 0))
    return float(min(1.0, 2 * (fewer + 1) / (draws.size + 1)))


def _smallest_visible(block_part: Floats, seed_part: Floats, count: int) -> float:
    """Return half the 95 % interval plus the 80 % quantile, in %.

    Source: Bloom (1995), "Minimum Detectable Effects".

    The sd of few seeds is on average too small, by c4 = E[chi_{S-1}]/sqrt(S-1): 0.89 for three;
    here it is put right.
    """
    half = max(1, count - 1) / 2
    c4 = math.exp(math.lgamma(half + 0.5) - math.lgamma(half)) / math.sqrt(half)
    deviation = block_part + seed_part / c4
    low, below, above, high = np.quantile(
        deviation, [_TAILS[0], 1 - POWER, POWER, _TAILS[1]], method="hazen"
    )
    # As a fall of PPL, which is at most 100 %.
    return float(-100 * np.expm1(-((high - low) / 2 + (above - below) / 2)))


def _percent(log_ratio: Floats) -> Floats:
    return np.asarray(100 * np.expm1(log_ratio))


def _outcome(comparison: Comparison) -> str:
    """Return the member of `_OUTCOMES` that holds; "better" and "worse" also need Holm's p."""
    sure = comparison.p_holm < 1 - LEVEL
    if comparison.high < 0 and sure:
        return "better"
    if comparison.decision == "worse" and sure:
        return "worse"
    return "no better" if comparison.high >= 0 and comparison.decision in _NO_BETTER else "open"


def _finding(c: Comparison) -> str:
    text = _OUTCOMES[_outcome(c)][1].format(arm=c.arm, reference=c.reference)
    numbers = f"{c.change:+z.2f} % PPL [{c.low:+z.2f}, {c.high:+z.2f}]".replace(
        "-", "\N{MINUS SIGN}"
    )
    seeds = f"{c.seeds} paired seeds" if c.seeds > 1 else "one seed: seed noise not included"
    # For an interval within one class, only Holm's correction leaves the outcome open.
    effect = "undecided" if _outcome(c) == "open" and " to " not in c.decision else c.decision
    return f"{text}, {numbers} (95 %, {seeds}, Holm p = {c.p_holm:.2g}, effect: {effect})"
