"""How a trained adapter's gate weighs the landmarks at each position, read from its checkpoint alone."""

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
    """The position part of one run's gates.

    Attributes:
        run: the confirm run.
        weights: [T, L] weight of each landmark at each position; rows sum to 1.
        starts: first position of each stretch of positions that are mostly in one bucket.
    """

    run: Record
    weights: Floats
    starts: tuple[int, ...]


def read_gates(folder: Path, record: Record) -> Gates | None:
    """Return the gates of a confirm run.

    Args:
        folder: of the study.
        record: of the run.

    Returns:
        None where the gates don't look at the position, or the adapter is gone, damaged or of an
        earlier version.
    """
    from hylorada.adapters.landmarks import position_gates
    from hylorada.training.checkpoint import read_parameters  # torch takes seconds to import

    with suppress(InputError, OSError):
        config = HyLoRADAConfig.from_dict(record.adapter)
        if not config.has_buckets:
            return None
        parameters = read_parameters(folder / "trials" / record.name / CHECKPOINT)
        weights, buckets = position_gates(config, parameters)
        starts = [
            next(group)[0]
            for _, group in groupby(enumerate(buckets.tolist()), key=lambda place: place[1])
        ]
        return Gates(record, weights.double().numpy(), tuple(starts))
    return None
