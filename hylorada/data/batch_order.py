"""The blocks that each training step sees, equal for all seats of a data seed.

These are the common random numbers of a study: arms are compared on the same batches.
"""

import numpy as np
import numpy.typing as npt

from hylorada.runtime.random_streams import derive_seed


class BatchOrder:
    """An endless sequence of shuffled passes over N blocks.

    It is a pure function of seed and step, so training can resume at any step.

    Args:
        num_blocks: N.
        batch_size: b, the blocks per step; a step may straddle two epochs, so no block is skipped.
        seed: seed of the shuffles.
        first: number of the first block, where the N blocks follow others in one array.
    """

    def __init__(self, num_blocks: int, batch_size: int, seed: int, *, first: int = 0) -> None:
        self.num_blocks = num_blocks
        self.batch_size = batch_size
        self.seed = seed
        self.first = first
        self._epochs: dict[int, npt.NDArray[np.int64]] = {}

    def indices(self, step: int) -> npt.NDArray[np.int64]:
        """Return the b block numbers of optimizer step ``step`` (from 0)."""
        places = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs, offsets = np.divmod(places, self.num_blocks)
        own = [self._epoch(int(e))[o] for e, o in zip(epochs, offsets, strict=True)]
        return self.first + np.array(own)

    def _epoch(self, epoch: int) -> npt.NDArray[np.int64]:
        order = self._epochs.get(epoch)
        if order is None:
            generator = np.random.default_rng(derive_seed(self.seed, "epoch", epoch))
            order = generator.permutation(self.num_blocks)
            # A step needs two epochs at most. The dictionary is replaced rather than changed,
            # because seats of several lanes may call this at the same time.
            latest = dict(list(self._epochs.items())[-1:])
            self._epochs = {**latest, epoch: order}
        return order
