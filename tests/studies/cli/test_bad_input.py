"""Bad input, as a user types it: exit code 2, a clear line for each problem, nothing written."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from study_runs import run_cli

from studies.cli.commands import main
from studies.learnable_bucketing import STUDY

_PROSE = "The quick brown fox jumps over the lazy dog and runs away from all that is slow. "


@dataclass(frozen=True)
class _Answer:
    """What a command said and what it left."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def problems(self) -> list[str]:
        assert all(line.startswith("hylorada: ") for line in self.err.splitlines()), self.err
        return [line.removeprefix("hylorada: ") for line in self.err.splitlines()]


Cli = Callable[..., _Answer]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("base_models.finding", "data.hub_text"):
        monkeypatch.setattr(f"hylorada.{module}.hub_is_reachable", lambda: False)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> _Answer:
        capsys.readouterr()
        began = time.monotonic()
        code = main(list(arguments))
        said = capsys.readouterr()
        return _Answer(code, said.out, said.err, time.monotonic() - began)

    return run


@pytest.fixture
def refused(cli: Cli, tmp_path: Path) -> Callable[..., list[str]]:
    """Runs a study that can't run; its problems."""

    def run(*arguments: str, study: str = "learnable_bucketing") -> list[str]:
        before = sorted(tmp_path.rglob("*"))
        answer = cli("run", *([study] if study else []), "--storage=runs", *arguments)
        assert (answer.code, answer.out) == (2, "")
        assert sorted(tmp_path.rglob("*")) == before
        assert answer.seconds < 10
        return answer.problems

    return run


