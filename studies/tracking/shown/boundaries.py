"""The files of a run's learned boundaries: the numbers and one figure, for MLflow's page."""

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from studies.trials.messages import Report

_SIZE, _DPI = (6.4, 4.2), 120  # inches, pixels per inch


def boundary_files(reports: Sequence[Report]) -> dict[str, bytes]:
    """Return the files of a run's boundaries by their names; none without learned boundaries.

    Args:
        reports: All reports of the run.
    """
    known = [r for r in reports if r.boundaries and len(r.boundaries) == len(r.start_boundaries)]
    if not known:
        return {}
    steps = np.array([0, *(r.step for r in known)])
    positions = np.array([known[0].start_boundaries, *(r.boundaries for r in known)])
    numbers = io.BytesIO()
    np.savez(numbers, steps=steps, positions=positions)
    return {"boundaries.npz": numbers.getvalue(), "boundaries.png": _drawn(steps, positions)}


def _drawn(steps: npt.NDArray[np.int64], positions: npt.NDArray[np.float64]) -> bytes:
    """Return every boundary over the optimizer steps as a PNG."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, positions, color="tab:blue", linewidth=0.9)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("token position in the block")
    axes.set_title("learned boundaries")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    return buffer.getvalue()
