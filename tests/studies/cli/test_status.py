"""``hylorada status`` opens each file once, and loads no library that it doesn't need."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made_studies import VALUES, make

from studies.cli.commands import main
from studies.reporting import tables
from studies.reporting.shown import trials
from studies.spec.study import Study
from studies.trials.store import Store

_WATCHED = """
import sys
opened = []
sys.addaudithook(lambda event, args: event == "open" and opened.append(str(args[0])))
from studies.cli.commands import main
code = main(sys.argv[1:])
heavy = {"torch", "ray", "mlflow", "transformers", "optuna", "matplotlib", "scipy", "sqlalchemy"}
print([code, sorted(p for p in opened if "/made/trials/" in p), sorted(heavy & sys.modules.keys())])
"""


def _watched(*arguments: str) -> Any:
    """Run a command, and return its exit code, the trials' files it opened, and heavy modules."""
    done = subprocess.run(
        [sys.executable, "-c", _WATCHED, *arguments], capture_output=True, text=True, check=True
    )
    return eval(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("until", ["search", "end"])
def test_each_file_of_a_trial_is_opened_once(tmp_path: Path, until: Any) -> None:
    store = make(tmp_path / "studies" / "made", until)
    store.close()
    folders = list((store.folder / "trials").iterdir())
    files = sorted(str(f / n) for f in folders for n in ("reports.jsonl", "trial.json"))
    code, opened, heavy = _watched("status", "made", f"--storage={tmp_path}")
    assert (code, opened, heavy) == (0, files, [])


def test_table_is_cut_but_json_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "studies" / "made", "end", trials=12).close()
    monkeypatch.setattr(trials, "MOST", 4)
    monkeypatch.setattr(trials, "FEWEST", 1)
    monkeypatch.setattr(tables, "FEWEST", 1)
    assert main(["status", "made", f"--storage={tmp_path}"]) == 0
    out = capsys.readouterr().out
    said = "2 of 24 trials are shown: the best of each arm by validation PPL; `hylorada status"
    assert said in " ".join(out.split())
    assert sum(line.startswith(("fixed-", "baseline-")) for line in out.splitlines()) == 2
    assert "search: 24 of 24 ended" in out
    assert main(["status", "made", "--json", f"--storage={tmp_path}"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 24 + 4


def test_status_says_that_no_trial_has_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path / "studies" / "made", Study.from_dict(VALUES))
    line = "No trial has begun: the arms are checked on the base first."
    assert main(["status", "made", f"--storage={tmp_path}"]) == 0
    assert line in capsys.readouterr().out.splitlines()
    store.close()
    main(["status", "made", f"--storage={tmp_path}"])
    assert line not in capsys.readouterr().out.splitlines()
