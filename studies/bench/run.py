"""One benchmark from its checked plan to its result."""

import dataclasses
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from hylorada import Blocks
from hylorada.runtime.cores import available_cores
from studies.bench.inputs import base_on_disk, load_blocks
from studies.bench.ladder import Ladder, Say
from studies.bench.loops import step_operations
from studies.bench.measure import release
from studies.bench.options import Plan
from studies.bench.profile import write_profile
from studies.bench.result import Bench, Row
from studies.bench.search.timing import time_searches
from studies.process.environment import make_private, short_folder
from studies.process.provenance import code_version, command_line, package_versions

_MEMORY_PACKS = (1, 8, 16, 32)
_ADAM_BYTES = 12  # a trained number and its two moments in fp32
_REPORT_SEATS = {"cuda": 16, "cpu": 4}  # what a host has by default


def run_bench(plan: Plan, say: Say) -> Bench:
    """Measure all parts of the plan.

    Args:
        plan: checked plan.
        say: called with each line of progress.
    """
    provenance = _provenance(plan)  # before anything loads the machine or changes the code
    with base_on_disk(plan) as plan, _workspace() as workspace:
        blocks = load_blocks(plan.setting)
        ladder, rows = _measure_rows(plan, blocks, say, workspace)
        memory = _memory(ladder, say) if "memory" in plan.parts else {}
        notes = list(ladder.notes)
        if plan.profile is not None:
            loop = ladder.loop(ladder.largest or plan.packs[0])
            notes.append(
                f"{write_profile(loop, plan.setting.device, plan.profile)}; see {plan.profile}"
            )
            del loop
        bench = Bench(
            setting={
                **dataclasses.asdict(plan.setting),
                "base": plan.setting.shape or plan.setting.base,
                "ranks": list(plan.ranks),
            },
            provenance=provenance,
            step_operations=step_operations(ladder.base, plan.setting),
            matmul_rates=ladder.matmul_rates,
            rows=rows,
            memory=memory,
            notes=notes,
        )
        del ladder
        release(plan.setting.device)
        return dataclasses.replace(bench, **_outside(plan, blocks, say, workspace))


@contextmanager
def _workspace() -> Iterator[Path]:
    """Create a folder for Ray's files, once for the process: Ray keeps the first token it reads."""
    folder = short_folder()
    try:
        make_private(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure_rows(
    plan: Plan, blocks: Mapping[str, Blocks], say: Say, workspace: Path
) -> tuple[Ladder, Sequence[Row]]:
    input_ids = blocks["train"].input_ids
    with ExitStack() as stack:
        workers = None
        if "processes" in plan.parts:
            # Imported here, because Ray reads the environment when it is imported.
            from studies.bench.processes import ray_workers

            say(f"starting {plan.processes} processes")
            workers = stack.enter_context(
                ray_workers(plan.setting, input_ids, plan.processes, workspace)
            )
        ladder = Ladder(plan, input_ids, say, workers)
        return ladder, ladder.run()


def _outside(plan: Plan, blocks: Mapping[str, Blocks], say: Say, workspace: Path) -> dict[str, Any]:
    """Measure the parts that run in other processes while this one is idle."""
    parts: dict[str, Any] = {}
    if "report" in plan.parts:
        from studies.bench.reports import report_cost

        seats = _REPORT_SEATS[plan.setting.device]
        say(f"cost of a report: {seats} seats, with and without")
        parts["report"] = report_cost(plan.setting, blocks, seats, workspace)
    if "driver" in plan.parts:
        from studies.bench.driver_time import driver_time

        say("the driver's own time: trials of the built-in study without training")
        parts["driver"] = driver_time(workspace / "driver")
    if plan.search:
        parts["search"] = time_searches(plan, blocks, say)
    return parts


def _memory(ladder: Ladder, say: Say) -> dict[str, Any]:
    """Measure the memory of packs of several sizes, and what each further seat adds."""
    memories = dict(ladder.memories)
    for size in _MEMORY_PACKS:
        if size not in memories and size < ladder.too_large:
            say(f"memory of a pack of {size}")
            memory = ladder.measure_memory(size)
            if memory is None:
                break
            memories[size] = memory
    shown = {k: memories[k] for k in _MEMORY_PACKS if k in memories} or memories
    adapter = ladder.loop(1).num_parameters()
    values: dict[str, Any] = {
        "packs": {str(k): dataclasses.asdict(m) for k, m in sorted(shown.items())},
        "adapter_and_optimizer_bytes": _ADAM_BYTES * adapter,
    }
    if len(shown) > 1:
        low, high = min(shown), max(shown)
        values["growth_from"], values["growth_to"] = low, high
        for kind in ("peak", "resident"):
            growth = (getattr(shown[high], kind) - getattr(shown[low], kind)) / (high - low)
            values[f"{kind}_growth_per_seat"] = growth
    return values


def _provenance(plan: Plan) -> Mapping[str, Any]:
    device = torch.cuda.get_device_name() if plan.setting.device == "cuda" else _cpu_name()
    return {
        "command": command_line(),
        **code_version(),
        **{f"version.{k}": v for k, v in package_versions().items()},
        "device": device,
        "cores": available_cores(),
        "load_average": os.getloadavg()[0],
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
