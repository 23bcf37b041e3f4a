"""The path to a winner and its neighbours, in spaces made by hand."""

import random
from typing import Any

import optuna
import pytest

from studies.spec.space import Space
from studies.trials.ablation import Move, neighbours, path

SPACE = Space.from_dict(
    {
        "learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},  # common to all arms
        "num_landmarks": {"low": 1, "high": 10},
        "num_buckets": {"choice": [32, 8, 16]},
        "boundary_init": {"choice": ["log", "uniform", "fixed"]},
        "boundary_warmup": {"low": 0.1, "high": 0.7, "when": {"boundary_init": "fixed"}},
        "boundary_diversity": {"choice": [0.0, 0.1], "when": {"boundary_init": "fixed"}},
        "temperature": {"low": 1e-3, "high": 1.0, "log": True},
        "landmark_design": "position_adaptive",
    }
)
OWN = [name for name in SPACE.parameters if name != "learning_rate"]
DEFAULTS = {
    "num_landmarks": 8,
    "num_buckets": 32,
    "boundary_init": "log",
    "temperature": 0.1,
    "boundary_warmup": 0.3,
}


def point(**values: Any) -> dict[str, Any]:
    return SPACE.first({"learning_rate": 1e-2, **DEFAULTS, **values})


def changes(moves: tuple[Move, ...]) -> list[tuple[Any, ...]]:
    return [
        (m.parameter, m.start.get(m.parameter), m.end[m.parameter], dict(m.also)) for m in moves
    ]


def test_path_changes_one_parameter_at_a_time_in_the_order_of_the_space() -> None:
    goal = point(num_landmarks=4, temperature=0.01, num_buckets=8)
    assert changes(path(SPACE, OWN, point(), goal)) == [
        ("num_landmarks", 8, 4, {}),
        ("num_buckets", 32, 8, {}),
        ("temperature", 0.1, 0.01, {}),
    ]


def test_conditional_parameters_come_with_their_condition() -> None:
    goal = point(
        boundary_init="fixed", boundary_warmup=0.6, boundary_diversity=0.1, temperature=0.2
    )
    moves = path(SPACE, OWN, point(), goal)
    with_it = {"boundary_warmup": 0.6, "boundary_diversity": 0.1}
    assert changes(moves) == [
        ("boundary_init", "log", "fixed", with_it),
        ("temperature", 0.1, 0.2, {}),
    ]


def test_conditional_parameters_go_with_their_condition() -> None:
    start, goal = point(boundary_init="fixed", boundary_warmup=0.6), point(boundary_init="uniform")
    (move,) = path(SPACE, OWN, start, goal)
    assert "boundary_warmup" in move.start
    assert move.end == goal


def test_a_conditional_parameter_that_is_there_already_is_a_step_of_its_own() -> None:
    start, goal = (point(boundary_init="fixed", boundary_warmup=w) for w in (0.3, 0.6))
    assert changes(path(SPACE, OWN, start, goal)) == [("boundary_warmup", 0.3, 0.6, {})]


def test_path_to_the_same_point_is_empty() -> None:
    assert path(SPACE, OWN, point(), point()) == ()


@pytest.mark.parametrize("seed", range(30))
def test_any_path_joins_its_points_and_stays_within_the_space(seed: int) -> None:
    draws = random.Random(seed)
    start, goal = (
        SPACE.sample(optuna.trial.FixedTrial(_drawn(draws))) | {"learning_rate": 1e-2}
        for _ in range(2)
    )
    moves = path(SPACE, OWN, start, goal)
    ends = [start, *(m.end for m in moves)]
    assert ends[-1] == goal
    assert [m.start for m in moves] == ends[:-1]
    assert all(SPACE.first(end) == end for end in ends)
    for move in moves:
        shared = move.start.keys() & move.end.keys()
        assert [n for n in SPACE.parameters if n in shared and move.start[n] != move.end[n]] == [
            move.parameter
        ]


def _drawn(draws: random.Random) -> dict[str, Any]:
    return {
        "learning_rate": 1e-2,
        "num_landmarks": draws.randint(1, 10),
        "num_buckets": draws.choice([32, 8, 16]),
        "boundary_init": draws.choice(["log", "uniform", "fixed"]),
        "boundary_warmup": draws.uniform(0.1, 0.7),
        "boundary_diversity": draws.choice([0.0, 0.1]),
        "temperature": draws.uniform(1e-3, 1.0),
        "landmark_design": "position_adaptive",
    }


@pytest.mark.parametrize(
    ("values", "name", "expected"),
    [
        ({"num_buckets": 16}, "num_buckets", [8, 32]),  # by size, whatever their order in the space
        ({"num_buckets": 32}, "num_buckets", [16]),
        # Without an order, every other value is a neighbour.
        ({"boundary_init": "log"}, "boundary_init", ["uniform", "fixed"]),
        ({"temperature": 0.02}, "temperature", [0.002, 0.2]),  # a third of three decades
        ({"temperature": 0.5}, "temperature", [0.05, 1.0]),  # up to the end of the range
        ({"temperature": 1.0}, "temperature", [0.1]),
        ({"num_landmarks": 5}, "num_landmarks", [2, 8]),
        ({"num_landmarks": 1}, "num_landmarks", [4]),
        ({"boundary_init": "fixed", "boundary_warmup": 0.4}, "boundary_warmup", [0.2, 0.6]),
        ({"boundary_init": "log"}, "boundary_warmup", []),  # inactive
        ({}, "landmark_design", []),  # a constant
        ({}, "learning_rate", []),  # common to all arms
    ],
)
def test_neighbours_are_one_step_away(
    values: dict[str, Any], name: str, expected: list[Any]
) -> None:
    moves = [m for m in neighbours(SPACE, OWN, point(**values), DEFAULTS) if m.parameter == name]
    assert [m.end[name] for m in moves] == expected
    assert all(m.start == point(**values) for m in moves)


def test_a_neighbour_gives_what_it_makes_active_the_defaults() -> None:
    (_, fixed) = (m for m in neighbours(SPACE, ["boundary_init"], point(), DEFAULTS))
    # The second has no default and takes its first value.
    assert fixed.also == {"boundary_warmup": 0.3, "boundary_diversity": 0.0}


@pytest.mark.parametrize(
    ("low", "high", "value", "expected"), [(1, 2, 1, [2]), (1, 2, 2, [1]), (1, 8, 2, [1, 4])]
)
def test_whole_numbers_move_by_at_least_one(
    low: int, high: int, value: int, expected: list[int]
) -> None:
    space = Space.from_dict({"r": {"low": low, "high": high, "log": True}})
    assert [m.end["r"] for m in neighbours(space, ["r"], {"r": value}, {})] == expected


def test_flags_have_one_neighbour() -> None:
    space = Space.from_dict({"use_dora": {"choice": [False, True]}})
    assert [m.end for m in neighbours(space, ["use_dora"], {"use_dora": True}, {})] == [
        {"use_dora": False}
    ]
