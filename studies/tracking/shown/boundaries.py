"""The files of a run's learned boundaries: the numbers, and a picture that MLflow's page shows."""

import io
import uuid
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from studies.trials.messages import Report

_KEY = "train_detail~boundaries"  # the section of the page, and the name of the picture in it
_SIZE = (4.6, 3.2)  # inches
_DPI, _PREVIEW_DPI = 120, 55  # the page shows a preview of 256 pixels until it is opened


def boundary_files(reports: Sequence[Report], run: str) -> dict[str, bytes]:
    """Return the files of a run by their paths among its artifacts; none without boundaries.

    Args:
        reports: All reports of the run.
        run: Id of the run.
    """
    known = [r for r in reports if r.boundaries and len(r.boundaries) == len(r.start_boundaries)]
    if not known:
        return {}
    steps = np.array([0, *(r.step for r in known)])
    positions = np.array([known[0].start_boundaries, *(r.boundaries for r in known)])
    numbers = io.BytesIO()
    np.savez(numbers, steps=steps, positions=positions)
    figure = _drawn(steps, positions)
    # The page reads key, step and time of a picture from its name. Equal reports give an equal
    # name, so a repeated upload replaces the picture.
    unique = uuid.uuid5(uuid.NAMESPACE_OID, run)
    name = f"images/{_KEY}+step+{known[-1].step}+timestamp+{known[-1].time}+{unique}"
    return {
        "boundaries.npz": numbers.getvalue(),
        f"{name}.png": _saved(figure, "png", _DPI),
        f"{name}+compressed.webp": _saved(figure, "webp", _PREVIEW_DPI),
    }


def _drawn(steps: npt.NDArray[np.int64], positions: npt.NDArray[np.float64]) -> Figure:
    """Draw every boundary over the optimizer steps."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, positions, color="tab:blue", linewidth=0.9)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("token position in the block")
    axes.set_title("learned boundaries")
    return figure


def _saved(figure: Figure, kind: str, dpi: int) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=dpi)
    return buffer.getvalue()
