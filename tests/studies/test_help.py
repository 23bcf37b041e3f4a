"""Help that teaches comes at once."""

import subprocess
import sys

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
