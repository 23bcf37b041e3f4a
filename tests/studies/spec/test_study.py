"""Studies: precedence, rungs, checks of everything at once, overrides and fingerprints."""

import copy
import json
from typing import Any

import optuna
import pytest
import yaml

from hylorada import InputError
from studies.learnable_bucketing import STUDY
from studies.spec.arms import ADAPTER_FIELDS, TRAINING_FIELDS
from studies.spec.common_values import given_values
from studies.spec.fields import field_infos, field_types
from studies.spec.overrides import override
from studies.spec.plain_yaml import parse_yaml
from studies.spec.points import first_points
from studies.spec.study import FREE, GROWING, Study

ARMS = ("baseline", "fixed", "learnable")


def _study(**changes: Any) -> Study:
    return Study.from_dict(STUDY | changes)


def _problems(values: dict[str, Any]) -> list[str]:
    with pytest.raises(InputError, match=r".") as caught:
        Study.from_dict(values)
    return caught.value.problems


def _set(*assignments: str) -> list[str]:
    """Problems of the shipped study with some changes."""
    values, problems = override(STUDY, assignments)
    assert not problems
    return _problems(values)


def _paced(max_steps: int, eval_every: int, **changes: Any) -> Study:
    return _study(
        defaults=STUDY["defaults"] | {"max_steps": max_steps}, eval_every=eval_every, **changes
    )


@pytest.mark.parametrize(
    ("grace", "reduction", "max_steps", "rungs"),
    [
        (100, 3, 1000, (100, 300, 900)),
        (100, 2, 1000, (100, 200, 400, 800)),
        (100, 10, 1000, (100,)),
        (1000, 2, 1000, ()),
        (0, 2, 1000, ()),
    ],
)
def test_rungs_are_in_optimizer_steps(
    grace: int, reduction: int, max_steps: int, rungs: tuple[int, ...]
) -> None:
    assert _paced(max_steps, 100, grace_steps=grace, reduction_factor=reduction).rungs() == rungs


def test_rungs_must_be_multiples_of_eval_every() -> None:
    with pytest.raises(
        InputError, match=r"ASHA's rungs \[100, 300, 900\] must be multiples of eval_every 200"
    ):
        _paced(1000, 200, grace_steps=100, reduction_factor=3)


def test_rungs_are_refused_where_there_are_none() -> None:
    with pytest.raises(InputError, match="grace_steps 200 exceeds max_steps 100"):
        _paced(100, 20, grace_steps=200)


@pytest.mark.parametrize("factor", [1, 0, -2])
def test_reduction_factor_must_be_at_least_two(factor: int) -> None:
    assert _set(f"reduction_factor={factor}") == [
        f"reduction_factor must be at least 2, got {factor}"
    ]


@pytest.mark.parametrize(
    ("max_steps", "eval_every", "steps"),
    [(60, 20, (20, 40, 60)), (50, 20, (20, 40, 50)), (10, 20, (10,))],
)
def test_report_steps_end_at_max_steps(
    max_steps: int, eval_every: int, steps: tuple[int, ...]
) -> None:
    assert _paced(max_steps, eval_every, grace_steps=0).report_steps() == steps


def test_configs_take_defaults_then_the_arm_then_the_proposal() -> None:
    arm = {
        "config": {"lora_dropout": 0.2, "weight_decay": 0.2},
        "space": {"weight_decay": {"choice": [0.3]}},
    }
    defaults = {"r": 4, "lora_dropout": 0.1, "weight_decay": 0.1, "max_steps": 60}
    study = _study(defaults=defaults, arms={"one": arm}, comparisons=[])
    adapter, training = study.configs("one", {"weight_decay": 0.3})
    assert (adapter.r, adapter.lora_dropout, training.weight_decay) == (4, 0.2, 0.3)
    assert (adapter.max_positions, training.max_steps) == (128, 60)


@pytest.mark.parametrize("arm", ARMS)
def test_every_searched_value_reaches_the_configuration(arm: str) -> None:
    study = _study()
    sampler = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    seen: set[str] = set()
    for _ in range(30):
        params = study.space(arm).sample(sampler.ask())
        adapter, training = study.configs(arm, params)
        found = {**adapter.to_dict(), **training.to_dict()}
        assert {name: found[name] for name in params} == params
        seen |= params.keys()
    assert seen == {"learning_rate", *STUDY["arms"][arm].get("space", {})}
    assert seen <= ADAPTER_FIELDS | TRAINING_FIELDS


