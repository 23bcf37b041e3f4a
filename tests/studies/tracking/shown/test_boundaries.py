"""The files of a run's learned boundaries."""

import io

import numpy as np
from mlflow_records import make_report
from PIL import Image

from studies.tracking.shown.boundaries import boundary_files


def test_numbers_are_those_of_every_report() -> None:
    files = boundary_files([make_report(2), make_report(4)])
    with np.load(io.BytesIO(files["boundaries.npz"])) as stored:
        assert stored["steps"].tolist() == [0, 2, 4]
        assert stored["positions"].tolist() == [[1, 4, 9], [3, 4, 11], [5, 4, 13]]


def test_figure_is_one_picture_that_equal_reports_repeat() -> None:
    files = boundary_files([make_report(2)])
    assert files.keys() == {"boundaries.npz", "boundaries.png"}
    with Image.open(io.BytesIO(files["boundaries.png"])) as figure:
        assert (figure.format, figure.width) == ("PNG", 768)
    assert files["boundaries.png"] == boundary_files([make_report(2)])["boundaries.png"]
    assert files["boundaries.png"] != boundary_files([make_report(4)])["boundaries.png"]


def test_run_without_learned_boundaries_has_none() -> None:
    assert boundary_files([make_report(2, boundaries=(), start_boundaries=())]) == {}
    assert boundary_files([]) == {}
