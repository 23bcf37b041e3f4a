"""Where MLflow's page shows a study."""

from pathlib import Path

import pytest
from finished_folder import write_finished

from hylorada import InputError
from studies.process.options import default_uri
from studies.tracking.experiment import open_runs
from studies.tracking.shown.page_places import find_shown
from studies.trials.records import read_id

# Raised by MLflow itself.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")


def test_study_is_found_by_its_name(tmp_path: Path) -> None:
    study_id = read_id(write_finished(tmp_path, name="own"))
    assert study_id is not None
    uri = default_uri(tmp_path)
    with pytest.raises(InputError, match="study 'own' has no runs in MLflow at sqlite:"):
        find_shown(uri, tmp_path, "own")
    runs = open_runs(uri, "own", tmp_path, study_id, print)
    page = f"#/experiments/{runs.client.get_run(runs.parent).info.experiment_id}/runs"
    old = "?workflowType=machine_learning"  # of experiments that this version has not opened
    found = find_shown(uri, tmp_path, "own")
    assert (found.answer, found.trials) == (f"{page}/{runs.parent}{old}", f"{page}{old}")
    runs.describe({}, {})
    assert find_shown(uri, tmp_path, "own").trials == f"{page}{old}&viewStateShareKey=hylorada"


def test_unknown_study_and_grid_are_named(tmp_path: Path) -> None:
    write_finished(tmp_path, name="own")
    with pytest.raises(InputError, match=r"no study 'owm' has been run; .*own"):
        find_shown(default_uri(tmp_path), tmp_path, "owm")


def test_deleted_experiment_is_named(tmp_path: Path) -> None:
    study_id = read_id(write_finished(tmp_path, name="own"))
    assert study_id is not None
    uri = default_uri(tmp_path)
    runs = open_runs(uri, "own", tmp_path, study_id, print)
    runs.client.delete_experiment(runs.client.get_run(runs.parent).info.experiment_id)
    with pytest.raises(InputError, match="MLflow's experiment 'own' is deleted; restore it"):
        find_shown(uri, tmp_path, "own")
