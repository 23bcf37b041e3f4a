"""Trials per second with hosts; see scaling.py."""

import subprocess
import sys
from pathlib import Path

import pytest
import scaling


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_four_hosts_do_three_and_a_half_times_what_one_does() -> None:
    script = Path(scaling.__file__)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=380
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line[:7] for line in done.stdout.splitlines()] == ["1 hosts", "2 hosts", "4 hosts"]
