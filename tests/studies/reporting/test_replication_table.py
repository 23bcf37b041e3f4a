"""The tables of the study of the published code."""

from dataclasses import replace

from studies.analysis.replication import FaultEffect, Replicated
from studies.reporting.replication_table import replication_sheet, replication_title
from studies.statistics.change import Change

MEASURED = Replicated(
    claim="landmarks",
    arm="fixed",
    reference="baseline",
    published=(-9.19, -18.37),
    clean=Change(-0.5, -0.9, -0.1),
    protocol=Change(-3.0, -4.0, -2.0),
    faults=(
        FaultEffect("all faults together", Change(-2.5, -3.5, -1.5), None, (27.2, 13.6)),
        FaultEffect("pads", Change(-0.004, -0.1, 0.1), Change(1.0, 0.5, 1.5), (0.04, 0.02)),
        FaultEffect("one unpaired seed", Change(0.0, -1.2, 1.2), None),
    ),
    says="No fault alone could.",
)


def test_a_row_a_fault_with_both_directions_and_every_share() -> None:
    sheet = replication_sheet(MEASURED)
    assert sheet.columns == (
        "fault",
        "switched on alone",
        "switched off alone",
        "share of -9.19 %",
        "share of -18.37 %",
    )
    assert sheet.rows == (
        ("all faults together", "-2.50 [-3.50, -1.50]", "", "27 %", "14 %"),
        ("pads", "+0.00 [-0.10, +0.10]", "+1.00 [+0.50, +1.50]", "0 %", "0 %"),
        ("one unpaired seed", "+0.00 [-1.20, +1.20]", "", "", ""),
    )
    assert "without any fault: -0.50 [-0.90, -0.10]; as published" in sheet.caption
    assert sheet.caption.endswith("No fault alone could.")
    assert replication_title(MEASURED) == "landmarks: published as -9.19 % and -18.37 %"


def test_table_says_why_cells_are_empty() -> None:
    sheet = replication_sheet(replace(MEASURED, note="Effects are not measured: few rows."))
    assert sheet.caption.endswith("No fault alone could. Effects are not measured: few rows.")
