"""The parts of a report's cost, from made-up times."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from studies.bench.reports import cost, stretches
from studies.bench.result import Bench
from studies.bench.table import print_bench


def _run(evaluation: float, checkpoint: float, waiting: float, steps: float) -> dict[str, float]:
    """Return the seconds of one stretch by part."""
    parts = {"evaluation": evaluation, "checkpoint": checkpoint, "waiting": waiting}
    return {"all": sum(parts.values()) + steps, **parts, "steps": steps}


def test_stretch_ends_with_the_last_of_several_reports_of_one_step(tmp_path: Path) -> None:
    """The trials of the last step report in two passes."""
    names = ("step", "clock", "evaluation", "checkpoint", "waiting")
    rows = [(25, 10.0, 1.0, 0.5, 2.0), (50, 14.0, 2.0, 0.5, 2.25), (75, 18.0, 3.0, 0.75, 2.5)]
    rows.append((75, 19.0, 3.5, 1.0, 2.5))
    rows.append((100, 20.0, 3.5, 1.0, 3.0))
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    (tmp_path / "times").write_text("\n".join(lines))
    parts = {"evaluation": 2.5, "checkpoint": 0.5, "waiting": 0.5}
    last = {"all": 1.0, "evaluation": 0.0, "checkpoint": 0.0, "waiting": 0.5, "steps": 0.5}
    first = {"all": 9.0, **parts, "steps": 5.5}
    assert stretches(tmp_path / "times", (25, 75, 100)) == [first, last]


def test_overhead_is_what_is_left_without_the_evaluation() -> None:
    """Two pairs of two reports by five seats; 25 steps take 10 s."""
    more = [_run(6.0, 0.5, 1.5, 30.5), _run(6.0, 0.5, 1.0, 30.0)]
    less = [_run(2.0, 0.1, 0.5, 30.0), _run(2.0, 0.1, 0.5, 30.0)]
    found = cost(more, less, 5, 3)
    assert found["ms_of_parts"] == pytest.approx(
        {"evaluation": 400.0, "checkpoint": 40.0, "waiting": 75.0, "steps": 25.0}
    )
    assert found["ms_per_report"] == pytest.approx(540.0)
    assert found["overhead_percents"] == pytest.approx([9.5, 4.5])
    assert found["overhead_percent"] == pytest.approx(7.0)
    assert found["cost_percent"] == pytest.approx(100 * (76.0 - 65.2) / 65.2)
    assert (found["reports"], found["seconds_with"]) == (4, 76.0)


def test_overhead_is_printed_apart_from_the_evaluation() -> None:
    report = cost([_run(6.0, 0.5, 1.5, 30.5)], [_run(2.0, 0.1, 0.5, 30.0)], 5, 3)
    setting = {
        "base": "tiny",
        "dtype": "float32",
        "device": "cpu",
        "block_size": 4,
        "batch_size": 2,
        "r": 8,
    }
    bench = Bench(
        setting=setting,
        provenance={"device": "a CPU", "cores": 2},
        step_operations=1,
        matmul_rates=(),
        rows=(),
        report={"eval_blocks": 12, **report},
    )
    out = io.StringIO()
    print_bench(bench, Console(file=out, width=400))
    assert out.getvalue().splitlines()[-2:] == [
        "a report every 25 steps (5 seats through Tune and host, 12 validation blocks): +18.1 % of "
        "time, 590.0 ms a seat's report, of which the evaluation takes 400.0 ms",
        "a report beyond its evaluation: +9.5 % of 25 steps (+9.5 to +9.5 in 1 pairs): checkpoint "
        "40.0 ms, waiting between steps 100.0 ms, slower steps 50.0 ms",
    ]
