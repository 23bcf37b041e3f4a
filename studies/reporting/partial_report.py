"""The printed report of a study that has not finished."""

from collections.abc import Sequence

from studies.analysis.progress import Leader, Partial
from studies.reporting.shown.values import value_text
from studies.reporting.tables import Sheet
from studies.reporting.terminal import Drawing, Terminal
from studies.spec.study import Study

_COLUMNS = ("arm", "search", "trial", "state", "last step", "eval PPL", "searched")


def print_partial(study: Study, partial: Partial) -> None:
    """Print the leading trials, those that users have added, and what is still missing."""
    print(f"PARTIAL: study {study.name!r} has not finished.")
    terminal = Terminal()
    terminal.print(Drawing(leaders_sheet(study, partial.best)))
    if partial.added:
        print("added by users, outside the comparison:")
        terminal.print(Drawing(leaders_sheet(study, partial.added)))
    for line in partial.missing:
        print(f"missing: {line}")
    for line in partial.notes:
        print(f"note: {line}")


def leaders_sheet(study: Study, leaders: Sequence[Leader]) -> Sheet:
    """Return one row per trial; a study with one search needs no column for it."""
    rows = [
        (
            leader.arm,
            str(leader.search) if study.searches > 1 else "",
            leader.trial,
            leader.state,
            f"{leader.step} of {study.max_steps}",
            "" if leader.ppl is None else f"{leader.ppl:,.3f}",
            " ".join(f"{name}={value_text(value)}" for name, value in leader.params.items()),
        )
        for leader in leaders
    ]
    return Sheet(_COLUMNS, tuple(rows))
