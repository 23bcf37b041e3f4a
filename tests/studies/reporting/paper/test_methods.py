"""The methods say what the study records, and nothing that it does not."""

import re
from dataclasses import replace
from typing import Any

import pytest
from latex_reader import plain_prose

from hylorada import HyLoRADAConfig, TrainingConfig
from studies.analysis.results import Results
from studies.reporting.paper.methods import Methods, write_methods
from studies.spec.study import Study

_PROVENANCE = {
    "model_type": "llama",
    "model_fingerprint": "31dca1d1a8d06193",
    "model_revision": None,
    "data_fingerprint": "e2188a9e41b52a53",
    "train_tokens": 91234,
    "validation_tokens": 11000,
    "test_tokens": 12000,
    "train_blocks": 700,
    "validation_blocks": 12,
    "test_blocks": 100,
    "document_separator": "newline",
    "version.hylorada": "0.1.0",
    "version.python": "3.11.7",
    "version.torch": "2.9.0",
    "git_commit": "934df05",
    "git_dirty": "true",
    "study_fingerprint": "0123456789abcdef",
}


def methods(made: Any, provenance: dict[str, Any] | None = None, **changes: Any) -> Methods:
    study = Study.from_dict(made.study.to_dict() | changes)
    results: Results = replace(made.results, provenance=provenance or {})
    return write_methods(study, results, made.records)


def keys(bibtex: str) -> list[str]:
    return re.findall(r"^@[a-z]+\{([a-z0-9]+),$", bibtex, re.MULTILINE)


def test_recorded_inputs_and_versions_are_named(plain_study: Any) -> None:
    text = methods(plain_study, _PROVENANCE).markdown
    for said in (
        "frozen base `tiny` (architecture `llama`, fingerprint of the weights `31dca1d1a8d06193`)",
        "`pydocs` (fingerprint `e2188a9e41b52a53`)",
        "(91,234 training, 11,000 validation and 12,000 test tokens)",
        "rows are lines of one text",
        "blocks of 32 tokens without overlap, 700 for training, 12 for validation and 100 for",
        "hylorada 0.1.0 (commit `934df05` with uncommitted changes) on Python 3.11.7 and PyTorch",
        "seed 0 and fingerprint `0123456789abcdef`",
    ):
        assert said in text


def test_what_is_not_recorded_is_left_out(plain_study: Any) -> None:
    text = methods(plain_study).markdown
    for word in (
        "architecture",
        "fingerprint",
        "revision",
        "commit",
        "Python",
        "None",
        "separates",
    ):
        assert word not in text


def test_runs_are_counted_from_the_records(plain_study: Any) -> None:
    records = plain_study.records.values()
    steps = sum(r.reports[-1].step for r in records)
    minutes = sum(r.reports[-1].seconds for r in records) / 60
    text = methods(plain_study).markdown
    assert "12 search trials (8 complete and 4 pruned) and 4 confirm runs (4 complete)" in text
    assert f"{steps} optimizer steps in all" in text
    assert f"took {minutes:.1f} minutes" in text


def test_arms_are_described_with_their_spaces(plain_study: Any) -> None:
    text = methods(plain_study).markdown
    assert (
        "The arm `baseline` (42 trainable parameters as confirmed) fixes `landmarks` = `false` and "
        "searches `learning_rate` from 0.0001 to 0.01, on a log scale."
    ) in text
    assert "`num_buckets` among `4` and `8`" in text
    assert "rank 8, alpha 16, dropout 0" in text


@pytest.mark.parametrize(
    ("changes", "cited", "not_cited"),
    [
        ({}, {"bergstra2011tpe", "li2020asha", "kalajdzievski2023rslora"}, {"liu2024dora"}),
        ({"pruner": "none"}, {"hu2022lora", "cochran1964behrens"}, {"li2020asha"}),
        ({"sampler": "random"}, {"akiba2019optuna"}, {"bergstra2011tpe"}),
        ({"sampler": "qmc"}, {"owen1998scrambling"}, {"bergstra2011tpe", "akiba2019optuna"}),
        (
            {"defaults": {"max_steps": 8, "use_rslora": False, "use_dora": True}},
            {"liu2024dora"},
            {"kalajdzievski2023rslora"},
        ),
    ],
    ids=["as it is", "no pruner", "random", "qmc", "DoRA"],
)
def test_only_works_that_the_study_uses_are_cited(
    plain_study: Any, changes: dict[str, Any], cited: set[str], not_cited: set[str]
) -> None:
    made = methods(plain_study, **changes)
    listed = set(keys(made.bibtex))
    assert cited <= listed
    assert not not_cited & listed
    in_text = set(re.findall(r"@([a-z0-9]+)", made.markdown))
    assert in_text == listed == set(re.findall(r"[a-z]+\d{4}[a-z0-9]+", made.latex)) & listed


