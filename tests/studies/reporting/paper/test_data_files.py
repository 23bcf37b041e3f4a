"""CSV files hold the numbers of results and records to the last bit."""

import csv
import io
import json
from dataclasses import replace
from typing import Any

from studies.analysis.components import Stability, component
from studies.analysis.replication import FaultEffect, Replicated
from studies.reporting.paper.data_files import data_files, sheet_csv
from studies.reporting.tables import Sheet
from studies.statistics.change import Change

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


def test_components_are_written_to_the_last_bit(odd: Any) -> None:
    (compared,) = odd.results.comparisons
    lim = Change(-0.1 / 3, -1 / 7, 1 / 9, 0.25, "undecided")
    compared = replace(compared, positions={"lim_ppl": lim})
    made = component(compared, 12_576, Stability(3, 1, 0), Stability(3, 0, 2))
    results = replace(odd.results, components=(made,))
    (row,) = rows(data_files(results, odd.records, odd.study)["components.csv"])
    assert [float(row[n]) for n in ("change", "low", "high")] == [
        compared.change,
        compared.low,
        compared.high,
    ]
    limits = [float(row[f"lim_ppl.{n}"]) for n in ("change", "low", "high", "p_holm")]
    assert limits == [-0.1 / 3, -1 / 7, 1 / 9, 0.25]
    assert (row["parameters"], row["status"]) == ("12576", made.status)
    assert (row["gains_ppl"], row["cheap"], row["stable"]) == (made.gains_ppl, made.cheap, "yes")
    counts = ["stability.spikes", "reference_stability.diverged", "stability.runs"]
    assert [row[name] for name in counts] == ["1", "2", "3"]


def test_component_without_positions_has_empty_cells(odd: Any) -> None:
    (compared,) = odd.results.comparisons
    made = component(replace(compared, positions={}), 0, Stability(), Stability())
    written = data_files(replace(odd.results, components=(made,)), odd.records, odd.study)
    (row,) = rows(written["components.csv"])
    assert (row["lim_ppl.change"], row["gains_lim_ppl"], row["stable"]) == ("", "", "")


def test_published_claims_are_written_to_the_last_bit(odd: Any) -> None:
    alone, off = Change(-0.1 / 3, -1 / 7, 1 / 9, 0.5), Change(1 / 3, 1 / 7, 0.7)
    effects = (
        FaultEffect("pads", alone, off, (0.1 / 3 / 9.19, 0.2)),
        FaultEffect("held", Change(0.0, -1.0, 1.0), None),
    )
    whole = (Change(-0.5, -0.9, -0.1), Change(-3.0, -4.0, -2.0))
    claim = Replicated("landmarks", "fixed", "baseline", (-9.19, -18.37), *whole, effects, "says")
    results = replace(odd.results, replication=(claim,))
    read = rows(data_files(results, odd.records, odd.study)["replication.csv"])
    assert [(r["of"], r["fault"]) for r in read] == [
        ("clean", ""),
        ("as published", ""),
        ("on alone", "pads"),
        ("off alone", "pads"),
        ("on alone", "held"),
    ]
    assert [float(r["change"]) for r in read] == [-0.5, -3.0, -0.1 / 3, 1 / 3, 0.0]
    assert {(r["published.1"], r["published.2"]) for r in read} == {("-9.19", "-18.37")}
    assert [float(read[2][f"share.{n}"]) for n in (1, 2)] == [0.1 / 3 / 9.19, 0.2]
    assert {r["share.1"] for r in read[3:]} == {""}


def test_studies_without_components_or_claims_have_no_files_of_them(odd: Any) -> None:
    assert files(odd).keys() == {"arms.csv", "comparisons.csv", "changes.csv", "trials.csv"}


def test_sheet_is_written_as_printed_without_empty_columns() -> None:
    sheet = Sheet(("arm", "none", "a, b"), (('x "y"', "", "-0.69 %"), ("é", "", "")))
    assert sheet_csv(sheet).decode() == 'arm,"a, b"\n"x ""y""",-0.69 %\né,\n'
