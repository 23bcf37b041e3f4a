"""The JSON Schema of study files accepts what a study accepts, and refuses what it can."""

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from hylorada import HyLoRADAConfig, InputError, TrainingConfig
from studies.api.definitions import definitions
from studies.cli.commands import main
from studies.spec.fields import field_infos
from studies.spec.plain_yaml import parse_yaml
from studies.spec.schema.study_schema import study_schema
from studies.spec.study import Study

SCHEMA = study_schema(definitions())
CHECK = Draft202012Validator(SCHEMA)
MINE: Mapping[str, Any] = {
    "definition": "mine",
    "name": "mine",
    "defaults": {"max_steps": 50},
    "common": {"space": {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}},
    "arms": {
        "all": {"config": {"target_modules": ["all-linear"]}, "space": {"r": {"choice": [4, 8]}}},
        "learnable": {
            "config": {"landmark_bucketing": "learnable"},
            "space": {
                "boundary_init": {"choice": ["log", "fixed"]},
                "boundary_warmup": {"low": 0.1, "high": 0.7, "when": {"boundary_init": "fixed"}},
                "num_buckets": 8,
                "target_modules": {"choice": [["q_proj"], ["all-linear"], None]},
            },
        },
    },
    "comparisons": [["learnable", "all"]],
    "profile": [0.5, 1, 2],
    "looks": [2, 4],
    "grid": {"block_size": [64, 128], "data": ["pydocs"]},
}


def _changed(path: str, value: Any) -> dict[str, Any]:
    values = copy.deepcopy(dict(MINE))
    *parents, last = path.split(".")
    place = values
    for key in parents:
        place = place[key]
    place[last] = value
    return values


def _refused_by_study(values: Mapping[str, Any]) -> bool:
    try:
        Study.from_dict(values)
    except InputError:
        return True
    return False


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", definitions())
def test_shipped_studies_are_accepted(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", name]) == 0
    values = parse_yaml(capsys.readouterr().out)
    assert values["name"] == name
    assert list(CHECK.iter_errors(values)) == []


def test_study_of_ones_own_is_accepted_whole_and_in_part() -> None:
    assert not _refused_by_study(MINE)
    assert CHECK.is_valid(dict(MINE))
    assert CHECK.is_valid({"trials": 16, "arms": {"fixed": {"config": {"r": 4}}}})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("trials", 0),
        ("trials", "many"),
        ("trials", 10**7),
        ("trails", 3),
        ("searches", None),
        ("seed", 2**63),
        ("eval_blocks", 1),
        ("margin", -1),
        ("margin", True),
        ("matched", "yes"),
        ("sampler", "grid"),
        ("dtype", "float16"),
        ("document_separator", "tab"),
        ("name", "a/b"),
        ("name", ".."),
        ("name", " mine"),
        ("name", ""),
        ("name", "x" * 101),
        ("profile", [0.5, 2]),
        ("profile", [1, 1.0]),
        ("profile", [1, 0]),
        ("profile", [1, *range(2, 11)]),
        ("looks", [1, 2]),
        ("seed_list", [-1]),
        ("seed_list", [2**32]),
        ("comparisons", [["learnable"]]),
        ("comparisons", [["learnable", "all"], ["learnable", "all"]]),
        ("grid", {"dtype": ["float32"]}),
        ("grid", {"block_size": []}),
        ("grid", {"block_size": [64, 64]}),
        ("defaults.r", 0),
        ("defaults.max_positions", 64),
        ("defaults.learning_rate", 0.0),
        ("defaults.adam_beta2", 1.0),
        ("defaults.lr_scheduler_type", "cosin"),
        ("arms.all.config.target_modules", []),
        ("defaults.target_modules", "all-linear"),
        ("arms.all.config.target_modules", ["all-linear", "q_proj"]),
        ("defaults.rank", 8),
        ("common.space.learning_rate", {"low": 1e-4}),
        ("common.space.learning_rate", {"low": 1e-4, "high": "1e-2"}),
        ("common.space.max_steps", {"low": 10, "high": 20}),
        ("common.config", {}),
        ("arms.a/b", {}),
        ("arms.all", {"spaces": {}}),
        ("arms.all.config.max_steps", 20),
        ("arms.all.config.landmark_design", "globe"),
        ("arms.all.space.r", [4, 8]),
        ("arms.all.space.r", {"choice": []}),
        ("arms.all.space.r", {"choice": [4, 4]}),
        ("arms.all.space.r", {"choice": [0, 4]}),
        ("arms.all.space.r", {"choice": [4], "low": 1}),
        ("arms.all.space.r", {"low": 0, "high": 8}),
        ("arms.all.space.r", {"low": 4, "high": 8, "log": "yes"}),
        ("arms.all.space.r", {"choice": [4, 8], "when": {}}),
        ("arms.all.space.r", {"choice": [4, 8], "when": {"rank": 8}}),
        ("arms.all.space.use_dora", {"low": 0, "high": 1}),
        ("arms.learnable.space.target_modules", ["q_proj"]),
        ("start", {"learning_rate": 1e-3}),
        ("start", [{}]),
        ("start", [{"rate": 1e-3}]),
        ("start", [{"learning_rate": "fast"}]),
        ("start", [{"from": ""}]),
        ("start", [{"arms": {"all": {"rate": 1e-3}}}]),
        ("defaults.landmark_design", "my_design.py"),
    ],
)
def test_what_a_study_refuses_the_schema_refuses(path: str, value: Any) -> None:
    values = _changed(path, value)
    assert _refused_by_study(values)
    assert not CHECK.is_valid(values)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "Größe 2.0_b-c"),
        ("name", "..x"),
        ("eval_every", None),
        ("trials", 10**6),
        ("margin", 1),
        ("seed_list", [0, 2**32 - 1]),
        ("seeds", 1),
        ("defaults.attention_group", None),
        ("defaults.target_modules", ["q_proj", "k_proj"]),
        ("defaults.target_modules", None),
        ("arms.all.space.lora_alpha", {"low": 8, "high": 32}),
        ("arms.all.space.lora_dropout", 0.1),
        ("arms.all.space.position_bias", {"choice": [True, False]}),
        ("start", [{"from": "earlier"}]),
        ("arms.all.config.landmark_design", "global"),
    ],
)
def test_what_a_study_accepts_the_schema_accepts(path: str, value: Any) -> None:
    values = _changed(path, value)
    assert not _refused_by_study(values)
    assert list(CHECK.iter_errors(values)) == []


def test_each_field_has_its_text_and_its_default() -> None:
    fields = SCHEMA["properties"]
    assert {name: f["description"] for name, f in fields.items()} == {
        name: info.text for name, info in field_infos(Study).items()
    }
    assert (fields["trials"]["default"], fields["margin"]["default"]) == (8, 0.5)
    defaults = {**HyLoRADAConfig().to_dict(), **TrainingConfig().to_dict()}
    settable = defaults.keys() - {"max_positions"}
    assert {n: SCHEMA["$defs"][n]["default"] for n in settable} == {
        n: defaults[n] for n in settable
    }
    assert all("description" in SCHEMA["$defs"][name] for name in settable)
    assert SCHEMA["$defs"]["r"]["description"] == "rank of the LoRA update."


def test_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA
