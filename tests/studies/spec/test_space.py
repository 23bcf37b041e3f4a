"""Spaces: what is drawn, what is refused, and that a space survives being written down."""

import json
import random
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml

from hylorada import InputError
from studies.spec.space import Choice, Range, Space, Value

_DECLARED: dict[str, Any] = {
    "learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
    "num_landmarks": {"low": 1, "high": 9},
    "num_buckets": {"choice": [8, 16]},
    "boundary_init": {"choice": ["log", "fixed"]},
    "boundary_warmup": {"low": 0.1, "high": 0.7, "when": {"boundary_init": "fixed"}},
    "lora_dropout": 0.5,
}


class _End:
    """Returns one end of every range and list, as a trial might."""

    def __init__(self, last: bool) -> None:
        self._last = last

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        return high if self._last else low

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        return high if self._last else low

    def suggest_categorical(self, name: str, choices: tuple[Value, ...]) -> Any:
        return choices[-1 if self._last else 0]


def _samples(declared: dict[str, Any], count: int = 50) -> list[dict[str, Value]]:
    space = Space.from_dict(declared)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    return [space.sample(study.ask()) for _ in range(count)]


@pytest.mark.parametrize(
    ("last", "rate", "count", "buckets"), [(False, 1e-4, 1, 8), (True, 1e-2, 9, 16)]
)
def test_sample_reaches_both_ends(last: bool, rate: float, count: int, buckets: int) -> None:
    drawn = Space.from_dict(_DECLARED).sample(_End(last))
    assert (drawn["learning_rate"], drawn["num_landmarks"], drawn["num_buckets"]) == (
        rate,
        count,
        buckets,
    )


def test_sample_covers_whole_numbers_up_to_the_ends() -> None:
    drawn = [s["num_landmarks"] for s in _samples({"num_landmarks": {"low": 1, "high": 4}})]
    assert set(drawn) == {1, 2, 3, 4}
    assert all(type(value) is int for value in drawn)


def test_sample_stays_inside_and_draws_on_a_log_scale() -> None:
    rates = sorted(float(str(s["learning_rate"])) for s in _samples(_DECLARED, 200))
    assert 1e-4 <= rates[0] <= rates[-1] <= 1e-2
    # half of the draws lie below the geometric mean 1e-3; on a linear scale one in eleven would
    assert 70 < sum(rate < 1e-3 for rate in rates) < 130


def test_sample_leaves_inactive_parameters_out() -> None:
    samples = _samples(_DECLARED)
    assert {s["boundary_init"] for s in samples} == {"log", "fixed"}
    for sample in samples:
        assert ("boundary_warmup" in sample) == (sample["boundary_init"] == "fixed")


def test_sample_leaves_out_what_depends_on_an_inactive_parameter() -> None:
    chain = {
        "position_bias": {"choice": [True, False]},
        "landmarks": {"choice": [True, False], "when": {"position_bias": True}},
        "num_landmarks": {"choice": [4, 8], "when": {"landmarks": True}},
    }
    for sample in _samples(chain):
        assert ("landmarks" in sample) == (sample["position_bias"] is True)
        assert ("num_landmarks" in sample) == (sample.get("landmarks") is True)


def test_sample_gives_plain_values() -> None:
    options = {"target": {"choice": [None, True, "q_proj", 2, 0.5]}}
    values = {value for sample in _samples(_DECLARED | options) for value in sample.values()}
    assert {type(value) for value in values} == {bool, int, float, str, type(None)}


def test_sample_of_a_constant_is_the_constant() -> None:
    assert _samples({"r": 4, "landmarks": False}, 1) == [{"r": 4, "landmarks": False}]


def test_round_trip_through_dict_and_yaml_draws_the_same() -> None:
    space = Space.from_dict(_DECLARED)
    text = yaml.safe_dump(space.to_dict(), sort_keys=False)
    again = Space.from_dict(yaml.safe_load(text))
    assert again == space
    assert again.to_dict() == space.to_dict()
    assert _samples(again.to_dict()) == _samples(_DECLARED)


