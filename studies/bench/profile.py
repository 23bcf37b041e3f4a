"""Where the time of one step of a pack goes."""

from pathlib import Path

from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from studies.bench.loops import PackLoop
from studies.bench.measure import WARM_STEPS, time_steps

_ROWS = 40
_UNWATCHED = 5  # steps whose mean is the time of a step: the profiler slows the one it watches


def write_profile(loop: PackLoop, device: str, path: Path) -> str:
    """Profile one warm step into a file.

    Returns:
        One line: how long a step takes, and the share of it that a GPU is busy.
    """
    time_steps(loop, WARM_STEPS, device)
    step = time_steps(loop, _UNWATCHED, device) / _UNWATCHED
    cuda = device == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as watched:
        time_steps(loop, 1, device)
    averages = watched.key_averages()
    line = f"one step of a pack of {len(loop.series)}: {1e3 * step:.2f} ms unprofiled"
    if cuda:
        kernels = [
            e
            for e in watched.events()
            if e.device_type == DeviceType.CUDA and not getattr(e, "is_user_annotation", False)
        ]
        busy = sum(e.time_range.elapsed_us() for e in kernels) / 1e6
        line += f"; {len(kernels)} kernels and copies take {1e3 * busy:.2f} ms: GPU busy {100 * busy / step:.0f} %"
    order = "self_device_time_total" if cuda else "self_cpu_time_total"
    path.write_text(
        f"{line}\n\n{averages.table(sort_by=order, row_limit=_ROWS, max_name_column_width=80)}\n"
    )
    return line
