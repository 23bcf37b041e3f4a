"""Grids: their cells, the names of these, and what is refused."""

import dataclasses
from typing import Any

import pytest

from hylorada import InputError
from studies import context_length, texts
from studies.spec.grid import cells
from studies.spec.overrides import override
from studies.spec.study import Study


def _study(grid: Any, **changes: Any) -> Study:
    values = {"definition": "own", "name": "own", "arms": {"one": {}}, "grid": grid}
    return Study.from_dict({**values, **changes})


def test_cells_are_all_combinations_with_the_values_of_the_study() -> None:
    study = _study({"block_size": [32, 64], "data": ["pydocs", "a/b.txt"]}, trials=3)
    found = [(c.study.block_size, c.study.data) for c in cells(study)]
    assert found == [(32, "pydocs"), (32, "a/b.txt"), (64, "pydocs"), (64, "a/b.txt")]
    assert {c.study.trials for c in cells(study)} == {3}
    assert [c.study.grid for c in cells(study)] == [{}] * 4
    assert cells(study)[1].label == "block_size 32, data a/b.txt"


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["pydocs"], ["own.pydocs"]),
        (["/x/books", "/y/books", "/y/Books"], ["own.books", "own.books_2", "own.Books_3"]),
        (["a b/ü:c-d"], ["own.a_b_ü_c_d"]),
        (["../", "?"], ["own.value", "own.value_2"]),
        (["x" * 300], ["own." + "x" * 24]),
    ],
)
def test_names_of_cells_are_short_and_differ(values: list[str], names: list[str]) -> None:
    assert [c.study.name for c in cells(_study({"data": values}))] == names


def test_names_stay_when_values_are_appended() -> None:
    few, more = ["/x/books", "/y/books"], ["/x/books", "/y/books", "/z/books"]
    before = [c.study.name for c in cells(_study({"data": few}))]
    assert [c.study.name for c in cells(_study({"data": more}))][:2] == before


@pytest.mark.parametrize(
    ("grid", "problem"),
    [
        ([64], "grid must map block_size, data, model to lists of values, got"),
        ({"blocksize": [64]}, "grid: unknown field 'blocksize'; did you mean 'block_size'"),
        ({"block_size": []}, "grid.block_size must be a list of one or more whole numbers"),
        ({"block_size": [64, True]}, "grid.block_size must be a list of one or more whole"),
        ({"data": "pydocs"}, "grid.data must be a list of one or more texts, got 'pydocs'"),
        ({"data": ["a", "a"]}, "grid.data must not hold a value twice"),
        ({"block_size": list(range(2, 103))}, "grid has 101 cells, at most 100"),
    ],
)
def test_wrong_grids_are_refused(grid: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        _study(grid)


def test_cell_that_does_not_fit_the_study_is_named() -> None:
    study = _study({"block_size": [1, 64]})
    with pytest.raises(InputError, match="cell with block_size 1: block_size must be at least 2"):
        cells(study)
    long = _study({"block_size": [64]}, name="n" * 99)
    with pytest.raises(InputError, match="cell with block_size 64: name must be 1 to 100"):
        cells(long)


def test_grid_changes_no_fingerprint_and_survives_a_file() -> None:
    study = _study({"block_size": [64, 128]})
    assert study.fingerprint() == _study({}).fingerprint()
    assert Study.from_dict(study.to_dict()) == study


def test_set_spans_another_axis() -> None:
    values, problems = override(
        {"grid": {"block_size": [64]}}, ["grid.block_size=[32]", "grid.data=[pydocs]", "grid.x=1"]
    )
    assert values["grid"] == {"block_size": [32], "data": ["pydocs"]}
    assert problems == ["--set grid.x: unknown 'x'; one of: block_size, data, model"]
    assert override({}, ["grid.data=[pydocs]"]) == ({"grid": {"data": ["pydocs"]}}, [])


def test_sparse_attention_is_all_in_which_its_arm_differs_from_the_baseline() -> None:
    for cell, group in zip(
        cells(Study.from_dict(context_length.STUDY)), (32, 64, 128), strict=True
    ):
        arms = ("baseline_s2", "baseline")
        sparse, full = (
            cell.study.configs(arm, cell.study.labels(arm, cell.study.fields(arm)))[0]
            for arm in arms
        )
        assert (sparse.tokens_in_group, full.tokens_in_group) == (group, None)
        assert dataclasses.replace(sparse, shifted_sparse_attention=False) == full
        assert cell.study.space("baseline_s2") == cell.study.space("baseline")
        assert arms in cell.study.comparisons


@pytest.mark.parametrize("definition", [context_length, texts])
def test_grids_that_ship_are_whole(definition: Any) -> None:
    study = Study.from_dict(definition.STUDY)
    assert len(cells(study)) == 3
    assert study.name == study.definition == definition.__name__.rpartition(".")[2]