def test_start_is_the_defaults_that_lie_inside() -> None:
    space = Space.from_dict(_DECLARED)
    assert space.start({"learning_rate": 1e-2, "num_landmarks": 10, "num_buckets": 16, "r": 3}) == {
        "learning_rate": 1e-2,
        "num_buckets": 16,
    }


@pytest.mark.parametrize(
    ("values", "inside", "outside"),
    [
        (Range(1, 4), [1, 2.0, 4], [0, 5, 2.5, True, "2", None]),
        (Choice((0, "a")), [0, 0.0, "a"], [False, "b", None]),
    ],
)
def test_contains_takes_numbers_as_numbers(
    values: Range | Choice, inside: list[Any], outside: list[Any]
) -> None:
    assert all(values.contains(value) for value in inside)
    assert not any(values.contains(value) for value in outside)


def test_combinations_are_of_all_values_that_tell_and_keep_conditions() -> None:
    space = Space.from_dict(_DECLARED | {"num_buckets": {"choice": [8, 16, 12]}})
    of_both = list(space.combinations(["num_buckets", "boundary_warmup"]))
    found = {(p["num_buckets"], p["boundary_init"], p.get("boundary_warmup")) for p in of_both}
    assert found == {
        (b, *rest) for b in (8, 16) for rest in (("log", None), ("fixed", 0.1), ("fixed", 0.7))
    }


@pytest.mark.parametrize(
    ("declared", "count"),
    [
        ({}, 1),
        ({"r": 4}, 1),
        ({"num_buckets": {"choice": [2, 4, 8]}, "num_landmarks": {"low": 0, "high": 1}}, 6),
        ({"num_landmarks": {"low": 1, "high": 100, "log": True}}, 100),
        ({"learning_rate": {"low": 0.1, "high": 0.1}}, 1),
        ({"learning_rate": {"low": 0.1, "high": 0.2}}, None),
        # one point without landmarks, with them three bucket counts
        (
            {
                "landmarks": {"choice": [False, True]},
                "num_buckets": {"choice": [2, 4, 8], "when": {"landmarks": True}},
            },
            4,
        ),
        (
            {
                "landmarks": {"choice": [False]},
                "r": {"low": 0.1, "high": 0.2, "when": {"landmarks": False}},
            },
            None,
        ),
        (
            {"r": {"low": 1, "high": 10**9}, "num_buckets": {"choice": [2, 4], "when": {"r": 7}}},
            10**9 + 1,
        ),
    ],
)
def test_size_is_the_number_of_points(declared: dict[str, Any], count: int | None) -> None:
    assert Space.from_dict(declared).size() == count


@pytest.mark.parametrize("seed", range(5))
def test_size_counts_what_a_grid_visits(seed: int) -> None:
    rng = random.Random(seed)
    declared: dict[str, Any] = {}
    for name in ("r", "num_buckets", "num_landmarks", "batch_size"):
        declared[name] = {"choice": rng.sample(range(1, 9), rng.randint(1, 3))}
        if len(declared) > 1:
            other = rng.choice([n for n in declared if n != name])
            declared[name]["when"] = {other: rng.choice(declared[other]["choice"])}
    space = Space.from_dict(declared)
    points = {json.dumps(p) for p in space.combinations(declared)} | {
        json.dumps(s) for s in _samples(declared, 300)
    }
    assert space.size() == len(points)


