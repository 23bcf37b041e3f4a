"""Landmark designs of a user's own in studies: read once, kept with the study, never run here."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from designs import MY_DESIGN

from hylorada import InputError
from hylorada.runtime.checksums import digest
from studies import Study
from studies.cli.arguments import parse
from studies.cli.requested_study import checked_study
from studies.files.folder_files import STUDY, write_json
from studies.files.own_designs import own_designs
from studies.spec.changes import changes
from studies.spec.plain_yaml import parse_yaml, to_yaml

SOURCE = MY_DESIGN.read_text(encoding="utf-8")


def study(design: Any, **changed: Any) -> Study:
    arms = {"mine": {"config": {"landmark_design": design}}, "base": {}}
    return Study.from_dict({"definition": "own", "name": "own", "arms": arms, **changed})


def problems_of(design: Any, **changed: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        study(design, **changed)
    return caught.value.problems


def test_design_loses_its_folder_and_its_source_joins_the_study() -> None:
    made = study(f"{MY_DESIGN}:Gated")
    assert made.arms["mine"].config == {"landmark_design": "my_design.py:Gated"}
    assert made.designs == {"my_design.py": SOURCE}
    assert own_designs(made.to_dict()) == {"my_design.py:Gated": SOURCE}
    adapter, _ = made.configs("mine", {})
    assert adapter.landmark_design == "my_design.py:Gated"


def test_designs_are_found_wherever_a_study_names_them() -> None:
    design = f"{MY_DESIGN}:Gated"
    searched = {"landmark_design": {"choice": ["global", f"{MY_DESIGN}:Pooled"]}}
    arms = {"mine": {"space": searched}, "base": {}}
    values = {"definition": "own", "name": "own", "arms": arms}
    made = Study.from_dict({**values, "defaults": {"landmark_design": design}})
    assert set(own_designs(made.to_dict())) == {"my_design.py:Gated", "my_design.py:Pooled"}
    assert made.space("mine").parameters["landmark_design"].values.examples() == (
        "global",
        "my_design.py:Pooled",
    )


def test_study_that_holds_the_source_needs_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = study(f"{MY_DESIGN}:Gated")
    monkeypatch.chdir(tmp_path)
    again = Study.from_dict(parse_yaml(to_yaml(made.to_dict())))
    assert (again, again.fingerprint()) == (made, made.fingerprint())


def test_changed_file_is_another_study(tmp_path: Path) -> None:
    copy = Path(shutil.copy(MY_DESIGN, tmp_path))
    before = study(f"{copy}:Gated")
    copy.write_text(SOURCE.replace("sigmoid", "tanh"))
    after = study(f"{copy}:Gated")
    assert before.fingerprint() != after.fingerprint()
    assert before.fingerprint() == study(f"{MY_DESIGN}:Gated").fingerprint()
    (line,) = changes(before.to_dict(), after)
    then, now = digest(SOURCE), digest(copy.read_text())
    assert line == f"designs.my_design.py was 'source {then}', now 'source {now}'"


def test_study_without_own_designs_has_the_fingerprint_of_earlier_versions() -> None:
    values = study("global").to_dict()
    assert values.pop("designs") == {}
    assert Study.from_dict(values).fingerprint() == study("global").fingerprint()


@pytest.mark.parametrize(
    ("content", "design", "problem"),
    [
        (None, "{}/own.py:Mine", "can't be read: No such file or directory"),
        (b"class Mine: pass", "{}/own.py:Nine", "has no class 'Nine'; did you mean 'Mine'?"),
        (b"class Mine:", "{}/own.py:Mine", "is not Python: expected an indented block"),
        (b"# \xff\nclass Mine: pass", "{}/own.py:Mine", "is not UTF-8"),
        (b"#" * 1_000_001, "{}/own.py:Mine", "has more than 1,000,000 bytes"),
    ],
)
def test_file_that_cannot_be_used_is_one_problem(
    content: bytes | None, design: str, problem: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "own.py").write_bytes(content)
    design = design.format(tmp_path)
    (found,) = problems_of(design)
    assert found.startswith(f"landmark_design {design!r} {problem}")


def test_nothing_runs_when_a_study_is_made(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("raise SystemExit('this ran')\nclass Mine: pass\n")
    assert list(study(f"{tmp_path}/own.py:Mine").designs) == ["own.py"]


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "my_design.py").write_text("class Gated: pass\n")
    (found,) = problems_of(
        f"{tmp_path}/my_design.py:Gated", defaults={"landmark_design": f"{MY_DESIGN}:Gated"}
    )
    assert found.endswith("another file has the same name; rename one")


def test_designs_must_map_names_to_sources() -> None:
    assert "designs must map file names to their source, got ['a']" in problems_of(
        "global", designs=["a"]
    )
    assert problems_of("my_design") == [
        "arms.mine.config.landmark_design 'my_design' is unknown; one of: attention, global, "
        "per_layer, position_adaptive"
    ]


def test_command_that_names_the_file_again_reads_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that names the study alone takes the code that it began with."""
    monkeypatch.chdir(tmp_path)
    begun, file = study(f"{MY_DESIGN}:Gated"), Path("own.yaml")
    (tmp_path / "runs" / "studies" / "own").mkdir(parents=True)
    write_json(tmp_path / "runs/studies/own/study.json", begun.to_dict(), STUDY)
    Path("my_design.py").write_text(SOURCE.replace("sigmoid", "tanh"))
    arms = {"mine": {"config": {"landmark_design": "my_design.py:Gated"}}}
    file.write_text(to_yaml({"definition": "own", "name": "own", "arms": arms}))
    place = f"--storage={tmp_path / 'runs'}"
    assert checked_study(parse(["run", "own", place])).designs == begun.designs
    assignment = "--set=arms.mine.config.landmark_design=my_design.py:Gated"
    for named in (["run", f"--config={file}", place], ["run", "own", place, assignment]):
        again = checked_study(parse(named))
        assert changes(begun.to_dict(), again)[0].startswith("designs.my_design.py was 'source ")
