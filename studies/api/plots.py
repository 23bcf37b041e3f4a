"""The figures of a study's report, drawn into matplotlib axes of the calling program."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hylorada import InputError, nearest
from studies.reporting.figures import finding_plots, plots
from studies.reporting.figures.drawing import styled
from studies.reporting.findings import tuning_curves
from studies.reporting.sections import boundary_runs
from studies.reporting.tables import best_trials
from studies.trials.records import records_of

if TYPE_CHECKING:
    from studies.api.study_results import StudyResults

_WIDTH = 9.0  # inches


def plot_forest(results: "StudyResults", ax: Axes | None) -> Axes:
    """See :meth:`StudyResults.plot_forest`."""
    comparisons = results.results.comparisons
    return _drawn(
        lambda into: plots.forest(comparisons, _colors(results), into),
        ax,
        height=0.75 + 0.5 * len(comparisons),
        missing=f"study {results.study.name!r} has no comparison to draw",
    )


def plot_tuning(results: "StudyResults", ax: Axes | None) -> Axes:
    """See :meth:`StudyResults.plot_tuning`."""
    curves = tuning_curves(results.records, results.study)
    return _drawn(
        lambda into: finding_plots.tuning(curves, _colors(results), into),
        ax,
        height=2.9,
        missing=f"study {results.study.name!r} has fewer than 2 trials in a search",
    )


def plot_rates(
    results: "StudyResults", arm: str | None, reference: str | None, ax: Axes | None
) -> Axes:
    """See :meth:`StudyResults.plot_rates`."""
    arm = _arm(results, arm)
    pairs = [c for c in results.results.comparisons if c.arm == arm]
    if reference is not None:
        known = [c.reference for c in pairs]
        pairs = [c for c in pairs if c.reference == reference]
        if not pairs:
            raise InputError(
                f"arm {arm!r} is not compared with {reference!r}; {nearest(reference, known)}"
            )
    return _drawn(
        lambda into: plots.rates(pairs[:1], _colors(results), into),
        ax,
        height=2.6,
        missing=f"arm {arm!r} was confirmed at one learning rate; a profile needs several",
    )


def plot_curves(results: "StudyResults", arm: str | None, ax: Axes | None) -> Axes:
    """See :meth:`StudyResults.plot_curves`."""
    arm, study, records = _arm(results, arm), results.study, results.records
    trials = list(records_of(records, "search", arm))
    return _drawn(
        lambda into: plots.curves(trials, study, best_trials(records, study), into),
        ax,
        height=3.0,
        missing=f"arm {arm!r} has no report with a finite loss",
    )


def plot_boundaries(results: "StudyResults", arm: str | None, ax: Axes | None) -> Axes:
    """See :meth:`StudyResults.plot_boundaries`."""
    study, records = results.study, results.records
    by_arm = {name: boundary_runs(name, records, study) for name in study.arms}
    learned = [
        name
        for name, runs in by_arm.items()
        if any(r.reports and r.reports[-1].boundaries for r in runs)
    ]
    if arm is None and not learned:
        raise InputError(f"no arm of study {study.name!r} has learned boundaries")
    arm = _arm(results, arm or learned[0])
    runs, color = by_arm[arm], _colors(results)[arm]
    return _drawn(
        lambda into: plots.boundary_shifts(runs, study.block_size, color, study.seed_list, into),
        ax,
        height=0.7 + 0.55 * len(runs),
        missing=f"arm {arm!r} has no learned boundaries",
    )


def _arm(results: "StudyResults", arm: str | None) -> str:
    """Return an arm of the study, by default that of its first comparison."""
    arms = results.study.arms
    if arm is None:
        return next((c.arm for c in results.results.comparisons), next(iter(arms)))
    if arm not in arms:
        raise InputError(f"study {results.study.name!r} has no arm {arm!r}; {nearest(arm, arms)}")
    return arm


def _colors(results: "StudyResults") -> dict[str, str]:
    return plots.arm_colors(results.study.arms)


def _drawn(
    draw: Callable[[Axes], Figure | None], ax: Axes | None, *, height: float, missing: str
) -> Axes:
    """Draw into the given axes, or into those of a new figure of pyplot.

    Raises:
        InputError: There is nothing to draw, for the reason given.
    """
    axes = ax
    if axes is None:
        with styled():
            _, axes = pyplot.subplots(figsize=(_WIDTH, height), layout="constrained")
    if draw(axes) is None:
        if ax is None:
            pyplot.close(axes.figure)  # type: ignore[arg-type]
        raise InputError(missing)
    return axes