def test_configurations_that_come_first_are_named(plain_study: Any) -> None:
    start = [{"learning_rate": 1e-3}, {"from": "quick", "learning_rate": 2e-3}]
    text = methods(plain_study, start=start).markdown
    assert (
        "Each arm of a search began with the winners of the study `quick`, then 1 configuration "
        "named in advance, then the defaults."
    ) in text
    assert "began with" not in methods(plain_study).markdown


def test_one_comparison_needs_no_adjustment(plain_study: Any) -> None:
    text = methods(plain_study).markdown
    assert "Holm" not in text
    assert "the interval excludes 0 and p < 0.05; otherwise" in text
    assert "within ±0.5 %" in text


def test_odd_names_come_through_in_latex(odd: Any) -> None:
    printed = plain_prose(methods(odd).latex)
    assert "The arm a_b 1.5 (42 trainable parameters" in printed
    assert "The arm été U+5B66 x-1 (42 trainable" in printed
    assert "made 3 independent searches of up to 6 trials of every arm" in printed
    assert "paired differences over 2 paired seeds, given as changes" in printed


_LEARNED = {"landmark_bucketing": "learnable"}
_PER_LAYER = {"landmark_design": "per_layer", "share_landmarks": True}
# For each field of an adapter and its training, a value that is not the default, and what else has
# to be set for it to make a difference.
_OTHERWISE: dict[str, tuple[Any, dict[str, Any]]] = {
    "r": (4, {}),
    "lora_alpha": (32.0, {}),
    "use_rslora": (False, {}),
    "use_dora": (True, {}),
    "lora_dropout": (0.1, {}),
    "target_modules": (["q_proj"], {}),
    "position_bias": (False, {}),
    "position_bias_buckets": (16, {}),
    "shifted_sparse_attention": (True, {}),
    "attention_group": (16, {"shifted_sparse_attention": True}),
    "landmarks": (False, {}),
    "landmark_design": ("global", {}),
    "num_landmarks": (4, {}),
    "landmark_dropout": (0.1, {}),
    "share_landmarks": (True, {"landmark_design": "per_layer"}),
    "share_gates": (True, _PER_LAYER),
    "replication_noncausal_pooling": (True, {"landmark_design": "global"}),
    "replication_bucket_range": (999, {}),
    "replication_untrained": ("boundaries", _LEARNED),
    "landmark_bucketing": ("soft", {}),
    "bucketing_study": ("mlruns/studies/before", {}),
    "num_buckets": (16, {}),
    "bucket_spacing": ("linear", {}),
    "temperature": (0.1, _LEARNED),
    "boundary_lr_scale": (5.0, _LEARNED),
    "boundary_init": ("uniform", _LEARNED),
    "boundary_warmup": (0.5, {**_LEARNED, "boundary_init": "fixed"}),
    "boundary_diversity": (0.1, _LEARNED),
    "boundary_repulsion": (0.1, _LEARNED),
    "max_steps": (100, {}),
    "batch_size": (8, {}),
    "learning_rate": (1e-3, {}),
    "lr_scheduler_type": ("linear", {}),
    "warmup_ratio": (0.1, {}),
    "weight_decay": (0.01, {}),
    "max_grad_norm": (2.0, {}),
    "adam_beta1": (0.8, {}),
    "adam_beta2": (0.99, {}),
    "adam_epsilon": (1e-6, {}),
    "replication_bf16": (True, {}),
    "replication_pads": (True, {}),
}
# The same for the fields of a study that change what its trials compute.
_STUDY_OTHERWISE: dict[str, tuple[Any, dict[str, Any]]] = {
    "model": ("smollm2-135m", {}),
    "data": ("pysource", {}),
    "text_column": ("body", {}),
    "document_separator": ("none", {}),
    "block_size": (64, {}),
    "dtype": ("bfloat16", {}),
    "gradient_checkpointing": (True, {}),
    "device_map": ("auto", {}),
    "trials": (3, {}),
    "train_blocks": (500, {}),
    "epochs": (3, {}),
    "eval_every": (50, {"grace_steps": 100}),
    "eval_blocks": (12, {}),
    "test_blocks": (40, {}),
    "sampler": ("random", {"arms": {"a": {"space": {"r": {"choice": [4, 8]}}}}}),
    "pruner": ("none", {}),
    "grace_steps": (50, {}),
    "reduction_factor": (3, {}),
    "common": ({"space": {"learning_rate": {"low": 1e-4, "high": 1e-2}}}, {}),
    "matched": (False, {"common": {"space": {"learning_rate": {"low": 1e-4, "high": 1e-2}}}}),
    "searches": (3, {}),
    "finalists": (2, {}),
    "selection_seeds": (2, {"finalists": 2}),
    "profile": (
        [0.5, 1.0, 2.0],
        {"common": {"space": {"learning_rate": {"low": 1e-4, "high": 1e-2}}}},
    ),
    "seeds": (3, {}),
    "seed_list": ([42, 123, 456], {"seeds": 3}),
    "seed": (7, {}),
    "spread_test": (False, {"test_blocks": 40}),
    "arms": ({"a": {}, "b": {}}, {}),
    "start": (
        [{"learning_rate": 5e-4}],
        {"common": {"space": {"learning_rate": {"low": 1e-4, "high": 1e-2}}}},
    ),
    "defaults": ({"max_steps": 100}, {}),
}
# Fields of which the results speak: they name arms, margins and levels, and cells are studies.
_OF_RESULTS = {
    "definition",
    "name",
    "subject",
    "margin",
    "looks",
    "criteria",
    "comparisons",
    "grid",
    "designs",  # code, which the kit holds
}


