"""The explanation of a winner: the effect of each change around it on validation loss."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from studies.analysis.confirm_losses import NO_MARGIN
from studies.statistics import comparison as method
from studies.statistics.change import Change
from studies.statistics.differences import paired
from studies.trials.ablation import Move, Point
from studies.trials.explanations import Effect
from studies.trials.records import Record, read_block_nll

LEVEL = 0.05

Floats = npt.NDArray[np.float64]


class Losses:
    """The losses of all runs that explain a winner.

    Args:
        folder: Folder of the study.
        runs: The record of each seed's run, by a key that stands for its configuration.
        block_size: Tokens in a block.
    """

    def __init__(self, folder: Path, runs: Mapping[str, Sequence[Record]], block_size: int) -> None:
        self._runs = runs
        self.tokens_per_block = block_size - 1
        self._losses = {
            r.name: read_block_nll(folder, r)
            for rs in runs.values()
            for r in rs
            if r.state == "complete"
        }

    @property
    def blocks(self) -> int:
        """Number of blocks that each run is evaluated on."""
        return next((len(x) for x in self._losses.values()), 0)

    def ppl(self, key: str) -> float | None:
        """Return exp of the mean loss per token over a point's finished runs; None without any."""
        means = [self._losses[r.name].mean() for r in self._runs[key] if r.name in self._losses]
        return float(np.exp(np.mean(means) / self.tokens_per_block)) if means else None

    def seeds(self, *keys: str) -> list[int]:
        """Return the seeds whose runs have finished at all of these points."""
        return sorted(
            set.intersection(
                *({r.number for r in self._runs[k] if r.name in self._losses} for k in keys)
            )
        )

    def at(self, key: str, seeds: Sequence[int]) -> Floats:
        """Return [S, N] loss sums of a point's runs, by seed and validation block."""
        by_seed = {r.number: r.name for r in self._runs[key]}
        return np.stack([self._losses[by_seed[seed]] for seed in seeds]).astype(np.float64)

    def lost(self, *keys: str) -> str:
        """Say how many of these points' runs are missing, and why the first is; "" if none is."""
        runs = {r.name: r for k in keys for r in self._runs[k]}
        lost = [r for r in runs.values() if r.name not in self._losses]
        return f"{len(lost)} of {len(runs)} runs {lost[0].state}: {lost[0].reason}" if lost else ""


def measure(
    moves: Sequence[Move], losses: Losses, keys: Mapping[int, tuple[str, str]], margin: float
) -> list[Effect]:
    """Compare the two ends of each move as one family, with Holm's adjustment over it.

    Args:
        moves: Moves of one family.
        losses: Losses of all runs.
        keys: Keys of the points before and after each move, by its index in ``moves``.
        margin: Largest change in % that does not matter.
    """
    effects = [replace(_unmeasured(m), note=losses.lost(*keys[i])) for i, m in enumerate(moves)]
    measured = [i for i in range(len(moves)) if losses.seeds(*keys[i])]
    differences = []
    for i in measured:
        seeds = losses.seeds(*keys[i])
        before, after = (losses.at(k, seeds) for k in keys[i])
        differences.append(
            paired(moves[i].parameter, "before", [after], [before], losses.tokens_per_block)
        )
    compared = (
        method.compare(differences, level=LEVEL, margin=margin or NO_MARGIN) if differences else ()
    )
    for i, c in zip(measured, compared, strict=True):
        change = Change(c.change, c.low, c.high, c.p_holm, c.decision)
        effects[i] = replace(
            effects[i], change=change, by_seed=c.by_seed[0], smallest_visible=c.smallest_visible
        )
    return effects


def _unmeasured(move: Move) -> Effect:
    name = move.parameter
    return Effect(name, move.start.get(name), move.end.get(name), dict(move.also))


def step_between(start: Point, goal: Point) -> Move:
    """Return the move that changes all parameters at once."""
    return Move("", start, goal)
