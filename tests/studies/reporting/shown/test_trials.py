"""The trials that a report shows: all of a small study, the best and a sample of a large one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_records import named, record, study

from studies.analysis.results import Results
from studies.reporting.figures.drawing import svg_text
from studies.reporting.html_report import write_html
from studies.reporting.sections import Listing, Part, Picture, Table, Words, sections
from studies.reporting.shown import trials as module
from studies.reporting.shown.trials import FEWEST, MOST, drawn, listed, most_of
from studies.reporting.tables import best_trials, searched_sheet
from studies.spec.study import Study
from studies.trials.records import Record

_BEST = "the best of each arm by validation PPL"
_SPACE = {"learning_rate": {"low": 1e-3, "high": 1e-1, "log": True}}


def _study(*arms: str, **changes: Any) -> Study:
    return study(*arms, arms={arm: {"space": _SPACE} for arm in arms}, **changes)


def _trials(arm: str, count: int) -> list[Record]:
    """Return trials of random losses, of which every third was pruned at its first report."""
    draws = np.random.default_rng(len(arm))
    made = []
    for number in range(count):
        ppl = 14 + draws.random()
        params = {"learning_rate": float(draws.uniform(1e-3, 1e-1))}
        curve = [ppl + 2] if number % 3 == 1 else [ppl + 2, ppl + 1, ppl]
        made.append(record(arm, number, curve, params=params))
    return made


@pytest.mark.parametrize("arms", [["a"], ["a", "b"], ["a", "b", "c", "d"]])
def test_some_hundred_trials_are_all_shown(arms: list[str]) -> None:
    of, trials = _study(*arms), [r for arm in arms for r in _trials(arm, MOST // len(arms))]
    for shown in (drawn(trials, of, ()), listed(trials, of, ())):
        assert list(shown.trials) == trials
        assert shown.says("the best") == ""


def test_each_of_many_arms_shows_some_trials() -> None:
    of = _study(*(f"arm {i}" for i in range(30)))
    trials = _trials("arm 7", FEWEST + 1)
    assert most_of(of) == FEWEST
    assert len(listed(trials, of, ()).trials) == FEWEST
    assert len(drawn(trials, of, ()).trials) == FEWEST


def test_table_of_a_large_arm_lists_the_best_running_added_and_winning_ones() -> None:
    of, trials = _study("fixed", "baseline"), _trials("fixed", 500)
    complete = sorted((r for r in trials if r.state == "complete"), key=lambda r: r.nll or 0)
    winner = complete[-1].name  # the best of its search only
    going = record("fixed", 900, [99.0], state="running")
    added = record("fixed", 901, [98.0], stage="added")
    shown = listed([*trials, going, added], of, {winner})
    best = [r.name for r in complete[: MOST // 2]]
    assert {r.name for r in shown.trials} == {*best, winner, going.name, added.name}
    names = [r.name for r in (*trials, going, added)]
    assert [r.name for r in shown.trials] == sorted((r.name for r in shown.trials), key=names.index)
    assert shown.says("the best") == "203 of 502 trials are shown: the best."


def test_figure_of_a_large_arm_draws_its_best_and_a_sample_that_the_seed_decides() -> None:
    of, trials = _study("fixed", "baseline"), [*_trials("fixed", 900), *_trials("baseline", 150)]
    complete = sorted((r for r in trials[:900] if r.state == "complete"), key=lambda r: r.nll or 0)
    best = {r.name for r in complete[: MOST // 4]}
    first, again = drawn(trials, of, ()), drawn(trials, of, ())
    names = {r.name for r in first.trials if r.arm == "fixed"}
    assert first == again
    assert (best <= names, len(names), len(first.trials)) == (True, MOST // 2, MOST // 2 + 150)
    other = {r.name for r in drawn(trials, _study("fixed", "baseline", seed=1), ()).trials}
    assert best <= other != names
    pruned = sum(r.state == "pruned" for r in first.trials[: MOST // 2])
    assert 25 <= pruned <= 60  # 300 of the 800 that the 100 others are drawn from


def _results(**fields: Any) -> Results:
    values: dict[str, Any] = {"base_ppl": 31.0, "tokens": 100, "arms": (), "comparisons": ()}
    values |= {"verdict": "It helped.", "notes": (), "provenance": {}, **fields}
    return Results(study="own", **values)


def _shown(part: Part) -> tuple[Any, ...]:
    """Return all that a reader sees of a part."""
    if isinstance(part, Picture):
        return part.name, part.caption, part.figure and svg_text(part.figure)
    if isinstance(part, Table):
        return part.name, part.title, part.sheet
    assert isinstance(part, Words | Listing)
    return (part,)


def test_large_report_is_small_and_its_statistics_are_those_of_all_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = _study("fixed", "baseline", comparisons=[["fixed", "baseline"]])
    records = named(*_trials("fixed", 300), *_trials("baseline", 300))
    capped, path = sections(_results(), records, of, tmp_path), tmp_path / "report.html"
    write_html(_results(), records, of, path)
    size = path.stat().st_size
    monkeypatch.setattr(module, "MOST", 10_000)
    whole = sections(_results(), records, of, tmp_path)
    differing = []
    for few, every in zip(capped, whole, strict=True):
        for part, same in zip(few.parts, every.parts, strict=True):
            if _shown(part) != _shown(same):
                differing.append(_shown(part)[0])
    figures = ["trials by step", "trials by parameter"]
    assert differing == [*figures, "trials of fixed", "trials of baseline"]
    assert size < 900_000


def test_report_says_which_trials_it_shows_and_where_all_are(tmp_path: Path) -> None:
    of, records = _study("fixed"), named(*_trials("fixed", 1200))
    path = tmp_path / "report.html"
    write_html(_results(), records, of, path)
    text = path.read_text()
    sampled = "400 of 1,200 trials are shown: the best of each arm, and as many others drawn"
    assert text.count(sampled) == 2
    assert "Trials (fixed: 800 complete, 400 pruned)." in text
    best = best_trials(records, of)
    assert f"400 of 1,200 trials are shown: {_BEST}; data/trials.csv of" in text
    assert all(f'<td class="w">{name}</td>' in text for name in best)
    assert f"{FEWEST} of 1,200 trials are shown: {_BEST}; " in searched_sheet(records, of).caption
