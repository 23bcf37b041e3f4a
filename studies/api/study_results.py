"""A finished study in Python: its verdict, and its trials and comparisons as data frames."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studies.analysis.results import Results, read_results
from studies.files.folder_files import stored_study
from studies.spec.study import Study
from studies.statistics.change import Change
from studies.trials.loading import load_records
from studies.trials.records import Record
from studies.trials.study_folders import (
    find_study,
    is_running_again,
    require_no_grid,
    require_results,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_CHANGE = ("change", "low", "high")
_OTHER = (
    *("outcome", "p_value", "p_holm", "level", "scope", "searches", "seeds"),
    *("median", "smallest_visible", "replicate_sd", "parameters_per_percent", "depends_on_rate"),
)
_TRIAL = ("arm", "stage", "search", "block", "number", "factor", "seed", "state", "reason")


@dataclass(frozen=True)
class StudyResults:
    """The results of a study: what ``hylorada report`` shows, and the data behind it.

    Changes are in % of test perplexity; negative means that the arm is better than its reference.
    The methods ``plot_...`` draw the report's figures into matplotlib axes, and return them.

    Attributes:
        study: The study as it was run.
        folder: Its folder, which holds ``report.html``.
        results: The results as stored in ``results.json``.

    Example:
        >>> results = load_results("learnable_bucketing")  # doctest: +SKIP
        >>> results.comparisons[["change", "low", "high", "outcome"]]  # doctest: +SKIP
        >>> results.plot_forest().figure.savefig("changes.pdf")  # doctest: +SKIP
    """

    study: Study
    folder: Path
    results: Results

    @property
    def verdict(self) -> str:
        """The verdict in sentences."""
        return self.results.verdict

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader should also know, such as runs that failed."""
        return self.results.notes

    @cached_property
    def records(self) -> Mapping[str, Record]:
        """All trials and runs by name, with every report."""
        return load_records(self.folder)

    @property
    def arms(self) -> "pd.DataFrame":
        """One row per arm.

        ``ppl`` (exp of the mean test NLL over its runs on fresh seeds) and ``ppl_median``, the
        number of trainable ``parameters``, ``trial_seconds`` per run, and the winning ``trial``.
        """
        columns = ("arm", "ppl", "ppl_median", "parameters", "trial_seconds", "trial")
        rows = [{name: getattr(arm, name) for name in columns} for arm in self.results.arms]
        return _frame(rows, ["arm"])

    @property
    def comparisons(self) -> "pd.DataFrame":
        """One row per comparison of two arms.

        ``change`` in % of test PPL with its interval from ``low`` to ``high`` (it covers 1 -
        ``level``), the ``outcome`` (better, worse, equivalent or undecided) with ``p_value`` and
        ``p_holm``, and what the interval speaks of (``scope``) from how many ``searches`` and
        ``seeds``. The other columns are fields of :class:`Comparison` of the same names.
        """
        columns = ("arm", "reference", *_CHANGE, *_OTHER)
        rows = [{name: getattr(c, name) for name in columns} for c in self.results.comparisons]
        return _frame(rows, ["arm", "reference"], columns[2:])

    @property
    def positions(self) -> "pd.DataFrame":
        """One row per comparison and measure: LIM-PPL and the PPL of each tenth of a block.

        ``change`` in %, its interval from ``low`` to ``high``, ``p_holm`` and ``outcome``.
        """
        rows = []
        for c in self.results.comparisons:
            pair = {"arm": c.arm, "reference": c.reference}
            for measure, change in c.positions.items():
                rows.append({**pair, "measure": measure, **asdict(change)})
        return _frame(rows, ["arm", "reference", "measure"], [f.name for f in fields(Change)])

    @property
    def trials(self) -> "pd.DataFrame":
        """One row per trial and run.

        Its place in the study, state, last step, metrics of the last report (``eval/ppl`` and the
        others, under MLflow's names) and, as ``params.NAME``, what was searched.
        """
        return _frame([_trial_row(record) for record in self.records.values()], ["trial"])

    @property
    def reports(self) -> "pd.DataFrame":
        """One row per report of a trial, by ``trial`` and ``step``.

        ``seconds`` of training and evaluation so far (the trial's share of its pack's time), and
        the metrics under MLflow's names.
        """
        rows = []
        for record in self.records.values():
            for report in record.reports:
                place = {"trial": record.name, "step": report.step, "seconds": report.seconds}
                rows.append({**place, **report.metrics})
        return _frame(rows, ["trial", "step"], ["seconds"])

    @property
    def boundaries(self) -> "pd.DataFrame":
        """One row per boundary, trial and report, in token positions; step 0 is the start."""
        rows = []
        for record in self.records.values():
            rows += _boundary_rows(record)
        return _frame(rows, ["trial", "step", "boundary"])

    def plot_forest(self, ax: "Axes | None" = None) -> "Axes":
        """Draw each comparison's change in test PPL with its interval: the report's first figure.

        Args:
            ax: Axes to draw into; None makes a figure with pyplot, which a notebook shows.

        Returns:
            The axes.
        """
        from studies.api.plots import plot_forest

        return plot_forest(self, ax)

    def plot_tuning(self, ax: "Axes | None" = None) -> "Axes":
        """Draw each arm's expected best validation PPL over the number of trials of a search."""
        from studies.api.plots import plot_tuning

        return plot_tuning(self, ax)

    def plot_rates(
        self, arm: str | None = None, reference: str | None = None, ax: "Axes | None" = None
    ) -> "Axes":
        """Draw a comparison's change over the factors of the learning rate (the profile).

        Args:
            arm: An arm, by default that of the first comparison.
            reference: The arm that it is compared with, by default that of its first comparison.
            ax: As for :meth:`plot_forest`.
        """
        from studies.api.plots import plot_rates

        return plot_rates(self, arm, reference, ax)

    def plot_curves(self, arm: str | None = None, ax: "Axes | None" = None) -> "Axes":
        """Draw the validation PPL of an arm's search trials over their steps.

        Args:
            arm: An arm, by default that of the first comparison.
            ax: As for :meth:`plot_forest`.
        """
        from studies.api.plots import plot_curves

        return plot_curves(self, arm, ax)

    def plot_boundaries(self, arm: str | None = None, ax: "Axes | None" = None) -> "Axes":
        """Draw where boundaries started and ended, one row per confirm run.

        Args:
            arm: An arm with learned boundaries, by default the first one.
            ax: As for :meth:`plot_forest`.
        """
        from studies.api.plots import plot_boundaries

        return plot_boundaries(self, arm, ax)

    def __repr__(self) -> str:
        return f"StudyResults({self.study.name!r}, {str(self.folder)!r})\n{self.verdict}"

    def _repr_html_(self) -> str:
        """Return the table of comparisons and the verdict, as a notebook shows them."""
        from html import escape

        shown = self.comparisons[[*_CHANGE, "outcome"]]
        text = escape(self.verdict).replace("\n", "<br>")
        return f"{shown.to_html(float_format='{:+.3f}'.format)}<p>{text}</p>"


