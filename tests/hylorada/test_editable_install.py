"""The package is found from a script that lies beside the clone."""

import subprocess
import sys
from pathlib import Path


def test_folder_beside_the_script_does_not_hide_the_package(tmp_path: Path) -> None:
    for name in ("hylorada", "studies"):  # like a clone: folders without an __init__.py
        (tmp_path / name / "inside").mkdir(parents=True)
    script = tmp_path / "script.py"
    script.write_text("import hylorada, studies\nprint(hylorada.HyLoRADAConfig, studies.Study)\n")
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
