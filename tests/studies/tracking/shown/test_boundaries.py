"""The files of a run's learned boundaries."""

import io

import numpy as np
from mlflow_records import make_report
from PIL import Image

from studies.tracking.shown.boundaries import boundary_files


def test_numbers_are_those_of_every_report() -> None:
    files = boundary_files([make_report(2), make_report(4)], "run")
    with np.load(io.BytesIO(files["boundaries.npz"])) as stored:
        assert stored["steps"].tolist() == [0, 2, 4]
        assert stored["positions"].tolist() == [[1, 4, 9], [3, 4, 11], [5, 4, 13]]


def test_picture_and_preview_are_named_as_mlflow_names_them() -> None:
    files = boundary_files([make_report(2)], "run")
    picture, preview = sorted(name for name in files if name.startswith("images/"))[::-1]
    start = "images/train_detail~boundaries+step+2+timestamp+1700000002000+"
    assert picture.startswith(start)
    assert preview == picture.replace(".png", "+compressed.webp")
    with (
        Image.open(io.BytesIO(files[picture])) as large,
        Image.open(io.BytesIO(files[preview])) as small,
    ):
        assert (large.format, small.format) == ("PNG", "WEBP")
        assert max(small.size) <= 256 < max(large.size)


def test_equal_reports_give_equal_files_and_runs_their_own() -> None:
    first, again, other = (boundary_files([make_report(2)], run) for run in ("a", "a", "b"))
    assert first == again
    assert first.keys() & other.keys() == {"boundaries.npz"}


def test_run_without_learned_boundaries_has_none() -> None:
    assert boundary_files([make_report(2, boundaries=(), start_boundaries=())], "run") == {}
    assert boundary_files([], "run") == {}
