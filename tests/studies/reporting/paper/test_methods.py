"""The methods say what the study records, and nothing that it does not."""

import re
from dataclasses import replace
from typing import Any

import pytest
from latex_reader import plain_prose

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
