"""The explanation of a winner: what each change around it does to the validation loss; measured, stored, read back."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from studies.analysis.comparisons import NO_MARGIN, Change
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
    """What one change of a configuration does to validation PPL, on paired seeds.

    Attributes:
        parameter: that is changed; empty for all that lead from the defaults to the winner.
        before: its value before; None where that is no single value.
        after: its value after.
        also: conditional parameters that come with it, and their values.
        change: in %, negative is better; None where no seed has a finished run on both sides.
        by_seed: the same for each seed.
        smallest_visible: smallest change in % that is seen with 80 % power.
        note: what has become of the seeds that are missing.
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
        arm: its arm.
        search: of which it is the winner.
        trial: the search trial that has won.
        block: the matched block whose common values all these runs have; None in a study that is
            not matched.
        seeds: paired seeds, fresh: neither the search nor any other stage has used them.
        blocks: validation blocks of each run.
        tokens: predicted in them.
        unseen: whether the search has not been evaluated on these blocks.
        margin: largest change in % that does not matter.
        default_ppl: of the defaults, exp of the mean loss over seeds; None where none has finished.
        winner_ppl: of the winner.
        unchanged: parameters in which the winner has the default.
        whole: the step from the defaults to the winner; None where the two are the same.
        path: its parts, each on top of those before it.
        neighbours: from the winner one step away in one parameter.
        provenance: commit, versions, model and data fingerprints of the process that measured last.
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
        folder: of the study.
        runs: the record of each seed's run, by a text that stands for its point.
        block_size: tokens in a block.
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
        """Return how many blocks each run is evaluated on."""
        return next((len(x) for x in self._losses.values()), 0)

    def ppl(self, key: str) -> float | None:
        """Return exp of the mean loss per token over a point's finished runs."""
        found = [self._losses[r.name].mean() for r in self._runs[key] if r.name in self._losses]
        return float(np.exp(np.mean(found) / self.tokens_per_block)) if found else None

    def seeds(self, *keys: str) -> list[int]:
        """Return the seeds whose runs have finished at every one of these points."""
        return sorted(
            set.intersection(
                *({r.number for r in self._runs[k] if r.name in self._losses} for k in keys)
            )
        )

    def at(self, key: str, seeds: Sequence[int]) -> Floats:
        """Return [S, N] loss sums of a point's runs on these seeds."""
        by_seed = {r.number: r.name for r in self._runs[key]}
        return np.stack([self._losses[by_seed[seed]] for seed in seeds]).astype(np.float64)

    def lost(self, *keys: str) -> str:
        """Say how many runs of these points have not finished, and why the first of them has not."""
        runs = {r.name: r for k in keys for r in self._runs[k]}
        lost = [r for r in runs.values() if r.name not in self._losses]
        return f"{len(lost)} of {len(runs)} runs {lost[0].state}: {lost[0].reason}" if lost else ""


def measure(
    moves: Sequence[Move], losses: Losses, keys: Mapping[int, tuple[str, str]], margin: float
) -> list[Effect]:
    """Compare the two ends of each move as one family, with Holm's adjustment over it.

    Args:
        moves: of one family.
        losses: of all runs.
        keys: of the points before and after each move, by its place in ``moves``.
        margin: largest change in % that does not matter.
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
    found = (
        method.compare(differences, level=LEVEL, margin=margin or NO_MARGIN) if differences else ()
    )
    for i, c in zip(measured, found, strict=True):
        change = Change(c.change, c.low, c.high, c.p_holm, c.decision)
        effects[i] = replace(
            effects[i], change=change, by_seed=c.by_seed[0], smallest_visible=c.smallest_visible
        )
    return effects


def _unmeasured(move: Move) -> Effect:
    name = move.parameter
    return Effect(name, move.start.get(name), move.end.get(name), dict(move.also))


def step_between(start: Point, goal: Point) -> Move:
    """Return the move that changes all at once."""
    return Move("", start, goal)


# --- explain.json -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stored:
    explanations: tuple[Explanation, ...]


def read_explanations(folder: Path) -> tuple[Explanation, ...]:
    """Return what a study folder holds, by arm and search; none in a folder whose winners were not explained.

    Raises:
        InputError: The file is damaged, or belongs to another study.
    """
    path = folder / EXPLAIN_FILE
    if not path.exists():
        return ()
    stored: _Stored = read_json(path, _Stored, _owner(folder))
    return stored.explanations


def write_explanation(folder: Path, found: Explanation) -> None:
    """Keep an explanation beside those of other arms and searches, in place of an earlier one of the same."""
    place = (found.arm, found.search)
    others = [e for e in read_explanations(folder) if (e.arm, e.search) != place]
    kept = sorted([*others, found], key=lambda e: (e.arm, e.search))
    write_json(folder / EXPLAIN_FILE, asdict(_Stored(tuple(kept))), _owner(folder))


def _owner(folder: Path) -> str:
    """Return what the checksum is bound to."""
    return owner_of(read_id(folder), "explain")
