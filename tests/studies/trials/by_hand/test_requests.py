"""Requests to a running study: files whose names say what they are about."""

import threading
from pathlib import Path

import pytest

from hylorada import InputError
from studies.trials.by_hand.requests import (
    Addition,
    additions,
    drop_addition,
    drop_stop,
    read_addition,
    request_addition,
    request_stop,
    request_trial_stop,
    set_aside,
    stop_requested,
    trial_stops,
)

ONE = Addition("fixed", "fixed-0001", {"learning_rate": 0.003, "target_modules": ["q_proj"]})


def test_stop_is_one_request_however_often_it_is_made(tmp_path: Path) -> None:
    assert not stop_requested(tmp_path)
    request_stop(tmp_path)
    request_stop(tmp_path)
    assert stop_requested(tmp_path)
    assert (trial_stops(tmp_path), additions(tmp_path)) == (set(), [])
    drop_stop(tmp_path)
    drop_stop(tmp_path)
    assert not stop_requested(tmp_path)


def test_trials_to_stop_are_named_by_their_files(tmp_path: Path) -> None:
    for name in ("été-s1-0003", "fixed-0000", "fixed-0000"):
        request_trial_stop(tmp_path, name)
    assert trial_stops(tmp_path) == {"été-s1-0003", "fixed-0000"}


def test_addition_is_read_as_it_was_written(tmp_path: Path) -> None:
    name = request_addition(tmp_path, ONE)
    assert (name, read_addition(tmp_path, name)) == ("fixed-added-0001", ONE)


def test_numbers_of_additions_are_not_used_twice(tmp_path: Path) -> None:
    """A trial that the running process has made of a request holds its number too."""
    first = request_addition(tmp_path, ONE)
    (tmp_path / "trials" / first).mkdir(parents=True)
    drop_addition(tmp_path, first)
    names = [request_addition(tmp_path, ONE) for _ in range(2)]
    assert names == ["fixed-added-0002", "fixed-added-0003"] == additions(tmp_path)


def test_terminals_that_add_at_once_get_different_names(tmp_path: Path) -> None:
    names: list[str] = []
    threads = [
        threading.Thread(target=lambda: names.append(request_addition(tmp_path, ONE)))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(names) == [f"fixed-added-{n:04d}" for n in range(1, 7)] == additions(tmp_path)


def test_damaged_request_is_named_and_set_aside(tmp_path: Path) -> None:
    name = request_addition(tmp_path, ONE)
    path = tmp_path / "requests" / f"add-{name}.json"
    path.write_text(path.read_text().replace("0.003", "0.3"))
    with pytest.raises(InputError, match=r"add-fixed-added-0001\.json is damaged"):
        read_addition(tmp_path, name)
    assert set_aside(tmp_path, name) == path.with_suffix(".refused")
    assert additions(tmp_path) == []
