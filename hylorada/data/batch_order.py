"""Which blocks each training step sees: the same for every seat with the same data seed (common random numbers)."""

import numpy as np
import numpy.typing as npt

from hylorada.runtime.random_streams import derive_seed


class BatchOrder:
    """An endless shuffled pass over N blocks: a pure function of seed and step, so it resumes anywhere.

    Args:
        num_blocks: N.
        batch_size: b blocks a step; a step may straddle two epochs, so no block is ever skipped.
        seed: of the shuffles.
    """

    def __init__(self, num_blocks: int, batch_size: int, seed: int) -> None:
        self.num_blocks = num_blocks
        self.batch_size = batch_size
        self.seed = seed
        self._epochs: dict[int, npt.NDArray[np.int64]] = {}

    def indices(self, step: int) -> npt.NDArray[np.int64]:
        """The b block numbers of optimizer step ``step`` (from 0)."""
        places = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs, offsets = np.divmod(places, self.num_blocks)
        return np.array([self._epoch(int(e))[o] for e, o in zip(epochs, offsets, strict=True)])

    def _epoch(self, epoch: int) -> npt.NDArray[np.int64]:
        order = self._epochs.get(epoch)
        if order is None:  # seats of several lanes may ask at once
            order = np.random.default_rng(derive_seed(self.seed, "epoch", epoch)).permutation(
                self.num_blocks
            )
            latest = dict(
                list(self._epochs.items())[-1:]
            )  # a straddling step needs two epochs, never more
            self._epochs = {**latest, epoch: order}
        return order