def test_shipped_study_survives_dict_json_and_yaml() -> None:
    study = _study()
    values = study.to_dict()
    for again in (values, json.loads(json.dumps(values)), yaml.safe_load(yaml.safe_dump(values))):
        assert Study.from_dict(again) == study
        assert Study.from_dict(again).fingerprint() == study.fingerprint()
    assert values.keys() == STUDY.keys()


def test_start_is_inside_every_arm_and_counts_its_config() -> None:
    study = _study()
    assert given_values(study, "baseline", 0, 0) == {"learning_rate": 2e-3}
    assert given_values(study, "learnable", 0, 0)["boundary_init"] == "log"
    for arm in ARMS:
        study.configs(arm, given_values(study, arm, 0, 0))


def test_firsts_lie_in_the_space_with_every_structure_once() -> None:
    assignments = [
        "arms.fixed.space.num_buckets.choice=[4, 8]",
        "arms.learnable.space.num_buckets.choice=[4, 8]",
        "arms.fixed.space.landmark_design={choice: [global, per_layer, attention]}",
        "arms.fixed.space.use_dora={choice: [false, true]}",
    ]
    values, problems = override({**STUDY, "block_size": 16}, assignments)
    assert not problems
    study = Study.from_dict(values)
    configs = {
        arm: [study.configs(arm, point)[0] for point in first_points(study, arm)]
        for arm in study.arms
    }
    assert [c.num_buckets for c in configs["learnable"]] == [4]
    designs = [(c.landmark_design, c.use_dora) for c in configs["fixed"]]
    assert sorted(designs) == [
        (d, b) for d in ("attention", "global", "per_layer") for b in (False, True)
    ]


@pytest.mark.parametrize("arm", ARMS)
def test_first_of_the_shipped_study_is_its_start(arm: str) -> None:
    study = _study()
    (point,) = first_points(study, arm)
    assert point.items() >= given_values(study, arm, 0, 0).items()
    assert point.keys() <= study.space(arm).parameters.keys()


def test_from_dict_tells_every_problem_at_once() -> None:
    values = copy.deepcopy(STUDY) | {"trials": 0, "seeds": "3", "trails": 4, "dtype": "float16"}
    values["defaults"] |= {"r": 0.5}
    values["arms"]["learnable"]["space"] |= {"temperature": {"low": 0.0, "high": 0.1}}
    assert _problems(values) == [
        "dtype 'float16' is unknown; did you mean 'bfloat16'?",
        "trials must be at least 1, got 0",
        "seeds must be a whole number, got '3'",
        "unknown field 'trails'; did you mean 'trials'?",
        "defaults.r must be a whole number, got 0.5",
        "arms.learnable.space.temperature must be above 0, got 0.0",
    ]


def test_from_dict_checks_fields_together_beside_other_mistakes() -> None:
    values = copy.deepcopy(STUDY) | {
        "seed": -1,
        "eval_every": 30,
        "block_size": 16,
        "comparisons": [["fixed", "lernt"]],
    }
    values["arms"] = {
        "fixed": {"config": {"num_buckets": 20, "lora_dropout": 7, "boundary_warmup": 0.2}}
    }
    assert _problems(values) == [
        "seed must be at least 0, got -1",
        "ASHA's rungs [8, 16] must be multiples of eval_every 30; "
        "change grace_steps, reduction_factor or eval_every",
        "arms.fixed.config.lora_dropout must be at least 0 and at most 0.99, got 7",
        "arms.fixed: num_buckets 20 exceeds the block of 16 positions; "
        "use at most one bucket a position",
        "arms.fixed: boundary_warmup 0.2 needs boundary_init 'fixed', got 'log'",
        "comparisons: unknown arm 'lernt'; one of: fixed",
    ]


def test_from_dict_checks_shifted_sparse_attention_with_what_else_is_searched() -> None:
    sparse: dict[str, Any] = {"shifted_sparse_attention": {"choice": [False, True]}}
    design = {"landmark_design": {"choice": ["global", "attention"]}}
    group = {"attention_group": {"choice": [16, 128], "when": {"shifted_sparse_attention": True}}}
    arms = {"one": {"space": {**sparse, **group}}, "two": {"space": {**sparse, **design}}}
    arms["three"] = {"space": {**sparse, "attention_group": {"choice": [16, 32]}}}
    assert _problems({**STUDY, "block_size": 128, "arms": arms, "comparisons": []}) == [
        "arms.one: groups of 128 tokens (attention_group) don't fit a block of 128 positions; "
        "shifted_sparse_attention needs 2 groups of 2 tokens at least",
        "arms.two: shifted_sparse_attention does not work with landmark_design 'attention'; "
        "choose another design or attend fully",
        "arms.three: attention_group 16 needs shifted_sparse_attention true",
        "arms.three: attention_group 32 needs shifted_sparse_attention true",
    ]


