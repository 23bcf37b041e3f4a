"""What waits for a GPU, in 15 minutes: tests, speed, memory and a study, against expected figures.

Each step has a time limit and writes its output to a file of the folder. A step that fails or runs
out of time costs its own figures only. Exit codes: 0 if every step ended well and every expected
figure was reached, 1 if not, 2 without a GPU or with bad arguments.

Usage: ``python tests/programs/gpu_check.py wikitext-2``, with the folder of a text
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TOTAL_S = 900  # of all steps together
_END_S = 10  # for a step that is told to end
_PACK = "pack of 32"  # the pack in which checkpointing is compared with keeping everything
_ROWS = "--rows=plain,processes,packs"

Results = Mapping[str, Mapping[str, Any]]  # what each benchmark wrote, by step


@dataclass(frozen=True)
class Step:
    """A command with a time limit in seconds."""

    name: str
    limit: int
    command: tuple[str, ...]


@dataclass(frozen=True)
class Figure:
    """A figure of the final table.

    Attributes:
        name: what it is.
        read: returns it from the results; raises LookupError where it was not measured.
        least: smallest value that counts as reached; None where nothing is expected.
        next: value to aim for after that.
    """

    name: str
    read: Callable[[Results], float]
    least: float | None = None
    next: float | None = None


def steps(text: str, model: str, folder: Path) -> list[Step]:
    """Return all steps, in the order in which they run.

    Args:
        text: text of the study.
        model: base of the study.
        folder: folder of all output.
    """
    python = (sys.executable, "-m")

    def bench(name: str, limit: int, *options: str) -> Step:
        file = f"--json={folder / name}.json"
        return Step(name, limit, (*python, "hylorada_command", "bench", *options, file))

    smollm2, repeats = "--shape=smollm2", "--repeats=3"
    packs, one_pack = "--packs=1,8,32,64", ("--rows=packs", "--packs=32")
    ranks = ("--rows=packs", "--packs=8", "--ranks=4,8,16")
    study = ("run", "learnable_bucketing", "--name=gpu-check", f"--model={model}", f"--data={text}")
    place = (f"--storage={folder / 'runs'}", "--block-size=512", "--progress=plain")
    return [
        Step("environment", 30, (*python, "torch.utils.collect_env")),
        Step("tests", 75, (*python, "pytest", "-m", "gpu", "-q", str(ROOT / "tests"))),
        bench("smollm2", 240, smollm2, _ROWS, packs, repeats, "--search"),
        bench("gpt2", 130, "--shape=gpt2", _ROWS, packs, repeats),
        bench("checkpointing", 70, smollm2, *one_pack, repeats, "--gradient-checkpointing"),
        bench("ranks", 60, smollm2, *ranks, repeats),
        bench("designs", 130, smollm2, "--rows=designs", "--packs=16", "--steps=10", repeats),
        Step("study", 165, (*python, "hylorada_command", *study, *place, "--time-limit=140s")),
    ]


def _fastest(step: str, figure: str) -> Callable[[Results], float]:
    """Return a reader of a figure of the fastest pack."""

    def read(results: Results) -> float:
        packs = [row for row in results[step]["rows"] if row["kind"] == "pack"]
        if not packs:
            raise LookupError(step)
        return float(max(packs, key=lambda row: row["trial_steps_per_s"])[figure])

    return read


def _of_checkpointing(figure: str) -> Callable[[Results], float]:
    """Return a reader of a figure of the checkpointed pack over that of the plain one."""

    def read(results: Results) -> float:
        return _of_pack(results, "checkpointing", figure) / _of_pack(results, "smollm2", figure)

    return read


def _of_pack(results: Results, step: str, figure: str) -> float:
    rows = {row["name"]: row for row in results[step]["rows"]}
    return float(rows[_PACK][figure])


def _slowest_design(results: Results) -> float:
    ratios = [r["step_time_ratio"] for r in results["designs"]["rows"] if r["step_time_ratio"]]
    if not ratios:
        raise LookupError("designs")
    return float(max(ratios))


FIGURES = (
    Figure("SmolLM2, fastest pack over the plain loop", _fastest("smollm2", "ratio_to_plain"), 30),
    Figure("SmolLM2, over processes", _fastest("smollm2", "ratio_to_processes"), 5),
    Figure("SmolLM2, trial-steps/s", _fastest("smollm2", "trial_steps_per_s"), next=407),
    Figure("SmolLM2, share of the matmul rate", _fastest("smollm2", "matmul_share")),
    Figure("SmolLM2, search over a process a trial", lambda r: r["smollm2"]["search"]["ratio"]),
    Figure("GPT-2, fastest pack over the plain loop", _fastest("gpt2", "ratio_to_plain"), 12),
    Figure("GPT-2, over processes", _fastest("gpt2", "ratio_to_processes"), 3.5),
    Figure("GPT-2, trial-steps/s", _fastest("gpt2", "trial_steps_per_s"), next=350),
    Figure("checkpointing, peak memory over without", _of_checkpointing("peak_bytes")),
    Figure("checkpointing, trial-steps/s over without", _of_checkpointing("trial_steps_per_s")),
    Figure("mixed ranks, speed over equal ones", lambda r: r["ranks"]["mixed_rank_ratio"], 0.95),
    Figure("slowest design, step time over LoRA", _slowest_design),
)


def run(step: Step, folder: Path) -> tuple[int | None, float]:
    """Run a step and return its exit code, None if it ran out of time, and its seconds."""
    began = time.monotonic()
    with (
        (folder / f"{step.name}.txt").open("w") as output,
        subprocess.Popen(
            step.command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        ) as process,
    ):
        code = None
        try:
            code = process.wait(step.limit)
        except BaseException as error:
            _end(process)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
    return code, time.monotonic() - began


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and all processes of its group."""
    os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    with suppress(ProcessLookupError):  # all of them have ended
        os.killpg(process.pid, signal.SIGKILL)