def test_lists_are_labels_to_optuna_and_lists_to_all_else(tmp_path: Path) -> None:
    lists = [["q_proj", "v_proj"], ["q_proj"], None]
    space = Space.from_dict({"target_modules": {"choice": lists}})
    for _ in range(2):  # opened again it goes on
        storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'optuna.db'}")
        study = optuna.create_study(storage=storage, study_name="one", load_if_exists=True)
        study.enqueue_trial(space.start({"target_modules": ("q_proj", "v_proj")}))
        drawn = []
        for _ in range(6):
            trial = study.ask()
            drawn.append(space.sample(trial)["target_modules"])
            assert space.decoded(trial.params) == {"target_modules": drawn[-1]}
            study.tell(trial, 1.0)
        assert drawn[0] == ["q_proj", "v_proj"]
        assert all(value in lists for value in drawn)
        storage.remove_session()
        storage.engine.dispose()
    assert {t.params["target_modules"] for t in study.trials} <= {
        '["q_proj", "v_proj"]',
        '["q_proj"]',
        None,
    }
    assert Space.from_dict(json.loads(json.dumps(space.to_dict()))) == space


def test_ranges_of_fractions_may_have_whole_ends() -> None:
    declared = {"weight_decay": {"low": 0, "high": 1}, "num_landmarks": {"low": 0, "high": 1}}
    space = Space.from_dict(declared, real=["weight_decay"])
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn = [space.sample(study.ask()) for _ in range(20)]
    assert len({d["weight_decay"] for d in drawn}) == 20
    assert {d["num_landmarks"] for d in drawn} == {0, 1}


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ([1, 2], r"a list must be written as choice: \[...\], got \[1, 2\]"),
        ({"choice": []}, r"choice must be a list of at least one value, got \[\]"),
        ({"choice": "log"}, "choice must be a list of at least one value, got 'log'"),
        (
            {"choice": [[1]]},
            "each choice must be a finite number, text, true, false, null or a list of names",
        ),
        ({"choice": [10**400]}, "each choice must be a finite number"),
        ({"choice": [["q"], ["q"]]}, r"choices must differ, got \[\['q'\], \['q'\]\]"),
        ({"choice": [["q"], '["q"]']}, "choices must differ"),
        ({"low": 1, "high": 2**63}, "low and high must be finite numbers"),
        ({"choice": [float("nan")]}, "each choice must be a finite number"),
        ({"choice": [8, 8.0]}, r"choices must differ, got \[8, 8.0\]"),
        ({"choice": [True, 1]}, r"choices must differ, got \[True, 1\]"),
        ({"choice": [1], "low": 1}, "write choice alone"),
        ({"low": 1}, "write low and high"),
        ({"low": 1, "high": 2, "step": 1}, "write low and high"),
        ({"low": 2, "high": 1}, "needs low <= high, got 2, 1"),
        ({"low": 0, "high": 1, "log": True}, "both above 0, got 0, 1"),
        ({"low": 1, "high": 2, "log": "yes"}, "log must be true or false, got 'yes'"),
        ({"low": "1", "high": 2}, "low and high must be finite numbers, got '1'"),
        ({"low": 1, "high": float("inf")}, "low and high must be finite numbers, got inf"),
        ({"low": True, "high": 2}, "low and high must be finite numbers, got True"),
        ({"choice": [1], "when": {"r": 4}}, "when refers to 'r', which must come earlier"),
        ({"choice": [1], "when": "log"}, "when must name one parameter and its value, got 'log'"),
        (
            {"choice": [1], "when": {"kind": "lgo"}},
            r"when kind is 'lgo' never holds; kind is log \| fixed",
        ),
    ],
)
def test_from_dict_refuses_malformed_parameters(declared: Any, message: str) -> None:
    space = {"kind": {"choice": ["log", "fixed"]}, "temperature": declared, "r": {"choice": [4]}}
    with pytest.raises(InputError, match=f"^space temperature: .*{message}"):
        Space.from_dict(space)


def test_from_dict_tells_every_malformed_parameter() -> None:
    with pytest.raises(InputError, match="space a") as caught:
        Space.from_dict({"a": [1], "b": {"choice": [2]}, "c": {"low": 1}})
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["space a", "space c"]


def test_from_dict_refuses_what_is_no_mapping() -> None:
    with pytest.raises(InputError, match=r"space must map parameters to their values, got \['r'\]"):
        Space.from_dict(["r"])  # type: ignore[arg-type]
