"""The published claims, the arms that measure them, and the flags that only they may set."""

from pathlib import Path
from typing import Any

import pytest

from hylorada import InputError
from studies import replication
from studies.cli.commands import main
from studies.spec.points import replication_problems, start_problems
from studies.spec.published import CLAIMS, FAMILIES, FAULTS, fault_sets, published_arms
from studies.spec.study import Study

STUDY = Study.from_dict(replication.STUDY)


def test_every_claim_is_measured_clean_published_and_with_each_fault_on_and_off() -> None:
    for claim in CLAIMS:
        sets = fault_sets(claim)
        whole = [f for f in claim.faults if not FAULTS[f].inside]
        assert set(sets) == {
            frozenset(),
            frozenset(whole),
            *(frozenset({f}) for f in claim.faults),
            *(frozenset(whole) - {f} for f in whole),
        }
        for faults in sets:
            assert set(claim.pair(faults)) <= STUDY.arms.keys()


def test_arms_differ_from_their_clean_twin_by_their_faults_alone() -> None:
    arms = published_arms()
    assert len(arms) == len({str(sorted(c.items(), key=str)) for c in arms.values()})
    for claim in CLAIMS:
        for faults in fault_sets(claim):
            for family, name in zip(
                (claim.family, claim.reference), claim.pair(faults), strict=True
            ):
                on = [FAULTS[f].config for f in FAMILIES[family].faults if f in faults]
                expected = dict(arms[f"{family}_clean"])
                for fields in on:
                    expected |= fields
                assert arms[name] == expected


def test_published_figures_are_those_of_the_study() -> None:
    figures = {(c.family, c.reference): c.published for c in CLAIMS}
    assert figures["fixed", "baseline"] == (-9.19, -18.37)
    assert (figures["dora", "baseline"], figures["learnable", "fixed"]) == ((5.62,), (2.26,))


def test_study_checks_itself_and_may_set_the_flags() -> None:
    assert start_problems(STUDY) == []
    assert Study.from_dict(STUDY.to_dict()).fingerprint() == STUDY.fingerprint()
    assert STUDY.searches * STUDY.trials == 1  # nothing is searched


@pytest.mark.parametrize(
    "changes",
    [
        {"defaults": {"replication_bf16": True}},
        {"arms": {"one": {"config": {"replication_pads": True}}}},
        {"arms": {"one": {"space": {"replication_bf16": {"choice": [False, True]}}}}},
        {"common": {"space": {"replication_bf16": {"choice": [False, True]}}}},
    ],
)
def test_other_studies_may_not_set_a_flag(changes: dict[str, Any]) -> None:
    own: dict[str, Any] = {"definition": "own", "name": "own", "arms": {"one": {}}}
    (problem,) = replication_problems(Study.from_dict(own | changes))
    assert "repeats a fault of the published code, which only the study 'replication'" in problem
    assert (
        replication_problems(Study.from_dict(own | changes | {"definition": "replication"})) == []
    )


def test_flag_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = tmp_path / "runs"
    flag = "--set=defaults.replication_bf16=true"
    assert main(["run", "learnable_bucketing", flag, f"--storage={storage}"]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "replication_bf16 repeats a fault of the published code" in shown
    assert not storage.exists()


def test_flag_of_a_study_that_has_begun_is_kept(tmp_path: Path) -> None:
    """A study that an earlier version began with replication_noncausal_pooling resumes."""
    from studies.files.folder_files import write_json
    from studies.spec.points import new_start_problems

    arms = {"one": {"config": {"landmark_design": "global", "replication_noncausal_pooling": True}}}
    study = Study.from_dict({"definition": "own", "name": "own", "arms": arms})
    assert len(new_start_problems(study, None)) == 1
    folder = tmp_path / "studies" / "own"
    folder.mkdir(parents=True)
    write_json(folder / "study.json", study.to_dict(), "study")
    assert new_start_problems(study, folder) == []


def test_unknown_flag_gets_the_nearest_name() -> None:
    with pytest.raises(InputError, match="did you mean 'replication_bf16'"):
        Study.from_dict(
            {"definition": "own", "name": "own", "arms": {"one": {}}}
            | {"defaults": {"replication_bf1": True}}
        )