Refused = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--model=tinny"], "model 'tinny': no folder and no hub model; did you mean 'tiny'?"),
        (["--model=./tiny"], "model './tiny': no such folder"),
        (["--model="], "model '': no such folder"),
        (["--model=~nobody-here/x"], "model '~nobody-here/x': no such folder"),
        (["--model=a b"], "model 'a b': no such folder"),
        (["--data=no.txt"], "data 'no.txt': no such file or folder"),
        # to `datasets`: all files of the current folder, read as text
        (
            ["--data=text"],
            "data 'text': 'text' is not a data set of the hub; name a folder or a file by its path",
        ),
        (["--data=" + "x" * 300 + ".txt"], f"data '{'x' * 300}.txt': no such file or folder"),
        (["--model=/" + "x" * 300], f"model '/{'x' * 300}': no such folder"),
        (["--pack-size=1025"], "--pack-size must be at most 1024, got 1025"),
        (["--address=h:²"], "address 'h:²' must be auto or HOST:PORT"),
        (["--trials=1000001"], "trials must be at most 1000000, got 1000001"),
        (
            ["--set=a\nb=1"],
            r"--set a\nb: unknown 'a\nb'; one of: arms, block_size, common, comparisons, "
            "criteria, ",
        ),
        (
            ["--data=pydoc"],
            "data 'pydoc': no file, no folder and no hub data set; did you mean 'pydocs'?",
        ),
        (
            ["--text-column=text"],
            "text_column 'text': data 'pydocs' is plain text and has no columns",
        ),
        (["--block-size=513"], "block_size 513 exceeds model limit 512 (tiny)"),
        (["--block-size=1"], "block_size must be at least 2, got 1"),
        (["--pack-size=0"], "--pack-size must be at least 1, got 0"),
        (["--seats=20000"], "--pack-size must be at most 1024, got 20000"),
        (["--trials=0"], "trials must be at least 1, got 0"),
        (["--seeds=-1"], "seeds must be at least 1, got -1"),
        (["--seed=-1"], "seed must be at least 0, got -1"),
        (["--set=defaults.rr=4"], "--set defaults.rr: unknown 'rr'; did you mean 'r'?"),
        (
            ["--set=arms.fxed.config.r=4"],
            "--set arms.fxed.config.r: arms has no 'fxed'; did you mean 'fixed'?",
        ),
        (["--set=defaults.r"], "--set defaults.r: write field=value"),
        (["--set=defaults.temperature=0"], "defaults.temperature must be above 0, got 0"),
        (
            ["--set=arms.learnable.space.temperature={low: -1, high: 1}"],
            "arms.learnable.space.temperature must be above 0, got -1.0",
        ),
        (
            ["--set=arms.fixed.space.num_buckets.choice=[8, 129]"],
            "arms.fixed: num_buckets 129 exceeds the block of 128 positions; "
            "use at most one bucket a position",
        ),
        (["--set=arms={}"], "arms must name at least one arm, got {}"),
        (["--set=arms=null"], "arms must name at least one arm, got None"),
        (["--set=dtype=float8"], "dtype 'float8' is unknown; did you mean 'float64'?"),
        (
            ["--name=a/b"],
            "name must be 1 to 100 letters, digits, spaces, '_', '-' or '.', "
            "and not '.' or '..'; got 'a/b'",
        ),
        (
            ["--storage=/proc/x"],
            "storage '/proc/x' can't be written: "
            "no file can be created in /proc (No such file or directory)",
        ),
        (
            ["--tracking-uri=s3://x"],
            "tracking_uri 's3://x' has an unknown scheme; "
            "one of: databricks, http, https, mssql, mysql, postgresql, sqlite",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_run_refuses(refused: Refused, arguments: list[str], problem: str) -> None:
    (found,) = refused(*arguments)
    assert found == problem or (problem.endswith(", ") and found.startswith(problem))


def test_run_refuses_paths_that_no_system_takes(refused: Refused) -> None:
    (long,) = refused(f"--storage={'x' * 300}")
    assert long.endswith("can't be written: File name too long")
    (odd,) = refused("--storage=\udcff")  # how Python sees a byte that is no UTF-8
    assert odd.startswith("storage '")
    assert odd.endswith(r"\udcff' can't be written: its name is not UTF-8")
    (host,) = refused("--address=a..b:1")
    assert host.startswith("address 'a..b:1' can't be reached: ")


def test_process_that_has_already_begun_to_start_ray_refuses_in_one_line(tmp_path: Path) -> None:
    done = run_cli("run", "learnable_bucketing", f"--storage={tmp_path / ('x' * 300)}")
    assert (done.code, done.out) == (2, "")
    (line,) = done.err.splitlines()
    assert line.endswith("can't be written: File name too long")


def test_run_refuses_targets_that_match_nothing_before_any_compute(refused: Refused) -> None:
    lists = "--set=arms.fixed.space.target_modules.choice=[[q_proj], [q_proj, k_prj], [k_proj]]"
    assert refused(lists, "--set=defaults.target_modules=[c_attn]") == [
        "target 'c_attn' matches 0 modules; closest: gate_proj",
        "target 'k_prj' matches 0 modules; closest: k_proj",
    ]


def test_run_refuses_a_bomb_of_aliases(refused: Refused, tmp_path: Path) -> None:
    levels = "abcdefgh"
    lines = [f"{n}: &{n} [{', '.join([f'*{m}'] * 9)}]" for m, n in pairwise(levels)]
    (tmp_path / "study.yaml").write_text("\n".join([f"a: &a [{', '.join('x' * 9)}]", *lines]))
    (problem,) = refused("--config=study.yaml")
    assert problem.startswith(
        "--config study.yaml: not YAML: line 6, column 4: more than 100000 values"
    )


def test_run_names_the_nearest_study(refused: Refused) -> None:
    assert refused(study="learnable_buckets") == [
        "unknown study 'learnable_buckets'; did you mean 'learnable_bucketing'?"
    ]
    (problem,) = refused(study="")
    assert problem.startswith("name a study: ablation, bucketing, context_length, landmarks, learn")


def test_run_names_the_columns_of_a_table(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("title,body,year\n" + "a,b,1\n" * 9)
    (wrong,) = refused("--data=t.csv", "--text-column=titel")
    assert (
        wrong == f"text_column 'titel' is not in {str(tmp_path / 't.csv')!r}; did you mean 'title'?"
    )
    (number,) = refused("--data=t.csv", "--text-column=year")
    assert number == f"text_column 'year' of {str(tmp_path / 't.csv')!r} holds numbers, not text"
    (open_,) = refused("--data=t.csv")
    assert open_.startswith(
        f"data {str(tmp_path / 't.csv')!r}: "
        "can't tell which column holds the text; "
        "name the text column with --text-column; columns: title ("
    )
    assert "body (" in open_


def test_run_refuses_empty_splits(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    splits = ("train", "validation", "test")
    assert refused("--data=empty.txt") == [
        f"data {str(tmp_path / 'empty.txt')!r}: split {s!r} is empty" for s in splits
    ]
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "train.txt").write_text(_PROSE * 500)
    (tmp_path / "d" / "validation.txt").write_text("")
    assert refused("--data=d") == [f"data {str(tmp_path / 'd')!r}: split 'validation' is empty"]


def test_run_refuses_splits_shorter_than_a_block(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "three.txt").write_text(f"{_PROSE}\n" * 3)
    problems = refused("--data=three.txt")
    assert len(problems) == 3
    for split, problem in zip(("validation", "test", "train"), problems, strict=True):
        assert problem.startswith(f"split {split!r}: ")
        assert problem.endswith("tokens, block_size 128 -> 0 blocks; lower block_size or add text")


@pytest.mark.parametrize("short", ["train", "validation"])
def test_run_refuses_one_short_split_and_leaves_no_cache(
    refused: Refused, tmp_path: Path, short: str
) -> None:
    (tmp_path / "d").mkdir()
    for split in ("train", "validation", "test"):
        (tmp_path / "d" / f"{split}.txt").write_text(_PROSE * (1 if split == short else 4000))
    (problem,) = refused("--data=d")
    assert problem.startswith(f"split {short!r}: ")


def test_run_refuses_a_test_split_of_one_block(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for split, times in (("train", 100), ("validation", 100), ("test", 8)):
        (tmp_path / "d" / f"{split}.txt").write_text(_PROSE * times)
    assert refused("--data=d") == [
        "split 'test': 1 block of 128 tokens, the verdict needs 2; lower block_size or add text"
    ]


def test_run_refuses_a_text_that_is_not_utf8(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(_PROSE.encode() + b"caf\xe9")
    assert refused("--data=latin.txt") == [
        f"data {str(tmp_path / 'latin.txt')!r}: byte {len(_PROSE) + 3} is not UTF-8"
    ]


def test_run_refuses_storage_below_a_file(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for storage in ("file", "file/below/it"):
        (problem,) = refused(f"--storage={storage}")
        assert problem.startswith("storage '")
        assert problem.endswith(f"can't be written: {tmp_path / 'file'} is a file")


def test_run_refuses_tracking_folders_and_dead_servers(refused: Refused) -> None:
    (folder,) = refused("--tracking-uri=./mlruns")
    assert folder.startswith(
        "tracking_uri './mlruns': MLflow no longer supports folders of files; use sqlite:///PATH"
    )
    (server,) = refused("--tracking-uri=http://127.0.0.1:9")
    assert server.startswith(
        "tracking_uri 'http://127.0.0.1:9' can't be reached: NewConnectionError"
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "--config study.yaml: No such file or directory"),
        (
            b"trials: [1",
            "--config study.yaml: not YAML: line 1, column 11: expected ',' or ']', but got",
        ),
        (b"name: caf\xe9", "--config study.yaml: not UTF-8 at byte 9"),
        (b"- trials\n- seeds", "--config study.yaml: must hold fields and values at the top level"),
        (b"", "--config study.yaml: must hold fields and values at the top level"),
        (b"1: 2", "--config study.yaml: must hold fields and values at the top level"),
        (b"trails: 3", "unknown field 'trails'; did you mean 'trials'?"),
        (b"defaults: {1: 2}", "defaults: unknown field 1; one of: "),
        (
            b"arms: {fixed: {space: {temperature: [1]}}}",
            "arms.fixed.space temperature: a list must be written as choice",
        ),
        (
            b"trials: 3\ntrials: 4",
            "--config study.yaml: not YAML: line 2, column 1: 'trials' appears twice",
        ),
        (
            b"defaults: &a {r: *a}",
            "--config study.yaml: not YAML: line 1, column 11: a value that holds itself",
        ),
        (b"seed: " + b"9" * 5000, "--config study.yaml: not YAML: line 1, column 7: '9999"),
        (b"seed: 0b_", "seed must be a whole number, got '0b_'"),
        (b"{" * 1500, "--config study.yaml: not YAML: nested too deeply"),
        (b"defaults: {r: 1" + b"0" * 400 + b"}", "defaults.r must be at most 1e+09, got 1000"),
        (
            b"defaults: {lora_alpha: 1" + b"0" * 400 + b"}",
            "defaults.lora_alpha must be at most 1e+30, got 1000",
        ),
        (b'subject: "\\ud800"', r"subject '\ud800' has a character that can't be stored, '\ud800'"),
        (b"? |\n  a\n  b\n: 1", r"unknown field 'a\nb\n'; one of: arms, "),
        (b"trials: 1e3", "trials must be a whole number, got 1000.0"),
        (b"seed: 1" + b"0" * 400, "seed must be below 2^63, got 10000"),
    ],
)
def test_run_refuses_a_config_file(
    refused: Refused, tmp_path: Path, content: bytes | None, problem: str
) -> None:
    if content is not None:
        (tmp_path / "study.yaml").write_bytes(content)
    (found,) = refused("--config=study.yaml")
    assert found.startswith(problem)


def test_run_refuses_a_folder_as_config_file(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").mkdir()
    assert refused("--config=study.yaml") == ["--config study.yaml: Is a directory"]


def test_run_tells_six_mistakes_of_a_file_in_six_lines(refused: Refused, tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "trials": 0,
        "seeds": "three",
        "grace_stps": 20,
        "block_size": 16,
        "defaults": {"max_steps": 60, "lora_dropout": 1.5, "num_buckets": 8},
        "arms": {
            "learnable": {
                "space": {
                    "temperature": {"low": 0.0, "high": 0.1},
                    "num_buckets": {"choice": [8, 32]},
                }
            }
        },
    }
    values["arms"]["fixed"] = {"space": {"num_buckets": {"choice": [8, 16]}}}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(values))
    assert sorted(refused("--config=study.yaml")) == [
        "arms.learnable.space.temperature must be above 0, got 0.0",
        "arms.learnable: num_buckets 32 exceeds the block of 16 positions; "
        "use at most one bucket a position",
        "defaults.lora_dropout must be at least 0 and at most 0.99, got 1.5",
        "seeds must be a whole number, got 'three'",
        "trials must be at least 1, got 0",
        "unknown field 'grace_stps'; did you mean 'grace_steps'?",
    ]


def test_run_tells_problems_of_all_inputs_at_once(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    places = ("--storage=file", "--tracking-uri=./mlruns", "--pack-size=0")
    inputs = ("--model=tinny", "--data=no.txt")
    starts = [
        f"storage '{tmp_path / 'file'}'",
        "tracking_uri './mlruns'",
        "--pack-size must",
        "model 'tinny'",
        "data 'no.txt'",
    ]
    assert [p[: len(s)] for p, s in zip(refused(*places, *inputs), starts, strict=True)] == starts
    wrong = ("--trials=0", "--set=defaults.rr=1", "--set=defaults.r=0")
    more = ["--set defaults.rr", "trials must", "defaults.r must", *starts]
    assert [
        p[: len(s)] for p, s in zip(refused(*places, *inputs, *wrong), more, strict=True)
    ] == more


def test_run_tells_short_splits_beside_other_problems(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "three.txt").write_text(f"{_PROSE}\n" * 3)
    problems = refused("--data=three.txt", "--pack-size=0", "--tracking-uri=./mlruns")
    assert [p.split(" ")[0] for p in problems] == [
        "tracking_uri",
        "--pack-size",
        "split",
        "split",
        "split",
    ]


def test_run_keeps_a_good_override_beside_a_bad_one(refused: Refused) -> None:
    assert refused("--trials=0", "--set=trials=3", "--set=trails=3") == [
        "--set trails: unknown 'trails'; did you mean 'trials'?"
    ]


def test_run_refuses_a_start_outside_the_searched_range(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        "defaults: {learning_rate: 0.5}\narms: {fixed: {config: {num_buckets: 8}}}"
    )
    for arguments in (["--config=study.yaml"], ["--config=study.yaml", "--name=other"]):
        start, both = refused(*arguments)
        outside = "is outside the searched range 0.0005 .. 0.004 (log) of arms"
        assert start.startswith(f"defaults.learning_rate 0.5 {outside}")
        assert both.startswith(
            "arms.fixed: num_buckets is both fixed (config: 8) and searched (space: 8 | 16 | 32)"
        )


def test_study_begun_with_a_start_outside_opens_as_before(cli: Cli, tmp_path: Path) -> None:
    """Earlier versions accepted it: the same command resumes, and a new value is still refused."""
    defaults = STUDY["defaults"] | {"learning_rate": 0.5}
    folder = tmp_path / "runs" / "studies" / "old"
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(json.dumps(STUDY | {"name": "old", "defaults": defaults}))
    same = (
        "show",
        "learnable_bucketing",
        "--name=old",
        "--storage=runs",
        "--set=defaults.learning_rate=0.5",
    )
    for arguments in (same, ("show", "old", "--storage=runs"), ("status", "old", "--storage=runs")):
        assert cli(*arguments).code == 0
    (problem,) = cli(*same, "--set=defaults.temperature=2").problems
    assert problem.startswith(
        "defaults.temperature 2 is outside the searched range 0.001 .. 0.1 (log) of arm learnable"
    )


# --- commands that only read ---


def _finished(storage: Path, name: str) -> None:
    folder = storage / "studies" / name
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(json.dumps(STUDY | {"name": name}))


@pytest.mark.parametrize("command", ["status", "report"])
def test_study_never_run_is_refused(cli: Cli, tmp_path: Path, command: str) -> None:
    answer = cli(command, "wt2", "--storage=runs")
    assert (answer.code, answer.out) == (2, "")
    assert answer.problems == ["no study 'wt2' has been run; there is none in runs"]
    assert list(tmp_path.iterdir()) == []
    _finished(tmp_path / "runs", "wt-2")
    assert cli(command, "wt2", "--storage=runs").problems == [
        "no study 'wt2' has been run; did you mean 'wt-2'?"
    ]


def test_export_of_an_unfinished_study_is_refused(cli: Cli, tmp_path: Path) -> None:
    _finished(tmp_path / "runs", "wt2")
    answer = cli("export", "wt2", "--storage=runs", "--output=out")
    assert answer.code == 2
    assert answer.problems == [
        "study 'wt2' has not finished; see `hylorada status wt2 --storage runs`, or run it to its "
        "end: `hylorada run wt2 --storage runs`"
    ]


def test_list_json_is_json(cli: Cli, tmp_path: Path) -> None:
    _finished(tmp_path / "runs", "été 2")
    answer = cli("list", "--storage=runs", "--json")
    assert (answer.code, answer.err) == (0, "")
    found = json.loads(answer.out)
    assert found["studies"] == ["été 2"]
    assert "learnable_bucketing" in found["definitions"]


def test_show_json_and_yaml_are_the_study(cli: Cli, tmp_path: Path) -> None:
    as_json, as_yaml = (
        cli("show", "learnable_bucketing", "--json"),
        cli("show", "learnable_bucketing"),
    )
    assert json.loads(as_json.out) == yaml.safe_load(as_yaml.out) == json.loads(json.dumps(STUDY))
    (tmp_path / "study.yaml").write_text(as_yaml.out)
    again = cli("show", "--config=study.yaml", "--trials=3", "--json")
    assert json.loads(again.out) == json.loads(as_json.out) | {"trials": 3}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["study.yaml"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"definition": 1}', "[" * 100_000, "\xff"])
def test_damaged_study_file_is_refused(refused: Refused, tmp_path: Path, content: str) -> None:
    _finished(tmp_path / "runs", "wt2")
    (tmp_path / "runs" / "studies" / "wt2" / "study.json").write_text(content, encoding="latin-1")
    problems = refused(study="wt2")
    assert problems
    assert "study.json" in problems[0] or problems[0] == "definition must be text, got 1"


def test_show_refuses_as_run_does(cli: Cli) -> None:
    answer = cli("show", "learnable_buckets")
    assert (answer.code, answer.out) == (2, "")
    assert answer.problems == [
        "unknown study 'learnable_buckets'; did you mean 'learnable_bucketing'?"
    ]
    assert cli("show", "learnable_bucketing", "--trials=0", "--seed=-1").problems == [
        "trials must be at least 1, got 0",
        "seed must be at least 0, got -1",
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--split=tset"], "split 'tset' is unknown; did you mean 'test'?"),
        (["--model=tinny"], "model 'tinny': no folder and no hub model; did you mean 'tiny'?"),
        (["--data=no.txt"], "data 'no.txt': no such file or folder"),
        (["--block-size=513"], "block_size 513 exceeds model limit 512 (tiny)"),
        (["--block-size=0"], "`block_size` must be at least 2, got 0"),
        (["--blocks=0"], "`blocks` must be 1 to "),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_evaluate_refuses(cli: Cli, arguments: list[str], problem: str) -> None:
    answer = cli("evaluate", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.problems[0].startswith(problem)


def test_ui_without_a_store_is_refused(cli: Cli, tmp_path: Path) -> None:
    answer = cli("ui", "--storage=runs")
    assert answer.code == 2
    assert answer.problems == [
        "storage 'runs' has no mlflow.db yet; run a study first, or give --storage"
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [["rnu"], ["run", "--trials=x"], ["run", "--no-such"], ["status"]]
)
def test_wrong_options_exit_2_with_usage(
    cli: Cli, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli(*arguments)
    assert capsys.readouterr().err.startswith("usage: hylorada")


def test_study_of_an_earlier_version_resumes_by_the_same_command_again_and_again(
    cli: Cli, tmp_path: Path
) -> None:
    """It was begun before arms shared a space; the definition has changed since."""
    rate = {"learning_rate": {"low": 5e-4, "high": 2e-2, "log": True}}
    new = {
        "common",
        "matched",
        "searches",
        "finalists",
        "selection_seeds",
        "profile",
        "margin",
        "looks",
        "spread_test",
        "gradient_checkpointing",
        "device_map",
        "grid",
    }
    arms = {n: {**a, "space": {**rate, **a["space"]}} for n, a in STUDY["arms"].items()}
    old = {k: v for k, v in STUDY.items() if k not in {*new, "document_separator"}} | {
        "arms": arms,
        "trials": 8,
    }
    path = tmp_path / "runs" / "studies" / "learnable_bucketing" / "study.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(old))
    for _ in range(2):
        shown = json.loads(cli("show", "learnable_bucketing", "--storage=runs", "--json").out)
        assert (shown["trials"], shown["arms"], shown["common"]) == (8, arms, {"space": {}})
        assert (shown["matched"], shown["searches"], shown["spread_test"]) == (False, 1, False)
        assert shown["grid"] == {}
        path.write_text(json.dumps(shown))  # as the first run stores it
