"""Help that teaches comes at once."""

import subprocess
import sys
from pathlib import Path

import pytest

# what the console script does, and which modules it has imported by then
_SCRIPT = """
import sys
from studies._main import main
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
        (("run", "--seets", "4"), 2, "unrecognized arguments: --seets"),
    ],
)
def test_help_and_wrong_options_wait_for_no_import(arguments: tuple[str, ...], code: int, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert said in done.stdout + done.stderr
    assert done.stdout.endswith("imported:\n")


@pytest.mark.parametrize("arguments", [("list",), ("show", "learnable_bucketing"), ("status", "unknown")])
def test_commands_that_only_read_do_not_wait_for_torch(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert not {"torch", "transformers", "ray"} & set(done.stdout.splitlines()[-1].split())