def test_from_dict_blames_no_neighbour_of_a_wrong_field() -> None:
    # The default of 32 buckets would not fit the block, but the arm sets another number.
    values = STUDY | {
        "block_size": 16,
        "arms": {"one": {"config": {"num_buckets": "8"}}},
        "comparisons": [],
    }
    assert _problems(values) == ["arms.one.config.num_buckets must be a whole number, got '8'"]
    assert _problems(STUDY | {"block_size": "16"}) == [
        "block_size must be a whole number, got '16'"
    ]


def test_from_dict_allows_a_default_that_no_proposal_has() -> None:
    arm = {"space": {"num_buckets": {"choice": [4, 8]}}}  # the default is 32
    study = _study(block_size=16, common={}, arms={"one": arm}, comparisons=[])
    assert given_values(study, "one", 0, 0) == {}
    assert study.configs("one", {"num_buckets": 8})[0].num_buckets == 8


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (
            "arms.fixed.space.num_buckets.choice=[8, 200]",
            "arms.fixed: num_buckets 200 exceeds the block of 128 pos",
        ),
        (
            "arms.learnable.space.temperature={low: -1.0, high: 1.0}",
            "temperature must be above 0, got -1.0",
        ),
        (
            "arms.learnable.space.temperature=0",
            "arms.learnable.space.temperature must be above 0, got 0",
        ),
        ("defaults.temperature=-0.1", "defaults.temperature must be above 0, got -0.1"),
        (
            "arms.fixed.config={max_steps: 90}",
            r"arms.fixed: max_steps is the same for all arms \(equal budgets\)",
        ),
        (
            "arms.fixed.space.max_steps={choice: [60, 90]}",
            "arms.fixed: max_steps is the same for all arms",
        ),
        (
            "arms.fixed.space={num_bucket: {choice: [8]}}",
            "unknown field 'num_bucket'; did you mean 'num_buckets'",
        ),
        (
            "arms.fixed.config={max_positions: 64}",
            "max_positions can't be set: it follows block_size",
        ),
        ("arms.fixed.space=8", "arms.fixed.space must map parameters to their values, got 8"),
        ("arms.fixed={spaces: {}}", "arms.fixed must hold config and space"),
        ("arms={}", r"arms must name at least one arm, got \{\}"),
        ("arms=[fixed]", "arms must name at least one arm, got"),
        ("arms={a/b: {}}", "the name of an arm must be 1 to 100 letters.*got 'a/b'"),
        ("arms={1: {}}", "the name of an arm must be text, got 1"),
        ("defaults=null", "defaults must map fields to values, got None"),
        ("defaults={1: 2}", "defaults: unknown field 1"),
        ("comparisons=7", "comparisons must be a list of pairs"),
        (
            "comparisons=[[fixed]]",
            r"each must be a pair of arms \[arm, reference\], got \['fixed'\]",
        ),
        ("comparisons=[[fixed, fixed]]", "each must be a pair of arms"),
        ("comparisons=[[fxied, baseline]]", "unknown arm 'fxied'; did you mean 'fixed'"),
        ("seed=9223372036854775808", r"seed must be below 2\^63"),
        ("eval_blocks=1", "eval_blocks must be at least 2, got 1"),
        ("seeds=10001", "seeds must be at most 10000, got 10001"),
        (
            "defaults.max_steps=1000000000",
            "makes 125000000 reports a trial, at most 100000; raise eval_every",
        ),
        (
            "comparisons=[[fixed, baseline], [fixed, baseline]]",
            r"comparisons: \['fixed', 'baseline'\] appears twice",
        ),
        # its trials' folders, `学...-0001-confirm-00`, would have names of more than 255 bytes
        (
            f"arms={{{'学' * 80}: {{}}}}",
            "the name of an arm must have at most 200 bytes and no combining characters",
        ),
        (
            "arms={e\u0301: {}}",
            "the name of an arm must have at most 200 bytes and no combining characters",
        ),
        ("defaults.temperature=1e-40", "defaults.temperature must be at least 1e-30, got 1e-40"),
    ],
)
def test_from_dict_refuses_what_cannot_run(assignment: str, message: str) -> None:
    values, problems = override(STUDY, [assignment])
    assert not problems
    with pytest.raises(InputError, match=message):
        Study.from_dict(values)


