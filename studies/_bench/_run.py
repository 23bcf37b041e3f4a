"""One benchmark from its checked plan to its result."""

import dataclasses
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hylorada import build_blocks, load_text, load_tokenizer
from studies._provenance import code_version, command_line, package_versions

from ._ladder import Ladder, Say
from ._loops import Tokens, step_operations
from ._options import Plan
from ._profile import write_profile
from ._result import Bench, Row
from ._shapes import shape_config, write_shape

_RANDOM_BLOCKS = 256
_MEMORY_PACKS = (1, 8, 16, 32)
_ADAM_BYTES = 12  # a trained number and its two moments in fp32


def run_bench(plan: Plan, say: Say) -> Bench:
    """Measure all that the plan asks for.

    Args:
        plan: checked.
        say: takes a line of progress.
    """
    with _base_on_disk(plan, say) as plan:
        input_ids = _train_blocks(plan)
        ladder = Ladder(plan, input_ids, say)
        rows = ladder.run()
        memory = _memory(ladder, say) if "memory" in plan.parts else {}
        notes = list(ladder.notes)
        if plan.profile is not None:
            loop = ladder.loop(ladder.largest or plan.packs[0])
            notes.append(f"{write_profile(loop, plan.setting.device, plan.profile)}; see {plan.profile}")
        return Bench(
            setting={**dataclasses.asdict(plan.setting), "base": plan.setting.shape or plan.setting.base},
            provenance=_provenance(plan),
            step_operations=step_operations(ladder.base, plan.setting),
            matmul_rates=ladder.matmul_rates,
            rows=rows,
            landmark_costs=_landmark_costs(rows),
            memory=memory,
            notes=notes,
        )


@contextmanager
def _base_on_disk(plan: Plan, say: Say) -> Iterator[Plan]:
    """The plan with a base that can be loaded: random weights are written to a folder that lives as long."""
    shape = plan.setting.shape
    if shape is None:
        yield plan
        return
    folder = Path(tempfile.mkdtemp(prefix="hylorada-bench-"))
    try:
        say(f"writing random weights in the shape of {shape}")
        write_shape(shape, plan.setting.dtype, folder)
        yield dataclasses.replace(plan, setting=dataclasses.replace(plan.setting, base=str(folder)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _train_blocks(plan: Plan) -> Tokens:
    setting = plan.setting
    if setting.shape is not None:
        size = (_RANDOM_BLOCKS, setting.block_size)
        return np.random.default_rng(0).integers(0, shape_config(setting.shape).vocab_size, size, dtype=np.int32)
    documents = load_text(setting.data).splits["train"]
    return build_blocks(documents, load_tokenizer(setting.base), setting.block_size, split="train").input_ids


def _landmark_costs(rows: list[Row]) -> dict[str, float]:
    """Percent of time that landmarks add to a pack of the same size with LoRA alone."""
    by_name = {r.name: r for r in rows}
    return {
        kind: 100 * (alone.rate / row.rate - 1)
        for name, row in by_name.items()
        for kind in ("fixed", "learnable")
        if name.endswith(f", {kind} landmarks") and (alone := by_name.get(name.split(",")[0]))
    }


def _memory(ladder: Ladder, say: Say) -> dict[str, Any]:
    """Memory of packs of several sizes, and what each further seat adds."""
    found = dict(ladder.memories)
    for size in _MEMORY_PACKS:
        if size not in found and not any("does not fit" in n for n in ladder.notes):
            say(f"memory of a pack of {size}")
            memory = ladder.measure_memory(size)
            if memory is None:
                break
            found[size] = memory
    shown = {k: found[k] for k in _MEMORY_PACKS if k in found} or found
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
    cores = len(os.sched_getaffinity(0))
    device = torch.cuda.get_device_name() if plan.setting.device == "cuda" else _cpu_name()
    return {
        "command": command_line(),
        **code_version(),
        **{f"version.{k}": v for k, v in package_versions().items()},
        "device": device,
        "cores": cores,
        "load_average": os.getloadavg()[0],
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