def results_of(folder: Path) -> dict[str, Any]:
    """Return what the benchmarks have written, by step."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def table(results: Results) -> tuple[list[str], bool]:
    """Return the lines of the table, and whether every expected figure was reached."""
    lines, reached = [f"{'figure':<44}{'expected':>10}{'next':>8}{'found':>10}"], True
    for figure in FIGURES:
        try:
            value = float(figure.read(results))
        except (LookupError, TypeError):  # a step failed, or the row did not fit into memory
            value = None
        missed = figure.least is not None and (value is None or value < figure.least)
        reached = reached and not missed
        least, aim = (f"{x:g}" if x is not None else "" for x in (figure.least, figure.next))
        found = "not there" if value is None else f"{value:,.4g}"
        lines.append(f"{figure.name:<44}{least:>10}{aim:>8}{found:>10}{'  MISSED' * missed}")
    lines.append(f"{'fused head loss (Liger), share of a step':<44}{'':>18}{'not measured':>14}")
    return lines, reached


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("text", help="text of the study, such as a folder with WikiText-2")
    parser.add_argument("--model", default="smollm2-135m", help="its base; default: %(default)s")
    parser.add_argument("--output", type=Path, default=Path("gpu-check"), help="folder to write")
    parser.add_argument("--dry-run", action="store_true", help="print the steps and their limits")
    args = parser.parse_args(arguments)
    folder = args.output.absolute()
    text = str(Path(args.text).absolute()) if Path(args.text).exists() else args.text
    plan = steps(text, args.model, folder)
    if args.dry_run:
        for step in plan:
            print(f"{step.limit:4} s  {step.name}: {' '.join(step.command[2:])}")
        print(f"{sum(s.limit for s in plan):4} s  in all, at most")
        return 0
    import torch  # takes seconds

    if not torch.cuda.is_available():
        print("no GPU found")
        return 2
    if folder.exists():  # figures of an earlier check would stand in for missing ones
        parser.error(f"{folder} exists; name another folder with --output")
    return _measure(plan, folder)


def _measure(plan: Sequence[Step], folder: Path) -> int:
    folder.mkdir(parents=True)
    sound = True
    for step in plan:
        code, seconds = run(step, folder)
        how = "out of time" if code is None else f"exit code {code}"
        print(f"{step.name}: {how}, {seconds:.0f} of {step.limit} s", flush=True)
        sound = sound and code == 0
    lines, reached = table(results_of(folder))
    (folder / "table.txt").write_text("\n".join(lines) + "\n")
    print("", *lines, sep="\n")
    return 0 if sound and reached else 1


if __name__ == "__main__":
    sys.exit(main())