def test_from_dict_finds_what_goes_wrong_in_the_middle_of_two_choices() -> None:
    # neither end of one choice shows it beside either end of the other
    designs, buckets = (
        {"choice": ["global", "position_adaptive", "per_layer"]},
        {"choice": [8, 200, 16]},
    )
    values = STUDY | {
        "arms": {"one": {"space": {"landmark_design": designs, "num_buckets": buckets}}},
        "comparisons": [],
    }
    assert _problems(values) == [
        "arms.one: num_buckets 200 exceeds the block of 128 positions; "
        "use at most one bucket a position"
    ]


def test_soft_arm_takes_no_field_that_would_do_nothing() -> None:
    soft: dict[str, Any] = {"config": {"landmark_bucketing": "soft"}}
    space = {"boundary_init": {"choice": ["log", "random"]}, "num_buckets": {"choice": [2, 8]}}
    study = _study(arms=STUDY["arms"] | {"soft": soft | {"space": space}})
    config, _ = study.configs("soft", {"boundary_init": "random", "num_buckets": 2})
    assert (config.landmark_bucketing, config.boundary_init) == ("soft", "random")
    searched = soft | {"space": {"boundary_lr_scale": {"choice": [1.0, 5.0]}}}
    assert _problems(STUDY | {"arms": STUDY["arms"] | {"soft": searched}}) == [
        "arms.soft: landmark_bucketing 'soft' never trains boundaries, so boundary_lr_scale 5.0 "
        "would do nothing; leave unset, or use landmark_bucketing 'learnable'"
    ]


def test_single_bucket_is_refused_in_the_arms_that_need_two() -> None:
    values, _ = override(STUDY, ["arms.learnable.space.num_buckets.choice=[1, 8]"])
    assert _problems(values)[0].startswith(
        "arms.learnable: num_buckets must be at least 2 with landmark_bucketing 'learnable', got 1"
    )
    fixed, _ = override(STUDY, ["arms.fixed.space.num_buckets.choice=[1, 8]"])
    assert Study.from_dict(fixed).configs("fixed", {"num_buckets": 1})[0].num_buckets == 1


def test_searched_lists_reach_the_configuration() -> None:
    lists = [["q_proj", "v_proj"], ["q_proj"]]
    arm = {"config": {"target_modules": ["q_proj"]}, "space": {"target_modules": {"choice": lists}}}
    study = _study(common={}, arms={"one": arm}, comparisons=[])
    assert given_values(study, "one", 0, 0) == {"target_modules": '["q_proj"]'}
    assert study.configs("one", given_values(study, "one", 0, 0))[0].target_modules == ("q_proj",)
    drawn = study.arms["one"].space.sample(optuna.create_study().ask())
    assert drawn["target_modules"] in lists
    assert study.configs("one", drawn)[0].target_modules == tuple(drawn["target_modules"])


def test_ranges_of_numbers_with_fractions_are_real() -> None:
    study = _study(arms={"one": {"space": {"weight_decay": {"low": 0, "high": 1}}}}, comparisons=[])
    assert (
        str(study.to_dict()["arms"]["one"]["space"])
        == "{'weight_decay': {'low': 0.0, 'high': 1.0}}"
    )


def test_every_field_is_declared_with_its_meaning() -> None:
    infos, types = field_infos(Study), field_types(Study)
    assert [name for name, info in infos.items() if not info.text] == []
    structured = {"common", "profile", "looks", "seed_list", "defaults", "arms", "comparisons"}
    structured |= {"designs", "grid", "start"}
    assert types.keys() == infos.keys() - structured
    assert [n for n, info in infos.items() if info.option and n not in types] == ["seed_list"]
    assert GROWING == ("trials", "searches", "seeds")
    assert set(FREE) == {*GROWING, "subject", "margin", "looks", "criteria", "grid"}


def test_limits_and_defaults_agree() -> None:
    study = Study(definition="d", name="n")
    for name, info in field_infos(Study).items():
        if name in field_types(Study):
            assert info.problem(name, getattr(study, name)) is None


