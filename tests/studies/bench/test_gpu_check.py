"""The check that waits for a GPU: its steps, how they end, and its table."""

import sys
import time
from pathlib import Path
from typing import Any

import gpu_check
import psutil
import pytest
import torch
from gpu_check import FIGURES, TOTAL_S, Step, main, run, steps, table

from studies.bench.options import BenchOptions, check
from studies.cli.arguments import parse


def _row(name: str, rate: float, **figures: Any) -> dict[str, Any]:
    rest = {"matmul_share": 0.5, "step_time_ratio": None, "peak_bytes": 100}
    return {"name": name, "kind": "pack", "trial_steps_per_s": rate, **rest, **figures}


def _results() -> dict[str, Any]:
    """Return results in which only SmolLM2's ratio to processes is too low."""
    both = {"ratio_to_plain": 31.0, "ratio_to_processes": 4.0}
    slow = {"ratio_to_plain": 1.0, "ratio_to_processes": 1.0}
    plain = {"name": "plain loop", "kind": "plain", "trial_steps_per_s": 999.0}
    smollm2 = [plain, _row("pack of 8", 90, **slow), _row("pack of 32", 200, **both)]
    return {
        "smollm2": {"rows": smollm2, "search": {"ratio": 3.0}},
        "gpt2": {"rows": [_row("pack of 32", 300, **both)]},
        "checkpointing": {"rows": [_row("pack of 32", 150, peak_bytes=40)]},
        "ranks": {"rows": [], "mixed_rank_ratio": 0.97},
        "designs": {"rows": [_row("a", 1, step_time_ratio=1.25), _row("b", 1, step_time_ratio=1)]},
    }


def test_steps_fit_into_the_time_and_have_names_of_their_own(tmp_path: Path) -> None:
    plan = steps("text", "tiny", tmp_path)
    assert sum(step.limit for step in plan) <= TOTAL_S
    assert len({step.name for step in plan}) == len(plan)


def test_commands_are_understood(tmp_path: Path) -> None:
    """Every option exists, and benchmarks pass the checks before any compute."""
    commands = [
        s.command[3:] for s in steps("text", "tiny", tmp_path) if "hylorada" in s.command[2]
    ]
    assert len(commands) == 6
    for command in commands:
        args = parse(command)
        if command[0] == "bench":
            fields = {f: getattr(args, f) for f in ("shape", "packs", "ranks", "repeats", "steps")}
            check(BenchOptions(**fields, parts=args.rows, search=args.search))


def test_dry_run_lists_the_steps_with_their_limits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wikitext-2", "--dry-run"]) == 0
    *listed, last = capsys.readouterr().out.splitlines()
    plan = steps("wikitext-2", "smollm2-135m", Path("gpu-check").absolute())
    assert [line.split()[:3] for line in listed] == [
        [str(s.limit), "s", f"{s.name}:"] for s in plan
    ]
    assert last.split()[0] == str(sum(s.limit for s in plan))
    assert not Path("gpu-check").exists()


def test_without_a_gpu_nothing_is_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["text", f"--output={tmp_path / 'out'}"]) == 2
    assert capsys.readouterr().out == "no GPU found\n"
    assert not list(tmp_path.iterdir())


def test_folder_of_an_earlier_check_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(SystemExit, match="2"):
        main(["text", f"--output={tmp_path}"])
    assert "exists; name another folder with --output" in capsys.readouterr().err


def test_step_that_runs_out_of_time_ends_with_its_processes(tmp_path: Path) -> None:
    sleeper = "import subprocess, sys; subprocess.run(['sleep', '77.25'])"
    code, seconds = run(Step("slow", 1, (sys.executable, "-c", sleeper)), tmp_path)
    assert code is None
    assert 1 <= seconds < 60
    time.sleep(0.2)
    commands = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"])]
    assert ["sleep", "77.25"] not in commands


def test_output_and_exit_code_of_a_step_are_kept(tmp_path: Path) -> None:
    code, _ = run(Step("x", 60, (sys.executable, "-c", "print('said'); exit(3)")), tmp_path)
    assert code == 3
    assert (tmp_path / "x.txt").read_text() == "said\n"


def test_table_compares_the_fastest_pack_with_what_is_expected() -> None:
    lines, reached = table(_results())
    found = {f.name: float(f.read(_results())) for f in FIGURES}
    assert not reached
    assert [line.split("  ")[0] for line in lines if "MISSED" in line] == [
        "SmolLM2, over processes"
    ]
    assert found["SmolLM2, fastest pack over the plain loop"] == 31
    assert found["checkpointing, peak memory over without"] == pytest.approx(40 / 100)
    assert found["checkpointing, trial-steps/s over without"] == pytest.approx(150 / 200)
    assert found["slowest design, step time over LoRA"] == 1.25
    assert len(lines) == len(FIGURES) + 2


@pytest.mark.parametrize("lost", ["smollm2", "ranks", "checkpointing"])
def test_step_without_results_costs_its_own_figures(lost: str) -> None:
    results = {name: values for name, values in _results().items() if name != lost}
    lines, reached = table(results)
    assert not reached
    assert any("not there" in line for line in lines)
    assert next(line for line in lines if line.startswith("GPT-2, over")).split()[-1] == "4"


def test_check_ends_well_only_if_all_steps_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results = _results()
    results["smollm2"]["rows"][-1]["ratio_to_processes"] = 5.5
    monkeypatch.setattr(gpu_check, "results_of", lambda _folder: results)
    codes = [
        gpu_check._measure([Step("x", 60, (sys.executable, "-c", f"exit({end})"))], tmp_path / end)
        for end in ("0", "3")
    ]
    assert codes == [0, 1]
