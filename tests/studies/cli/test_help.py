"""Help teaches, comes at once, and names what was mistyped."""

import subprocess
import sys
from pathlib import Path

import pytest

from studies.cli.arguments import COMMANDS, parse

# Does what the console script does, and prints which modules have been imported by then.
_SCRIPT = """
import sys
from studies.cli.main import main
try:
    main()
finally:
    heavy = ("mlflow", "optuna", "ray", "torch", "transformers")
    print("imported:", *(m for m in heavy if m in sys.modules))
"""


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--help",), 0, "Running the same command again resumes"),
        (("run", "--help"), 0, "tokens in a block"),
        (("--version",), 0, "hylorada "),
        ((), 2, "Running the same command again resumes"),
        (("run", "--seets", "4"), 2, "unrecognized arguments: --seets; did you mean '--seeds'?"),
    ],
)
def test_help_and_wrong_options_wait_for_no_import(
    arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code
    assert said in done.stdout + done.stderr
    assert done.stdout.endswith("imported:\n")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["run", "--trails", "3"],
            "hylorada run: error: unrecognized arguments: --trails; did you mean '--trials'?",
        ),
        (
            ["run", "x", "--tri=3"],
            "hylorada run: error: unrecognized arguments: --tri; did you mean '--trials'?",
        ),
        (
            ["export", "x", "--ouput=y"],
            "unrecognized arguments: --ouput; did you mean '--output'?",
        ),  # not: required
        (["report", "--jsn"], "unrecognized arguments: --jsn; did you mean '--json'?"),
        (["bench", "-json"], "unrecognized arguments: -json; did you mean '--json'?"),
        (["run", "--sett=a b=c"], "unrecognized arguments: --sett; did you mean '--set'?"),
        (["reprot", "x"], "hylorada: error: unknown command 'reprot'; did you mean 'report'?"),
        (
            ["--vresion"],
            "hylorada: error: unrecognized arguments: --vresion; did you mean '--version'?",
        ),
        (
            ["--storage", "x", "report", "y"],
            "unrecognized arguments: --storage; write it after the command",
        ),
    ],
)
def test_unknown_names_are_refused_with_the_nearest_name(
    capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(arguments)
    assert capsys.readouterr().err.splitlines()[-1].endswith(problem)


def _help(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    with pytest.raises(SystemExit, match="0"):
        parse([*command, "--help"])
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_says_what_it_does_and_when_to_use_it(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    text = _help(capsys, command)
    assert " Use it " in text
    assert " seat" not in text
    assert "%(" not in text


def test_help_lists_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    text = _help(capsys)
    assert all(f" {command.name} {command.summary} " in text for command in COMMANDS.values())
    assert "exit codes: 0 done 2 bad input" in text


def test_pack_size_is_accepted_under_its_old_name_too(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "extend", "resolve", "explain"):
        assert parse([command, "x"]).pack_size is None
        assert parse([command, "x", "--pack-size=3"]).pack_size == 3
        assert parse([command, "x", "--seats=3"]).pack_size == 3
        assert "--pack-size K" in _help(capsys, command)
    with pytest.raises(SystemExit, match="2"):
        parse(["run", "--seatss=3"])
    assert "--seats'" not in capsys.readouterr().err


def test_help_alone_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse([])
    said = capsys.readouterr()
    assert said.out.startswith("usage: hylorada")
    assert not said.err


def test_values_that_look_like_options_are_values() -> None:
    args = parse(["run", "--seed", "-1", "--set", "-a b", "--name=--x", "--", "--trails"])
    assert (args.seed, args.set, args.name, args.study) == (-1, ["-a b"], "--x", "--trails")
    assert parse(["bench", "--json", "-"]).json == "-"


@pytest.mark.parametrize(
    "arguments",
    [("list",), ("show", "learnable_bucketing"), ("status", "unknown"), ("report", "unknown")],
)
def test_commands_that_only_read_do_not_wait_for_torch(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not {"torch", "transformers", "ray"} & set(done.stdout.splitlines()[-1].split())
