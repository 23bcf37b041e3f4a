"""Help that teaches comes at once."""

import subprocess
import sys
from pathlib import Path

import pytest

from studies.cli.arguments import parse

# what the console script does, and which modules it has imported by then
_SCRIPT = """
import sys
from studies.cli.main import main
try:
    main()
finally:
    print("imported:", *sorted(m for m in ("torch", "transformers", "ray", "optuna", "mlflow") if m in sys.modules))
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
def test_nearest_name_is_told(
    capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(arguments)
    assert capsys.readouterr().err.splitlines()[-1].endswith(problem)


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
    "arguments", [("list",), ("show", "learnable_bucketing"), ("status", "unknown")]
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
