"""Commands: where they look, what they print, how they end."""

import json
import socket
import sys
from pathlib import Path
from typing import Literal

import pytest

import studies
from hylorada import HyLoRADAConfig, HyLoRADAModel, load_base
from studies.cli.arguments import parse
from studies.cli.commands import main
from studies.cli.requested_study import checked_study
from studies.spec.study import Study
from studies.trials.messages import Report
from studies.trials.records import Record
from studies.trials.winners import counting


def test_home_is_found_by_all_commands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shell leaves the ``~`` of ``--storage=~/runs`` alone."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["list", "--storage=~/runs"]) == 0
    assert f"studies in {tmp_path / 'runs'}: none" in capsys.readouterr().out
    for command in (["report"], ["status"], ["export", "--output", "x"]):
        assert main([*command, "nosuch", "--storage=~/runs"]) == 2
        assert f"there is none in {tmp_path / 'runs'}" in capsys.readouterr().err


def test_list_names_the_folders_to_copy_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", f"--storage={tmp_path}"]) == 0
    examples, clusters = capsys.readouterr().out.splitlines()[-2:]
    assert (Path(examples.removeprefix("examples to copy: ")) / "own_arms.py").is_file()
    assert (Path(clusters.removeprefix("files for clusters: ")) / "slurm.sh").is_file()


def test_list_skips_modules_that_define_no_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "extra_helper.py").write_text("VALUE = 1")
    (tmp_path / "extra_folder").mkdir()
    (tmp_path / "extra_folder" / "__init__.py").write_text("STUDY = {}")
    (tmp_path / "_extra_private.py").write_text("STUDY = {}")
    (tmp_path / "extra_study.py").write_text("DESCRIPTION = 'one more'\nSTUDY = {}")
    monkeypatch.setattr(studies, "__path__", [*studies.__path__, str(tmp_path)])
    for name in ("extra_helper", "extra_study"):
        monkeypatch.delitem(sys.modules, f"studies.{name}", raising=False)
    assert main(["list", f"--storage={tmp_path}", "--json"]) == 0
    descriptions = json.loads(capsys.readouterr().out)["definitions"]
    assert {n: d for n, d in descriptions.items() if "extra" in n} == {"extra_study": "one more"}
    assert "learnable_bucketing" in descriptions
    assert not [name for name in descriptions if (Path(studies.__path__[0]) / name).is_dir()]


def test_ui_on_a_port_that_is_taken_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mlflow.db").touch()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["ui", "--storage", str(tmp_path), "--port", str(port)]) == 2
    told = capsys.readouterr()
    assert f"can't serve on 127.0.0.1:{port}" in told.err
    assert not told.out


def test_figures_that_are_no_numbers_are_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Seven predicted tokens leave some tenths of a block without one."""
    assert main(["evaluate", "--block-size", "8", "--blocks", "2", "--json"]) == 0

    def refuse(name: str) -> float:
        raise AssertionError(name)

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert found["ppl_bin_0"] is None
    assert min(found["ppl"], found["ppl_bin_1"]) > 1


def test_study_is_of_the_same_text_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pydocs").mkdir()  # built-in names go before folders
    (tmp_path / "text.txt").write_text("words")
    monkeypatch.chdir(tmp_path)
    for data, found in (
        ("text.txt", str(tmp_path / "text.txt")),
        ("pydocs", "pydocs"),
        ("a/hub:name", "a/hub:name"),
    ):
        args = parse(["run", "learnable_bucketing", "--data", data])
        assert checked_study(args).data == found


def test_adapter_of_other_blocks_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = HyLoRADAConfig(landmark_bucketing="learnable", max_positions=64)
    HyLoRADAModel(load_base("tiny"), config).save_pretrained(tmp_path / "a")
    for size, notes in (
        (32, "hylorada: the adapter was trained on blocks of 64 tokens, these have 32"),
        (64, ""),
    ):
        assert (
            main(
                ["evaluate", "--adapter", str(tmp_path / "a"), f"--block-size={size}", "--blocks=2"]
            )
            == 0
        )
        told = [line for line in capsys.readouterr().err.splitlines() if "text " not in line]
        assert [line.partition(" (")[0] for line in told] == [notes] * bool(notes)


def test_confirm_runs_of_overtaken_winners_do_not_count() -> None:
    def record(
        stage: Literal["search", "confirm"], number: int, nll: float, winner: str = ""
    ) -> Record:
        return Record(
            name=f"{stage}-{number}",
            arm="a",
            stage=stage,
            number=number,
            params={},
            adapter={},
            training={},
            seed=0,
            data_seed=0,
            state="complete",
            winner=winner,
            reports=[Report(step=1, metrics={"eval/nll": nll}, done=True)],
        )

    search = [record("search", 0, 2.0), record("search", 1, 1.0)]
    runs = [
        record("confirm", n, 1.0, winner)
        for n, winner in enumerate(["search-0", "search-1", "search-1"])
    ]
    records = {r.name: r for r in (*search, *runs)}
    study = Study.from_dict({"definition": "d", "name": "n", "arms": {"a": {}}})
    assert counting(study, records, "search") == search
    assert counting(study, records, "confirm") == runs[1:]
