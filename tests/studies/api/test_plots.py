"""The figures as axes show the numbers of the results, in the caller's axes or in new ones."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

import matplotlib as mpl
import numpy as np
import pytest
from made_studies import make
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from hylorada import InputError
from studies import StudyResults
from studies.analysis.results import read_results
from studies.trials.records import Record


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    store = make(tmp_path_factory.mktemp("made"), "end")
    store.close()
    return StudyResults(store.study, store.folder, read_results(store.folder / "results.json"))


@pytest.fixture
def ax() -> Iterator[Axes]:
    mpl.use("Agg")
    yield pyplot.subplots()[1]
    pyplot.close("all")


def lines(axes: Axes, marker: str) -> list[Line2D]:
    return [line for line in axes.get_lines() if line.get_marker() == marker]


def xs(line: Line2D) -> list[float]:
    return [float(x) for x in np.atleast_1d(np.asarray(line.get_xdata(), dtype=float))]


def ys(line: Line2D) -> list[float]:
    return [float(y) for y in np.atleast_1d(np.asarray(line.get_ydata(), dtype=float))]


def search_trials(results: StudyResults, arm: str) -> list[Record]:
    return [r for r in results.records.values() if (r.stage, r.arm) == ("search", arm)]


def test_forest_shows_each_change_and_its_interval(results: StudyResults, ax: Axes) -> None:
    assert results.plot_forest(ax) is ax
    (stored,) = results.results.comparisons
    (diamond,), (seeds,) = lines(ax, "D"), lines(ax, "o")
    assert xs(diamond) == pytest.approx([stored.change])
    assert xs(seeds) == pytest.approx(stored.by_seed)
    assert [stored.low, stored.high] in [xs(line) for line in ax.get_lines()]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["fixed vs baseline"]


def test_tuning_shows_the_mean_over_all_orders_of_the_trials(
    results: StudyResults, ax: Axes
) -> None:
    results.plot_tuning(ax)
    for line, arm in zip(lines(ax, "."), results.study.arms, strict=True):
        complete = [r.state == "complete" for r in search_trials(results, arm)]
        nll = [r.nll if r.nll is not None else np.inf for r in search_trials(results, arm)]
        orders = list(permutations(np.where(complete, nll, np.inf)))
        for count, ppl in zip(xs(line), ys(line), strict=True):
            best = [b for order in orders if np.isfinite(b := min(order[: int(count)]))]
            assert np.log(ppl) == pytest.approx(np.mean(best))


def test_curves_show_every_report(results: StudyResults, ax: Axes) -> None:
    results.plot_curves("baseline", ax)
    drawn = {tuple(ys(line)) for line in lines(ax, ".")}
    assert drawn == {
        tuple(report.metrics["eval/ppl"] for report in trial.reports)
        for trial in search_trials(results, "baseline")
    }
    assert ax.get_title(loc="left") + ax.get_title() == "baseline"


def test_boundaries_show_start_and_end_of_every_run(results: StudyResults, ax: Axes) -> None:
    learned = {
        name: replace(
            r,
            reports=[
                *r.reports[:-1],
                replace(r.reports[-1], start_boundaries=(8.0, 16.0), boundaries=(9.0, 20.0 + i)),
            ],
        )
        if (r.stage, r.arm) == ("confirm", "fixed")
        else r
        for i, (name, r) in enumerate(results.records.items())
    }
    moved = StudyResults(results.study, results.folder, results.results)
    vars(moved)["records"] = learned
    moved.plot_boundaries(ax=ax)
    ends = [r.reports[-1].boundaries for r in learned.values() if r.reports[-1].boundaries]
    drawn = [tuple(xs(line)) for line in lines(ax, "o")]
    assert len(ends) == results.study.seeds
    assert drawn == [positions for end in ends for positions in ((8.0, 16.0), end)]


def test_without_axes_there_is_a_new_figure_in_the_reports_style(results: StudyResults) -> None:
    before = dict(mpl.rcParams)
    axes = results.plot_forest()
    assert axes.get_figure(root=True) is pyplot.gcf()
    assert len(pyplot.get_fignums()) == 1
    assert not axes.spines["top"].get_visible()
    assert dict(mpl.rcParams) == before
    pyplot.close("all")


def test_what_cannot_be_drawn_says_why(results: StudyResults) -> None:
    with pytest.raises(InputError, match="no arm of study 'made' has learned boundaries"):
        results.plot_boundaries()
    with pytest.raises(InputError, match="has no arm 'fixd'; did you mean 'fixed'"):
        results.plot_curves("fixd")
    with pytest.raises(InputError, match="'fixed' was confirmed at one learning rate"):
        results.plot_rates()
    with pytest.raises(InputError, match="'fixed' is not compared with 'base'; did you mean"):
        results.plot_rates("fixed", "base")
    assert pyplot.get_fignums() == []
