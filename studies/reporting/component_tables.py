"""The table of components, and the list of comparisons for studies with many references."""

from studies.analysis.components import Component, Stability
from studies.analysis.criteria import (
    CORE_GAIN,
    JUDGED_FROM,
    LIM_PPL_GAIN,
    OPTIONAL_GAIN,
    PARAMETERS_PER_PERCENT,
    PPL_GAIN,
    SPIKE_MADS,
    Answer,
)
from studies.analysis.results import Results
from studies.reporting.tables import Sheet, change_text
from studies.statistics.change import Change, effect_text

_COLUMNS = (
    "against",
    f"PPL, % (> {PPL_GAIN:g})",
    f"LIM-PPL, % (> {LIM_PPL_GAIN:g})",
    "parameters",
    f"per 1 % (< {PARAMETERS_PER_PERCENT:,})",
    "spikes",
    "status",
)
_CAPTION = (
    "Changes: negative is better; yes and no: the whole interval says so. A gain in LIM-PPL "
    "counts more than one in PPL. Spikes: confirm runs' training losses that are reported more "
    f"than {SPIKE_MADS:g} MADs above the median of the reports before (from report {JUDGED_FROM} "
    "on), against the reference's; yes: no more of them. Status, by the gain in PPL: core above "
    f"{CORE_GAIN:g} %, optional from {OPTIONAL_GAIN:g} %, experimental below."
)


def components_sheet(results: Results) -> Sheet:
    """Return one row per component: its figures, each with the criterion's answer."""
    references = {c.reference for c in results.components}
    shared = f" vs {next(iter(references))}" if len(references) == 1 else ""
    rows = [
        (
            c.arm,
            "" if shared else c.reference,
            _answered(c.change, c.gains_ppl),
            _answered(c.lim_ppl, c.gains_lim_ppl),
            f"{c.parameters:+,}",
            f"{'' if c.per_percent is None else f'{c.per_percent:,.0f} '}{c.cheap}",
            _stability(c),
            c.status,
        )
        for c in results.components
    ]
    columns = (f"component{shared}", *_COLUMNS)
    return Sheet(columns, tuple(rows), _CAPTION if rows else "")


def _answered(change: Change | None, answer: Answer) -> str:
    return f"{change_text(change)} {answer}".replace(" %", "") if change else ""


def _stability(c: Component) -> str:
    if not c.stable:
        return ""
    return f"{_incidents(c.stability)} vs {_incidents(c.reference_stability)} {c.stable}"


def _incidents(s: Stability) -> str:
    return f"{s.spikes}" + (f" (and {s.diverged} diverged)" if s.diverged else "")


def changes_sheet(results: Results) -> Sheet:
    """Return one row per comparison: its change and its outcome."""
    level = next((c.level for c in results.comparisons), 0.05)
    rows = [
        (f"{c.arm} vs {c.reference}", change_text(c), c.outcome, effect_text(c.smallest_visible))
        for c in results.comparisons
    ]
    change = f"change [{100 * (1 - level):.3g} %]"
    return Sheet(("comparison", change, "outcome", "smallest visible, %"), tuple(rows))
