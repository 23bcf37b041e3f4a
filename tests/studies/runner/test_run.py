"""What a run refuses before it reads any input."""

from pathlib import Path

import pytest
from made_studies import VALUES, make
from rich.console import Console

from hylorada import InputError
from studies.files import folder_files
from studies.process.options import Options
from studies.runner.run import run_study
from studies.spec.study import Study


def test_study_of_another_process_is_refused_before_its_text_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_files, "_LOCK_S", 0.1)
    store = make(tmp_path / "studies" / "made", "search")
    # If it were read first, the missing text would be the problem.
    study = Study.from_dict({**VALUES, "data": str(tmp_path / "nosuch.txt")})
    with pytest.raises(InputError) as caught:
        run_study(study, Options(storage=tmp_path), Console(quiet=True))
    store.close()
    expected = f"study 'made' is being run by another process ({store.folder})"
    assert caught.value.problems == [expected]
