"""The tables of the study ``replication``: what each fault does to each published figure."""

from studies.analysis.replication import FaultEffect, Replicated
from studies.reporting.tables import Sheet
from studies.statistics.change import Change, interval_text


def replication_sheet(measured: Replicated) -> Sheet:
    """Return one row per fault: its effect switched on alone and off alone, and its shares."""
    shares = [f"share of {figure:+.2f} %" for figure in measured.published]
    rows = [_row(effect, len(shares)) for effect in measured.faults]
    caption = (
        f"Changes in PPL in %, negative is better. {measured.arm} against {measured.reference} "
        f"without any fault: {_text(measured.clean)}; as published, with all of them: "
        f"{_text(measured.protocol)}. 'Alone' switches a fault on where all else is right, 'off' "
        "switches it off in the published protocol; for one seed, both say how far chance takes "
        f"the difference of two runs. {measured.says}{measured.note and ' '}{measured.note}"
    )
    return Sheet(
        ("fault", "switched on alone", "switched off alone", *shares),
        tuple(rows),
        caption,
        strong=frozenset({0}),
    )


def replication_title(measured: Replicated) -> str:
    """Return the heading of a claim's table."""
    figures = " and ".join(f"{figure:+.2f} %" for figure in measured.published)
    return f"{measured.claim}: published as {figures}"


def _row(effect: FaultEffect, count: int) -> tuple[str, ...]:
    shares = [f"{share:.0f} %" for share in effect.shares] or [""] * count
    return (effect.fault, _text(effect.alone), _text(effect.off), *shares)


def _text(change: Change | None) -> str:
    return "" if change is None else interval_text(change.change, change.low, change.high)