def test_from_dict_wants_definition_and_name() -> None:
    values = {k: v for k, v in STUDY.items() if k not in ("definition", "name")}
    assert _problems(values) == ["definition is missing", "name is missing"]


@pytest.mark.parametrize("name", ["wt2", "Été_2-b.1 x", "e\u0301te", "学习", "a" * 100])
def test_name_may_have_letters_digits_and_a_few_signs(name: str) -> None:
    assert _study(name=name).name == name


@pytest.mark.parametrize(
    "name", ["", " ", ".", "..", "a/b", "a\\b", "a:b", "a\nb", " a", "a ", "a" * 101, "学" * 99, 5]
)
def test_name_must_be_usable_as_folder_and_experiment(name: Any) -> None:
    with pytest.raises(InputError, match="name must be"):
        _study(name=name)


_CHANGES: dict[str, Any] = {
    "definition": "other",
    "model": "smollm2-135m",
    "data": "text.txt",
    "text_column": "body",
    "document_separator": "newline",
    "block_size": 256,
    "dtype": "bfloat16",
    "gradient_checkpointing": True,
    "device_map": "auto",
    "quantization": "4bit",
    "train_blocks": 99,
    "epochs": 1,
    "eval_every": 4,
    "eval_blocks": 13,
    "test_blocks": 12,
    "grace_steps": 0,
    "reduction_factor": 3,
    "sampler": "random",
    "start": [{"learning_rate": 0.004}],
    "pruner": "none",
    "common": {"space": {"learning_rate": {"low": 1e-3, "high": 2e-2, "log": True}}},
    "matched": False,
    "finalists": 7,
    "selection_seeds": 7,
    "profile": [1.0],
    "spread_test": False,
    "seed_list": [42],
    "seed": 1,
    "defaults": STUDY["defaults"] | {"r": 4},
    "arms": STUDY["arms"] | {"baseline": {"config": {"landmarks": False, "r": 4}}},
    "comparisons": [["fixed", "baseline"]],
}


# A study keeps the source of the designs that its arms name alone; see test_own_designs.py.
@pytest.mark.parametrize("field", [field for field in STUDY if field != "designs"])
def test_fingerprint_changes_with_what_changes_results(field: str) -> None:
    free = {
        "name": "other",
        "subject": "other",
        "trials": 99,
        "searches": 99,
        "seeds": 99,
        "margin": 9.0,
    }
    free |= {"looks": [9], "criteria": True, "grid": {"block_size": [64]}}
    changed = _study(**{field: (_CHANGES | free)[field]})
    assert (changed.fingerprint() == _study().fingerprint()) == (field in free)


def test_fingerprint_of_the_built_in_study_is_that_of_earlier_versions() -> None:
    """Of commit f886a76, before a study could choose its sampler and pruner."""
    assert _study().fingerprint() == "d00b9f3bacc0d1e1"


def test_override_changes_every_depth_and_leaves_the_original() -> None:
    before = copy.deepcopy(STUDY)
    paths = (
        "trials=3",
        "defaults.r=4",
        "arms.fixed.space.num_buckets.choice=[8]",
        "arms.learnable.config.r=2",
    )
    values, problems = override(STUDY, paths)
    assert (problems, before) == ([], STUDY)
    assert (values["trials"], values["defaults"]["r"]) == (3, 4)
    assert values["arms"]["fixed"]["space"]["num_buckets"] == {"choice": [8]}
    assert values["arms"]["learnable"]["config"] == {"landmark_bucketing": "learnable", "r": 2}


def test_override_changes_one_arm_where_two_share_a_declaration() -> None:
    shared = {"choice": [8, 16, 32]}
    arms = {name: {"space": {"num_buckets": shared}} for name in ("fixed", "learnable")}
    values, _ = override({"arms": arms}, ["arms.fixed.space.num_buckets.choice=[4]"])
    assert values["arms"]["fixed"]["space"]["num_buckets"] == {"choice": [4]}
    assert values["arms"]["learnable"]["space"]["num_buckets"] == {"choice": [8, 16, 32]}


def test_override_that_fixes_a_parameter_leaves_out_what_never_holds_then() -> None:
    values, problems = override(STUDY, ["arms.learnable.space.boundary_init=log"])
    assert not problems
    assert "boundary_warmup" in STUDY["arms"]["learnable"]["space"]
    assert "boundary_warmup" not in values["arms"]["learnable"]["space"]
    Study.from_dict(values)
    kept, _ = override(STUDY, ["arms.learnable.space.boundary_init=fixed"])
    assert "boundary_warmup" in kept["arms"]["learnable"]["space"]