def load_results(name: str, storage: str | Path = "mlruns") -> StudyResults:
    """Return the results of a study that has finished.

    A study that is running again, or was interrupted since, has records newer than these results;
    then a ``UserWarning`` says so.

    Args:
        name: The study's name.
        storage: Folder of the studies.

    Raises:
        InputError: No such study has been run, it has not finished, or its files are damaged.
    """
    folder = find_study(Path(storage).expanduser().absolute(), name)
    require_no_grid(folder, name)
    require_results(folder, name)
    if is_running_again(folder):
        warnings.warn(
            f"study {name!r} is running again, or was interrupted since; its results are the "
            "earlier ones, but its trials and reports are those of now",
            stacklevel=2,
        )
    study = Study.from_dict(stored_study(folder / "study.json"))
    return StudyResults(study, folder, read_results(folder / "results.json"))


def _frame(
    rows: list[dict[str, Any]], index: list[str], columns: Iterable[str] = ()
) -> "pd.DataFrame":
    """Return rows as a frame, which has the columns even if there are no rows."""
    import pandas as pd  # slow to import

    return pd.DataFrame(rows, columns=None if rows else [*index, *columns]).set_index(index)


def _trial_row(record: Record) -> dict[str, Any]:
    last = record.reports[-1] if record.reports else None
    row = {"trial": record.name, **{name: getattr(record, name) for name in _TRIAL}}
    row |= {"step": record.step, "restarts": record.restarts}
    row |= {"seconds": last.seconds if last else 0.0}
    row |= {"parameters": last.parameters if last else None}
    row |= last.metrics if last else {}
    return row | {f"params.{name}": value for name, value in record.params.items()}


def _boundary_rows(record: Record) -> list[dict[str, Any]]:
    if not record.reports:
        return []
    states = [(0, record.reports[0].start_boundaries)]
    states += [(report.step, report.boundaries) for report in record.reports]
    rows = []
    for step, positions in states:
        for number, position in enumerate(positions, 1):
            place = {"trial": record.name, "step": step, "boundary": number}
            rows.append({**place, "arm": record.arm, "position": position})
    return rows
