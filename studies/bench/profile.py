"""A profile of one step of a pack."""

from pathlib import Path

from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from studies.bench.loops import PackLoop
from studies.bench.measure import WARM_STEPS, time_steps

_ROWS = 40
_UNPROFILED = 5  # steps that give the time of a step: the profiler slows the step that it records


def write_profile(loop: PackLoop, device: str, path: Path) -> str:
    """Profile one warm step into a file.

    Returns:
        A line with the time of a step, and on a GPU the share of it in which the GPU is busy.
    """
    time_steps(loop, WARM_STEPS, device)
    step = time_steps(loop, _UNPROFILED, device) / _UNPROFILED
    cuda = device == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as profiled:
        time_steps(loop, 1, device)
    averages = profiled.key_averages()
    line = f"one step of a pack of {len(loop.series)}: {1e3 * step:.2f} ms unprofiled"
    if cuda:
        kernels = [
            e
            for e in profiled.events()
            if e.device_type == DeviceType.CUDA and not getattr(e, "is_user_annotation", False)
        ]
        busy = sum(e.time_range.elapsed_us() for e in kernels) / 1e6
        line += (
            f"; {len(kernels)} kernels and copies take {1e3 * busy:.2f} ms: "
            f"GPU busy {100 * busy / step:.0f} %"
        )
    order = "self_device_time_total" if cuda else "self_cpu_time_total"
    path.write_text(
        f"{line}\n\n{averages.table(sort_by=order, row_limit=_ROWS, max_name_column_width=80)}\n"
    )
    return line