def test_override_may_search_what_was_not_searched() -> None:
    paths = ("arms.baseline.space.r.choice=[2, 4]", "arms.fixed.space.lora_dropout.low=0.0")
    values, problems = override(STUDY, (*paths, "arms.fixed.space.lora_dropout.high=0.5"))
    assert not problems
    assert values["arms"]["baseline"]["space"]["r"] == {"choice": [2, 4]}
    assert values["arms"]["fixed"]["space"]["lora_dropout"] == {"low": 0.0, "high": 0.5}


def test_override_makes_the_parts_an_arm_may_have() -> None:
    values, problems = override(
        {"arms": {"one": {}}}, ["arms.one.config.r=2", "arms.one.space.weight_decay=0.1"]
    )
    assert not problems
    assert values == {"arms": {"one": {"config": {"r": 2}, "space": {"weight_decay": 0.1}}}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("-2.5E+1", -25.0),
        ("5", 5),
        ("true", True),
        ("null", None),
        ("", None),
        ("gpt2", "gpt2"),
        ("'1e-3'", "1e-3"),
        ("1e", "1e"),
        ("010", 10),
        ("1_000", 1000),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("{low: 1e-4, high: .5}", {"low": 1e-4, "high": 0.5}),
    ],
)
def test_parse_yaml_reads_numbers_as_people_write_them(text: str, value: Any) -> None:
    found = parse_yaml(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("trials", "--set trials: write field=value"),
        ("trails=3", "--set trails: unknown 'trails'; did you mean 'trials'?"),
        (
            "max_steps=3",
            "--set max_steps: unknown 'max_steps'; write defaults.max_steps to set it for all arms",
        ),
        (
            "learning_rate=3",
            "--set learning_rate: unknown 'learning_rate'; write common.space.learning_rate",
        ),
        (
            "temperature=3",
            "--set temperature: unknown 'temperature'; write arms.learnable.space.temperature",
        ),
        (
            "arms.fixd.config.r=3",
            "--set arms.fixd.config.r: arms has no 'fixd'; did you mean 'fixed'?",
        ),
        (
            "defaults.num_bucket=3",
            "--set defaults.num_bucket: unknown 'num_bucket'; did you mean 'num_buckets'?",
        ),
        ("arms.fixed.spce=3", "--set arms.fixed.spce: unknown 'spce'; did you mean 'space'?"),
        ("trials.low=3", "--set trials.low: trials is a value and has no fields"),
        ("trials.low.x=3", "--set trials.low.x: trials is a value and has no fields"),
        (
            "arms.learnable.space.temperature.lo=1",
            "--set arms.learnable.space.temperature.lo: unknown 'lo'; did you mean 'low'?",
        ),
        (
            "seed=[1",
            "--set seed: '[1' is not a YAML value: line 1, column 3: expected ',' or ']', "
            "but got '<stream end>'",
        ),
        (
            "defaults={r: 4, r: 8}",
            "--set defaults: '{r: 4, r: 8}' is not a YAML value: line 1, column 8: "
            "'r' appears twice",
        ),
        (
            "arms.fixed.space.temprature.low=1",
            "--set arms.fixed.space.temprature.low: arms.fixed.space has no 'temprature'; "
            "did you mean 'temperature'?",
        ),
        (
            "arms.fixed.space.temperature.lo=1",  # not searched so far: nothing half-made remains
            "--set arms.fixed.space.temperature.lo: unknown 'lo'; did you mean 'low'?",
        ),
        (
            "arms.fixed.space.num_buckets.low=1",
            "--set arms.fixed.space.num_buckets.low: unknown 'low'; one of: choice, when",
        ),
    ],
)
def test_override_names_the_nearest_path(assignment: str, message: str) -> None:
    values, problems = override(STUDY, [assignment, "seeds=9"])
    assert problems == [message]
    assert values == STUDY | {"seeds": 9}


def test_fingerprint_is_that_of_the_text_wherever_it_lies() -> None:
    def fingerprint(data: str) -> str:
        return Study.from_dict({**STUDY, "data": data}).fingerprint()

    assert (
        fingerprint("/here/text.txt") == fingerprint("/there/text.txt") == fingerprint("text.txt")
    )
    assert (
        len({fingerprint(data) for data in ("text.txt", "pydocs", "a/text.txt", "/here/other.txt")})
        == 4
    )
