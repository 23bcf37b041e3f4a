"""A few hundred short trials; see soak.py."""

import subprocess
import sys
from pathlib import Path

import pytest
import soak


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hundreds_of_trials_leave_memory_handles_and_processes_flat(toy_model: str) -> None:
    script = Path(soak.__file__)
    command = [sys.executable, str(script), "--trials=300", f"--model={toy_model}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) > 15
