"""The text output of a benchmark."""

import numpy as np
from rich.console import Console

from studies.bench.designs import LORA
from studies.bench.result import Bench, Row
from studies.reporting.tables import Sheet
from studies.reporting.terminal import Drawing, say

_GIB, _MIB = 1 << 30, 1 << 20


def print_bench(bench: Bench, out: Console) -> None:
    """Print the tables, then one line for each of the other measurements."""
    setting, device = bench.setting, bench.provenance
    tokens = f"{setting['batch_size']} x {setting['block_size']} tokens"
    size = f"{tokens} a trial-step, LoRA r={setting['r']}"
    size += ", gradient checkpointing" if setting.get("gradient_checkpointing") else ""
    head = f"{setting['base']}, {setting['dtype']}, {size}; {device['device']}"
    lines = [head] if setting["device"] == "cuda" else [f"{head}, {device['cores']} cores"]
    _print(out, lines)
    for sheet in (_sheet(bench), _design_sheet(bench)):
        if sheet.rows:
            out.print(Drawing(sheet))
    _print(out, [*_details(bench), *(f"note: {n}" for n in bench.notes)])


def _print(out: Console, lines: list[str]) -> None:
    for line in lines:
        say(out, line)


def _sheet(bench: Bench) -> Sheet:
    titles = (
        "trial-steps/s",
        "tokens/s",
        "of matmul",
        "peak memory",
        "vs plain",
        "vs processes",
        "loss vs solo",
    )
    rows = tuple((row.name, *_cells(bench, row)) for row in bench.rows if row.design == LORA)
    return Sheet(("median of repeats", *titles), rows)


def _design_sheet(bench: Bench) -> Sheet:
    rows = bench.design_rows
    titles = ("parameters", "step time", "middle half of repeats", "peak memory")
    head = f"designs, {rows[0].name}" if rows else ""
    return Sheet((head, *titles), tuple((row.design, *_design_cells(bench, row)) for row in rows))


def _design_cells(bench: Bench, row: Row) -> tuple[str, ...]:
    figures = bench.figures(row)
    added = f"+{figures['added_parameters']:,}"
    parameters = f"{row.parameters:,}" if row.design == LORA else added
    low, high = np.quantile(bench.step_time_ratios(row), (0.25, 0.75))
    return parameters, f"{figures['step_time_ratio']:.3f}x", f"{low:.3f} - {high:.3f}", _peak(row)


def _cells(bench: Bench, row: Row) -> list[str]:
    figures = bench.figures(row)
    share, plain, processes = (
        figures[k] for k in ("matmul_share", "ratio_to_plain", "ratio_to_processes")
    )
    return [
        f"{row.rate:.2f}",
        f"{figures['tokens_per_s']:,.0f}",
        "" if share is None else f"{100 * share:.1f} %",
        _peak(row),
        "" if plain is None else f"{plain:.2f}x",
        "" if processes is None else f"{processes:.2f}x",
        "" if row.loss_difference is None else f"{row.loss_difference:.1e}",
    ]


def _peak(row: Row) -> str:
    return "" if row.peak_bytes is None else f"{row.peak_bytes / _GIB:.2f} GiB"


def _details(bench: Bench) -> list[str]:
    lines = []
    if bench.matmul_rates:
        lines.append(f"matmul rate: {bench.matmul_rate / 1e12:.3g} TFLOP/s")
    lines += _rank_lines(bench)
    lines += [*_memory_lines(bench), *_report_lines(bench)]
    return [*lines, *_driver_lines(bench), *_search_lines(bench)]


def _rank_lines(bench: Bench) -> list[str]:
    ratios, mixed = bench.mixed_rank_ratios(), bench.mixed_row
    if not ratios or mixed is None:
        return []
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    return [
        f"{mixed.name}: {middle:.3f}x the rate of packs of one rank each "
        f"(middle half of repeats {low:.3f} - {high:.3f})"
    ]


def _memory_lines(bench: Bench) -> list[str]:
    memory = bench.memory
    if not memory:
        return []
    peaks = ", ".join(f"K={k} {m['peak'] / _GIB:.2f} GiB" for k, m in memory["packs"].items())
    lines = [f"peak memory of packs: {peaks}"]
    if "growth_to" in memory:
        own = memory["adapter_and_optimizer_bytes"]
        held, peak = memory["resident_growth_per_seat"], memory["peak_growth_per_seat"]
        lines.append(
            f"each further seat: {held / _MIB:.2f} MiB held between steps ({held / own:.2f} x the "
            f"{own / _MIB:.2f} MiB of adapter and optimizer), {peak / _MIB:.1f} MiB at the peak"
        )
    return lines


def _report_lines(bench: Bench) -> list[str]:
    report = bench.report
    if not report:
        return []
    parts, pairs = report["ms_of_parts"], report["overhead_percents"]
    return [
        f"a report every {report['every']} steps ({report['seats']} seats through Tune and host, "
        f"{report['eval_blocks']} validation blocks): {report['cost_percent']:+.1f} % of time, "
        f"{report['ms_per_report']:.1f} ms a seat's report, of which the evaluation takes "
        f"{parts['evaluation']:.1f} ms",
        f"a report beyond its evaluation: {report['overhead_percent']:+.1f} % of "
        f"{report['every']} steps ({min(pairs):+.1f} to {max(pairs):+.1f} in {len(pairs)} pairs): "
        f"checkpoint {parts['checkpoint']:.1f} ms, waiting between steps {parts['waiting']:.1f} "
        f"ms, slower steps {parts['steps']:.1f} ms",
    ]


def _driver_lines(bench: Bench) -> list[str]:
    driver = bench.driver
    if not driver:
        return []
    late = driver["report_ms_after"]
    depths = " / ".join(f"{int(depth):,}" for depth in late)
    times = " / ".join(f"{ms:.2f}" for ms in late.values())
    return [
        f"driver, {driver['trials']:,} trials of the built-in study without training, messages or "
        f"MLflow: {driver['together_ms']:.1f} ms a trial, of which {driver['propose_ms']:.1f} to "
        f"propose it, {driver['reports_ms']:.1f} for {driver['reports']:.1f} reports and "
        f"{driver['finish_ms']:.1f} to end it",
        f"a report after {depths} of its trial: {times} ms",
    ]


def _search_lines(bench: Bench) -> list[str]:
    search = bench.search
    if not search:
        return []
    processes, host = search["processes"], search["host"]
    return [
        f"search of {search['trials']} trials x {search['steps']} steps, from end to end: "
        f"one process per trial ({search['processes_at_once']} at once) "
        f"{processes['seconds']:.0f} s = "
        f"{processes['trials_per_hour']:,.0f} trials/h; packed {host['seconds']:.0f} s = "
        f"{host['trials_per_hour']:,.0f} trials/h: {search['ratio']:.2f}x"
    ]
