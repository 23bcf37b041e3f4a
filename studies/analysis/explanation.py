"""The explanation of a winner: the effect of each change around it on validation loss."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from studies.analysis.comparisons import Change
from studies.analysis.confirm_losses import NO_MARGIN
from studies.files.folder_files import read_json, write_json
from studies.statistics import comparison as method
from studies.statistics.differences import paired
from studies.trials.ablation import Move, Point
from studies.trials.records import Record, owner_of, read_block_nll, read_id

EXPLAIN_FILE = "explain.json"
LEVEL = 0.05

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Effect:
    """The effect of one change of a configuration on validation PPL, over paired seeds.

    Attributes:
        parameter: The parameter that changes; empty for the step from the defaults to the winner.
        before: Its value before; None for that whole step.
        after: Its value after; None for that whole step.
        also: Conditional parameters that come with it, and their values.
        change: Change in %, negative is better; None if no seed has a finished run on both sides.
        by_seed: The change of each seed, in %.
        smallest_visible: Smallest change in % that is seen with 80 % power.
        note: How many runs are missing, and why the first of them is.
    """

    parameter: str
    before: Any
    after: Any
    also: Mapping[str, Any]
    change: Change | None = None
    by_seed: tuple[float, ...] = ()
    smallest_visible: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Explanation:
    """Why the winner of an arm in one search differs from the defaults, and from its neighbours.

    Attributes:
        arm: Arm of the winner.
        search: Search that it has won.
        trial: Name of the winning search trial.
        block: Matched block whose common values all these runs share; None if the study is not
            matched.
        seeds: Number of paired seeds; they are fresh, so no other stage has used them.
        blocks: Number of validation blocks that each run is evaluated on.
        tokens: Number of tokens predicted in them.
        unseen: Whether the search has not been evaluated on these blocks.
        margin: Largest change in % that does not matter.
        default_ppl: PPL of the defaults, exp of the mean loss over seeds; None if no run finished.
        winner_ppl: PPL of the winner, computed alike.
        unchanged: Parameters that have their default value in the winner.
        whole: The step from the defaults to the winner; None if the two are equal.
        path: The parts of that step, each on top of those before it.
        neighbours: Steps from the winner to configurations that differ in one parameter.
        provenance: Commit, versions, and model and data fingerprints of the last measuring process.
    """

    arm: str
    search: int
    trial: str
    block: int | None
    seeds: int
    blocks: int
    tokens: int
    unseen: bool
    margin: float
    default_ppl: float | None
    winner_ppl: float | None
    unchanged: tuple[str, ...]
    whole: Effect | None
    path: tuple[Effect, ...]
    neighbours: tuple[Effect, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


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
        """Return how many runs of these points are missing and why the first is; "" if none is."""
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


# --- explain.json ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stored:
    explanations: tuple[Explanation, ...]


def read_explanations(folder: Path) -> tuple[Explanation, ...]:
    """Return the explanations in a study folder, by arm and search; empty if it has none.

    Raises:
        InputError: The file is damaged, or belongs to another study.
    """
    path = folder / EXPLAIN_FILE
    if not path.exists():
        return ()
    stored: _Stored = read_json(path, _Stored, _owner(folder))
    return stored.explanations


def write_explanation(folder: Path, explanation: Explanation) -> None:
    """Store an explanation in place of an earlier one of the same arm and search."""
    place = (explanation.arm, explanation.search)
    others = [e for e in read_explanations(folder) if (e.arm, e.search) != place]
    kept = sorted([*others, explanation], key=lambda e: (e.arm, e.search))
    write_json(folder / EXPLAIN_FILE, asdict(_Stored(tuple(kept))), _owner(folder))


def _owner(folder: Path) -> str:
    """Return the owner that the checksum is bound to."""
    return owner_of(read_id(folder), "explain")
