"""The weight of each landmark at each position, read from a trained adapter's checkpoint alone."""

from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from hylorada import HyLoRADAConfig, InputError
from studies.statistics.differences import Floats
from studies.trials.messages import CHECKPOINT
from studies.trials.records import Record


@dataclass(frozen=True, eq=False)
class Gates:
    """The position part of a run's gates.

    Attributes:
        run: The confirm run.
        weights: [T, L] weight of each landmark at each position; rows sum to 1.
        starts: First position of each stretch of positions that lie mostly in one bucket.
    """

    run: Record
    weights: Floats
    starts: tuple[int, ...]


def read_gates(folder: Path, record: Record) -> Gates | None:
    """Return the gates of a confirm run.

    Args:
        folder: Folder of the study.
        record: Record of the run.

    Returns:
        The gates; None if they don't depend on the position, or if the adapter is missing, damaged
        or of an earlier version.
    """
    path = folder / "trials" / record.name / CHECKPOINT
    with suppress(InputError, OSError):
        config = HyLoRADAConfig.from_dict(record.adapter)
        if not config.has_buckets or config.num_buckets == 1 or not path.is_file():
            return None
        # torch takes seconds to import
        from hylorada.adapters.landmarks.position_adaptive import position_gates
        from hylorada.training.checkpoint import read_parameters

        parameters = read_parameters(path)
        weights, buckets = position_gates(config, parameters, seed=record.seed)
        starts = [
            next(group)[0]
            for _, group in groupby(enumerate(buckets.tolist()), key=lambda place: place[1])
        ]
        return Gates(record, weights.double().numpy(), tuple(starts))
    return None
