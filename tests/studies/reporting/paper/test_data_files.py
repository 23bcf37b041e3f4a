"""CSV files hold the numbers of results and records to the last bit."""

import csv
import io
import json
from typing import Any

from studies.reporting.paper.data_files import data_files, sheet_csv
from studies.reporting.tables import Sheet

Rows = list[dict[str, str]]


def rows(content: bytes) -> Rows:
    return list(csv.DictReader(io.StringIO(content.decode(), newline="")))


def files(made: Any) -> dict[str, Rows]:
    written = data_files(made.results, made.records, made.study)
    return {name: rows(content) for name, content in written.items()}


def test_comparisons_equal_the_results(odd: Any) -> None:
    stored = json.loads((odd.folder / "results.json").read_text())["comparisons"]
    read = files(odd)["comparisons.csv"]
    assert len(read) == len(stored) == 1
    for row, c in zip(read, stored, strict=True):
        assert (row["arm"], row["reference"]) == (c["arm"], c["reference"])
        for name in ("change", "low", "high", "p_value", "p_holm", "level", "replicate_sd"):
            assert float(row[name]) == c[name]
        assert float(row["needed.effect"]) == c["needed"]["effect"]


def test_changes_list_every_search_seed_and_position(odd: Any) -> None:
    (c,) = json.loads((odd.folder / "results.json").read_text())["comparisons"]
    read = files(odd)["changes.csv"]
    of = {kind: [r for r in read if r["of"] == kind] for kind in ("all", "search", "seed")}
    assert [float(r["low"]) for r in of["all"]] == [c["low"]]
    assert [float(r["change"]) for r in of["search"]] == c["by_search"]
    assert [float(r["change"]) for r in of["seed"]] == c["by_seed"]
    positions = {r["at"]: float(r["high"]) for r in read if r["of"] == "position"}
    assert positions == {name: x["high"] for name, x in c["positions"].items()}
    assert len(positions) == 11


def test_arms_equal_the_results(odd: Any) -> None:
    read = {r["arm"]: r for r in files(odd)["arms.csv"]}
    for arm in json.loads((odd.folder / "results.json").read_text())["arms"]:
        assert float(read[arm["arm"]]["ppl"]) == arm["ppl"]
        assert int(read[arm["arm"]]["parameters"]) == arm["parameters"] == 42


def test_trials_equal_their_own_files(odd: Any) -> None:
    read = {r["name"]: r for r in files(odd)["trials.csv"]}
    folders = list((odd.folder / "trials").iterdir())
    assert set(read) == {f.name for f in folders}
    for folder in folders:
        stored = json.loads((folder / "trial.json").read_text())
        last = json.loads((folder / "reports.jsonl").read_text().splitlines()[-1])
        row = read[folder.name]
        assert (row["state"], int(row["step"])) == (stored["state"], last["step"])
        assert float(row["param.learning_rate"]) == stored["params"]["learning_rate"]
        assert float(row["eval/nll"]) == last["metrics"]["eval/nll"]
        assert float(row["seconds"]) == last["seconds"]
        assert row["counts"] == "true"


def test_sheet_is_written_as_printed_without_empty_columns() -> None:
    sheet = Sheet(("arm", "none", "a, b"), (('x "y"', "", "-0.69 %"), ("é", "", "")))
    assert sheet_csv(sheet).decode() == 'arm,"a, b"\n"x ""y""",-0.69 %\né,\n'