def _sentences(**changes: Any) -> str:
    values = {"definition": "own", "name": "own", "arms": {"a": {}}, **changes}
    values["defaults"] = {"max_steps": 250, **values.get("defaults", {})}
    results = Results("own", None, 0, (), (), "", (), {})
    return write_methods(Study.from_dict(values), results, {}).markdown


def test_every_field_of_an_adapter_and_its_training_is_known_here() -> None:
    fields = HyLoRADAConfig().to_dict().keys() | TrainingConfig().to_dict().keys()
    assert _OTHERWISE.keys() == fields - {"max_positions"}  # which is the study's block size


def test_every_field_of_a_study_is_known_here() -> None:
    known = Study.from_dict({"definition": "own", "name": "own", "arms": {"a": {}}}).to_dict()
    assert _STUDY_OTHERWISE.keys() | _OF_RESULTS == known.keys()


@pytest.mark.parametrize("field", _OTHERWISE)
def test_setting_that_all_arms_share_is_stated(field: str) -> None:
    value, needs = _OTHERWISE[field]
    assert _sentences(defaults=needs) != _sentences(defaults={**needs, field: value})


@pytest.mark.parametrize("field", sorted(_OTHERWISE.keys() - {"max_steps"}))  # equal in all arms
def test_setting_in_which_arms_differ_is_stated_with_the_arm(field: str) -> None:
    value, needs = _OTHERWISE[field]
    text = _sentences(arms={"a": {}, "b": {"config": {field: value}}}, defaults=needs)
    assert re.search(rf"The arm `b` fixes `{field}` = `[^`]+`\.", text)


@pytest.mark.parametrize("field", _STUDY_OTHERWISE)
def test_setting_of_a_study_is_stated(field: str) -> None:
    value, needs = _STUDY_OTHERWISE[field]
    assert _sentences(**needs) != _sentences(**{**needs, field: value})


def test_shifted_sparse_attention_is_described_with_its_groups_and_source() -> None:
    text = _sentences(defaults={"shifted_sparse_attention": True})
    said = "attend within groups of 32 tokens, half of the heads in groups shifted by half a group"
    assert f"While an adapter trains, the heads of the base {said} [@chen2024longlora];" in text
    some = {"a": {}, "b": {"config": {"shifted_sparse_attention": True, "attention_group": 8}}}
    assert "the heads of the base in some configurations attend within groups of" in _sentences(
        arms=some
    )


def test_boundaries_and_their_regularizers_are_described() -> None:
    learned = {"boundary_lr_scale": 5.0, "boundary_init": "fixed", "boundary_warmup": 0.25}
    text = _sentences(defaults={**_LEARNED, **learned, "boundary_repulsion": 0.01})
    assert (
        "The edges of learnable buckets are smooth, sigmoids of temperature 0.02 in units of the "
        "block. Their boundaries start at the edges of logarithmic buckets. Boundaries are trained "
        "at 5 times the learning rate of the rest, without weight decay, and kept in the block. "
        "They are held for the first 25 % of the steps. The training loss is lowered by 0.01 times "
        "the smallest gap between neighbouring boundaries."
    ) in text


def test_study_that_searches_nothing_names_no_sampler() -> None:
    text = _sentences()
    assert "No parameter was searched." in text
    assert "Parzen" not in text


def test_parts_that_no_arm_has_are_not_described() -> None:
    text = _sentences(defaults={"landmarks": False, "position_bias": False})
    for word in ("andmark", "bucket", "oundaries", "attend", "faults", "layers"):
        assert word not in text


def test_named_seeds_epochs_and_first_blocks_are_stated() -> None:
    text = _sentences(seed_list=[42, 123], searches=3, epochs=2, train_blocks=500, test_blocks=40)
    assert "250 steps (2 epochs)" in text
    assert "on the seeds 42 and 123 (in searches after the first, on seeds derived from these)" in (
        text
    )
    assert "The training blocks are the first of their split." in text
    assert "The test blocks are spread evenly over the test split." in text


def test_faults_of_published_code_are_named() -> None:
    arms = {"a": {}, "b": {"config": {"replication_bf16": True, "replication_pads": True}}}
    text = _sentences(arms=arms)
    assert (
        "Some configurations repeat faults of published code: they hold the adapter, its gradients "
        "and both moments in bfloat16 and train and evaluate on one paragraph a row"
    ) in text
