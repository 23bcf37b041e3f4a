"""The search trials that a report draws and lists: all of them, or some of a study of thousands.

Statistics never depend on this choice. ``hylorada status --json`` prints every trial, and
``hylorada export --figures`` writes every trial to ``data/trials.csv``.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from hylorada import derive_seed
from studies.spec.study import Study
from studies.trials.records import Record, is_finite

MOST = 400  # trials of a study that are shown, an equal share of each arm
FEWEST = 20  # trials of an arm that are shown, however many arms there are


@dataclass(frozen=True)
class Shown:
    """The trials that are shown, of all.

    Attributes:
        trials: The shown trials, in the order of all.
        count: Number of all trials.
    """

    trials: tuple[Record, ...]
    count: int

    def says(self, chosen: str) -> str:
        """Return a sentence on how few of the trials are shown; empty if all are.

        Args:
            chosen: How they were chosen.
        """
        if len(self.trials) == self.count:
            return ""
        return f"{len(self.trials):,} of {self.count:,} trials are shown: {chosen}."


def most_of(study: Study) -> int:
    """Return the largest number of an arm's trials of which all are shown."""
    return max(FEWEST, MOST // len(study.arms))


def drawn(trials: Sequence[Record], study: Study, best: Collection[str]) -> Shown:
    """Return the trials to draw: of an arm with many, the best, and as many drawn at random.

    Args:
        trials: Search trials of the study.
        study: The study.
        best: Names of the winning trials, which are always drawn.
    """
    half = most_of(study) // 2

    def choose(arm: str, own: Sequence[Record]) -> Collection[str]:
        names = [r.name for r in _ranked(own)]
        draws = np.random.default_rng(derive_seed(study.seed, "drawn trials", arm))
        return [*names[:half], *draws.permutation(names[half:])[:half].tolist(), *best]

    return _shown(trials, study, choose)


def listed(
    trials: Sequence[Record], study: Study, best: Collection[str], most: int | None = None
) -> Shown:
    """Return the trials to list in a table: of an arm with many, the best.

    Args:
        trials: Search trials of the study, and those that users have added.
        study: The study.
        best: Names of the winning trials, which are always listed, as running and added ones are.
        most: Number of the best trials of an arm with many; by default, as many as are ever listed.
    """

    def choose(_: str, own: Sequence[Record]) -> Collection[str]:
        leading = [r.name for r in _ranked(own)][: most or most_of(study)]
        going = [r.name for r in own if r.state == "running" or r.stage == "added"]
        return [*leading, *going, *best]

    return _shown(trials, study, choose)


def _shown(
    trials: Sequence[Record],
    study: Study,
    choose: Callable[[str, Sequence[Record]], Collection[str]],
) -> Shown:
    """Return all trials of arms with few, and those that ``choose`` names of the other arms."""
    by_arm: dict[str, list[Record]] = {}
    for record in trials:
        by_arm.setdefault(record.arm, []).append(record)
    names: set[str] = set()
    for arm, own in by_arm.items():
        names.update(choose(arm, own) if len(own) > most_of(study) else (r.name for r in own))
    return Shown(tuple(r for r in trials if r.name in names), len(trials))


def _ranked(trials: Sequence[Record]) -> list[Record]:
    """Return complete trials by validation NLL, then the others, the furthest first."""

    def rank(r: Record) -> tuple[bool, int, float]:
        nll = r.nll if r.nll is not None and is_finite(r.nll) else math.inf
        return r.state != "complete", -r.step, nll

    return sorted(trials, key=rank)
