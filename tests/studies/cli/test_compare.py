"""``hylorada compare``: studies that were run apart, and what can't be compared."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from finished_folder import WIDE, write_finished
from scipy import stats

from studies.cli.commands import main
from studies.trials.records import OPEN

_TEXTS = {
    "one": {"data_fingerprint": "d1", "model_fingerprint": "m", "test_fingerprint": "t1"},
    "two": {"data_fingerprint": "d2", "model_fingerprint": "m", "test_fingerprint": "t2"},
}
Compare = Callable[..., tuple[int, str, str]]


@pytest.fixture
def compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Compare:
    """Run the command and return its exit code and what it said."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["compare", *arguments, f"--storage={tmp_path}"])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def _write(storage: Path, name: str, gap: float = 0.01, text: str = "one", **changes: Any) -> Path:
    return write_finished(storage, name=name, gap=gap, provenance=_TEXTS[text], **changes)


def test_four_studies_of_two_texts_make_one_table_and_one_picture(
    tmp_path: Path, compare: Compare
) -> None:
    for name, gap, text in (
        ("a", 0.01, "one"),
        ("b", 0.02, "one"),
        ("c", 0.03, "two"),
        ("d", 0, "two"),
    ):
        _write(tmp_path, name, gap, text, data=f"{text}.txt")
    code, out, err = compare("a", "b", "c", "d", f"--output={tmp_path / 'all.html'}")
    assert (code, err) == (0, "")
    rows = [line.split()[0] for line in out.splitlines() if line[:1] in "abcd" and line[1:2] == " "]
    assert rows == [*"abcd", *"abcd"]  # the table of changes, then that of texts and bases
    assert f"{WIDE} vs fixed" in out
    assert (
        "note: PPL is not compared between cells: their test texts differ (one.txt, two.txt)" in out
    )
    assert (tmp_path / "all.html").read_text().count("<svg") == 1


def test_studies_that_run_again_are_named(tmp_path: Path, compare: Compare) -> None:
    _write(tmp_path, "a")
    (_write(tmp_path, "b", 0.02) / OPEN).touch()
    code, out, err = compare("a", "b", "--json")
    assert (code, len(json.loads(out)["cells"])) == (0, 2)
    assert err == (
        "hylorada: note: study 'b' is running again, or was interrupted since; "
        "these are its earlier results\n"
    )


def test_json_pools_and_gives_ppl_of_one_text(tmp_path: Path, compare: Compare) -> None:
    for name, gap in (("a", 0.01), ("b", 0.02)):
        _write(tmp_path, name, gap)
    code, out, _ = compare("a", "b", "--json")
    values = json.loads(out)
    assert code == 0
    assert values["measure"] == "PPL"
    assert values["cells"][0]["levels"].keys() == {"fixed", WIDE}
    (compared,) = values["comparisons"]
    assert [round(c["change"], 2) for c in compared["cells"]] == [1.01, 2.02]
    # The arms' losses differ by a constant in each study, so only the studies' spread is left.
    assert compared["pooled"]["change"] == pytest.approx(100 * math.expm1(0.015))
    half = stats.t.ppf(0.975, 1) * 0.01 / math.sqrt(2) / math.sqrt(2)
    assert compared["pooled"]["high"] == pytest.approx(100 * math.expm1(0.015 + half))


def test_folder_elsewhere_is_taken_by_its_path(tmp_path: Path, compare: Compare) -> None:
    _write(tmp_path, "a")
    other = _write(tmp_path / "elsewhere", "a", 0.02)
    code, out, _ = compare("a", str(other), "--json")
    assert code == 0
    assert [c["cell"] for c in json.loads(out)["cells"]] == [
        str(tmp_path / "studies" / "a"),
        str(other),
    ]


def test_settings_that_differ_are_told(tmp_path: Path, compare: Compare) -> None:
    _write(tmp_path, "a", block_size=64)
    _write(tmp_path, "b", defaults={"max_steps": 60, "batch_size": 3}, block_size=32)
    _, out, _ = compare("a", "b", "--json")
    assert "b differs from a in defaults.batch_size" in json.loads(out)["notes"]


def test_designs_of_another_source_are_not_pooled(tmp_path: Path, compare: Compare) -> None:
    own = {"config": {"landmark_design": f"{tmp_path}/own.py:Mine"}}
    for name in ("then", "now"):
        (tmp_path / "own.py").write_text(f"class Mine:\n    {name} = 1\n")
        _write(tmp_path, name, arms={"fixed": {}, WIDE: own})
    code, _, err = compare("then", "now")
    assert code == 2
    assert "'now' has other code in own.py than 'then'" in err


def test_what_can_t_be_compared_is_refused(tmp_path: Path, compare: Compare) -> None:
    _write(tmp_path, "a")
    _write(tmp_path, "b")
    unfinished = _write(tmp_path, "unfinished")
    (unfinished / "results.json").unlink()
    arm = {"config": {"r": 4}, "space": {}}
    other = {"fixed": {}, WIDE: arm}
    _write(tmp_path, "apart", arms=other)
    _write(tmp_path, "reversed", comparisons=[["fixed", WIDE]])
    for names, problem in (
        (["a"], "give two or more studies to compare, got 'a'"),
        (["a", "b", "a"], "a study must not be given twice: "),
        (["a", "nosuch"], "no study 'nosuch' has been run; one of: a, apart, b, reversed"),
        (["a", "unfinished"], "study 'unfinished' has not finished; run it to its end"),
        (["a", "reversed"], "the studies have no comparison of arms in common"),
        (
            ["a", "apart"],
            f"arm {WIDE!r} is another method in 'apart' than in 'a': they differ in r",
        ),
    ):
        code, out, err = compare(*names)
        assert (code, out) == (2, ""), names
        assert problem in err


def test_results_of_earlier_versions_have_no_errors_to_pool(
    tmp_path: Path, compare: Compare
) -> None:
    from studies.analysis.results import _owner
    from studies.files.folder_files import read_json, write_json

    path = _write(tmp_path, "old") / "results.json"
    values = dict(read_json(path, Any, _owner(path)))
    for comparison in values["comparisons"]:
        del comparison["error"]
    write_json(path, values, _owner(path))
    _write(tmp_path, "new")
    code, _, err = compare("old", "new")
    assert code == 2
    assert "study 'old' has results of an earlier version, without standard errors" in err
