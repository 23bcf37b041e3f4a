"""Test losses of a study's confirm runs, by search, arm, seed and learning-rate factor."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from studies.spec.study import Study
from studies.trials.messages import split_for
from studies.trials.records import Record, read_block_bins
from studies.trials.winners import winners

Floats = npt.NDArray[np.float64]
NO_MARGIN = 1e-12  # %; stands for a margin of 0, with which no difference counts as equivalent


class ConfirmLosses:
    """The test losses of the winners' confirm runs, read once.

    Args:
        study: The study.
        records: All records of the study, by name.
        folder: Folder of the study.
        documents: [N] document of each test block; None where the text has no documents.
    """

    def __init__(
        self,
        study: Study,
        records: Mapping[str, Record],
        folder: Path,
        documents: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.study, self.documents = study, documents
        self.margin = study.margin or NO_MARGIN
        every = {place: w.runs(records, "confirm") for place, w in winners(study, records).items()}
        self.runs = {
            place: [r for r in runs if r.state == "complete"] for place, runs in every.items()
        }
        self._diverged = {
            (*place, r.factor)
            for place, runs in every.items()
            for r in runs
            if r.state == "diverged"
        }
        complete = [r for runs in self.runs.values() for r in runs]
        self._bins = {r.name: read_block_bins(folder, r) for r in complete}
        self.has_bins = bool(self._bins) and all(b.ndim == 2 for b in self._bins.values())

    def documents_of(self, *arms: str) -> npt.NDArray[np.int64] | None:
        """Return the documents of the test blocks of arms; None for padded rows."""
        runs = [r for (_, arm), of_arm in self.runs.items() if arm in arms for r in of_arm]
        padded = any(split_for("test", r.training) != "test" for r in runs)
        return None if padded else self.documents

    def seeds(self, search: int, factor: float = 1.0) -> tuple[int, ...]:
        """Return the seeds that all arms have finished in a search at a factor.

        An arm with no finished run either at this factor or at the winning rate doesn't count.
        """
        by_arm = [{r.number for r in self._at(search, arm, factor)} for arm in self.study.arms]
        finished = [
            s
            for s, arm in zip(by_arm, self.study.arms, strict=True)
            if s or self._at(search, arm, 1.0)
        ]
        return tuple(sorted(set.intersection(*finished))) if finished else ()

    def searches(self, arms: Sequence[str], factor: float = 1.0) -> tuple[int, ...]:
        """Return the searches in which all the given arms have paired runs at a factor."""
        every = range(self.study.searches)
        return tuple(
            s
            for s in every
            if self.seeds(s, factor) and all(self._at(s, arm, factor) for arm in arms)
        )

    def kept(self, arm: str) -> list[Record]:
        """Return the arm's paired runs at the winning learning rate, by search and seed."""
        return [
            r
            for s in range(self.study.searches)
            for r in self._at(s, arm, 1.0)
            if r.number in self.seeds(s)
        ]

    def bins(self, arm: str, search: int, factor: float, seeds: Sequence[int]) -> Floats:
        """Return [S, N, 10] loss sums of an arm's runs, by seed, test block and tenth of the block.

        The result is [S, N, 1] if any run was written by a version that did not store tenths.
        """
        by_seed = {r.number: self._bins[r.name] for r in self._at(search, arm, factor)}
        if not self.has_bins:
            by_seed = {
                seed: b.reshape(len(b), -1).sum(axis=1, keepdims=True)
                for seed, b in by_seed.items()
            }
        return np.stack([by_seed[seed] for seed in seeds]).astype(np.float64)

    def blocks(self, arm: str, search: int, factor: float, seeds: Sequence[int]) -> Floats:
        """Return [S, N] loss sums of an arm's runs, by seed and test block."""
        return np.asarray(self.bins(arm, search, factor, seeds).sum(axis=2))

    def names(self) -> list[str]:
        """Return the names of all paired runs at the winning learning rates."""
        return [r.name for arm in self.study.arms for r in self.kept(arm)]

    def tokens(self) -> int:
        """Return the number of test tokens that a run predicts."""
        return next((len(b) * (self.study.block_size - 1) for b in self._bins.values()), 0)

    def diverged(self, search: int, arm: str, factor: float) -> bool:
        """Return whether any of an arm's runs in a search diverged at a factor."""
        return (search, arm, factor) in self._diverged

    def nll(self, record: Record) -> float:
        """Return a run's test NLL per token."""
        values = self._bins[record.name]
        return float(values.sum() / (len(values) * (self.study.block_size - 1)))

    def _at(self, search: int, arm: str, factor: float) -> list[Record]:
        return [r for r in self.runs.get((search, arm), ()) if r.factor == factor]
