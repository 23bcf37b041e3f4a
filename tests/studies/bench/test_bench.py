"""The benchmark: rows on a toy base, their figures, and bad options. No timing is asserted."""

import io
import json
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from rich.console import Console
from study_runs import Command, run_cli, wait_until

from hylorada import InputError, load_base, load_tokenizer
from hylorada.config import LandmarkDesign
from studies.bench.designs import DESIGNS, LORA, trial_adapter
from studies.bench.inputs import load_blocks
from studies.bench.ladder import Ladder, spread
from studies.bench.loops import matmul_parameters, step_operations
from studies.bench.measure import Memory, cpu_memory
from studies.bench.options import BenchOptions, check
from studies.bench.result import Bench, Row
from studies.bench.run import _memory
from studies.bench.table import print_bench
from studies.cli.commands import main

_TINY = ("--block-size=16", "--batch-size=1", "--r=2", "--steps=2", "--repeats=1")
_LAYERS, _WIDTH, _LANDMARKS = 2, 32, 8  # of the toy model and of every design
_BANK = _LANDMARKS * _WIDTH
_ADDED = {  # trained numbers beside LoRA's; blocks of 16 tokens have 16 buckets
    "position bias": 64 + _LAYERS,
    "DoRA": _LAYERS * 4 * _WIDTH,
    "position_adaptive fixed": 2 * _BANK + 16 * _LANDMARKS + 1,
    "position_adaptive soft": 2 * _BANK + 16 * _LANDMARKS + 1,
    "position_adaptive learnable": 2 * _BANK + 16 * _LANDMARKS + 1 + 15,
    "global": 2 * _BANK + 1,
    "per_layer": _LAYERS * (2 * _BANK + 1),
    "per_layer shared": _BANK + _LAYERS * (_BANK + 1),
    "per_layer one gate": 2 * _BANK + 1,
    "attention": _LAYERS * (2 * _BANK + 1),
}

pytestmark = [
    pytest.mark.timeout(600),  # every row once, and two searches
    pytest.mark.skipif(
        torch.cuda.is_available(), reason="loss differences are exact on a CPU in fp32"
    ),
]


@pytest.fixture(scope="module")
def measured(
    toy_model: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """Return all rows that need no Ray, as JSON, and the file of the profile."""
    folder = tmp_path_factory.mktemp("bench")
    done = run_cli(
        "bench",
        f"--model={toy_model}",
        *_TINY,
        "--packs=1,3",
        "--ranks=4,2",
        "--rows=plain,packs,designs,memory",
        "--json",
        f"--profile={folder / 'p'}",
    )
    assert done.code == 0, done.err
    return json.loads(done.out), folder / "p"


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Return a function that runs a refused command and returns its messages."""
    monkeypatch.chdir(tmp_path)
    for module in ("base_models.finding", "data.hub_text"):
        monkeypatch.setattr(f"hylorada.{module}.hub_is_reachable", lambda: False)

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(["bench", *arguments]) == 2
        said = capsys.readouterr()
        assert not said.out
        assert not list(tmp_path.iterdir())
        return said.err

    return run


def test_rows_come_in_the_order_of_the_table(measured: tuple[dict[str, Any], Path]) -> None:
    cells = [
        (r["name"], r["trials"], r["trial_steps"], len(r["seconds"])) for r in measured[0]["rows"]
    ]
    assert cells == [
        ("plain loop", 1, 2, 1),
        ("pack of 1", 1, 2, 1),
        ("pack of 3", 3, 6, 1),
        *((f"pack of 3, {design}", 3, 6, 1) for design in DESIGNS if design != LORA),
        *((f"pack of 3, r {ranks}", 3, 6, 1) for ranks in ("2", "4", "2,4")),
    ]


def test_a_packed_trial_loses_what_it_loses_alone(measured: tuple[dict[str, Any], Path]) -> None:
    differences = {r["name"]: r["loss_difference"] for r in measured[0]["rows"]}
    assert differences["pack of 1"] == pytest.approx(0, abs=1e-5)
    assert differences["pack of 3"] == pytest.approx(0, abs=1e-5)
    assert differences["pack of 3, r 2,4"] == pytest.approx(0, abs=1e-5)
    assert differences["plain loop"] is None


def test_figures_follow_from_the_raw_numbers(measured: tuple[dict[str, Any], Path]) -> None:
    bench, _ = measured
    rows = {r["name"]: r for r in bench["rows"]}
    plain, pack = rows["plain loop"], rows["pack of 3"]
    rates = {n: r["trial_steps"] / statistics.median(r["seconds"]) for n, r in rows.items()}
    assert pack["ratio_to_plain"] == pytest.approx(rates["pack of 3"] / rates["plain loop"])
    assert plain["ratio_to_plain"] == 1
    assert pack["ratio_to_processes"] is None
    assert pack["tokens_per_s"] == pytest.approx(16 * rates["pack of 3"])
    share = rates["pack of 3"] * bench["step_operations"] / statistics.median(bench["matmul_rates"])
    assert pack["matmul_share"] == pytest.approx(share)
    assert rows["pack of 3, DoRA"]["step_time_ratio"] == pytest.approx(
        rates["pack of 3"] / rates["pack of 3, DoRA"]
    )
    assert (
        rows["pack of 1"]["step_time_ratio"],
        pack["step_time_ratio"],
        plain["step_time_ratio"],
    ) == (1, 1, None)


def test_each_design_trains_as_many_parameters_as_its_formula_says(
    measured: tuple[dict[str, Any], Path],
) -> None:
    rows = measured[0]["rows"]
    lora = _LAYERS * 4 * 2 * (_WIDTH + _WIDTH)  # four projections, r = 2
    assert {r["parameters"] for r in rows if r["design"] == "LoRA" and not r["ranks"]} == {lora}
    ranked = {r["name"]: r["parameters"] for r in rows if r["ranks"]}
    assert ranked == {
        "pack of 3, r 2": lora,
        "pack of 3, r 4": 2 * lora,
        "pack of 3, r 2,4": 2 * lora,
    }
    added = {r["design"]: r["added_parameters"] for r in rows if r["design"] != "LoRA"}
    assert _ADDED.items() <= added.items()
    assert all(
        r["parameters"] == lora + r["added_parameters"] for r in rows if r["added_parameters"]
    )


def test_every_landmark_design_is_compared() -> None:
    setting = check(BenchOptions()).setting
    compared = [trial_adapter(setting, name) for name in DESIGNS]
    assert len(set(compared)) == len(DESIGNS)
    assert {c.landmark_design for c in compared if c.has_landmarks} == set(get_args(LandmarkDesign))
    assert {c.landmark_bucketing for c in compared if c.has_buckets} == {
        "fixed",
        "soft",
        "learnable",
    }
    assert [sum((c.use_dora, c.position_bias, c.has_landmarks)) for c in compared] == [0] + [1] * (
        len(DESIGNS) - 1
    )


@pytest.fixture
def designs() -> Bench:
    """Return three repeats of LoRA and DoRA in packs of 2, and a pack of another size."""
    rows = [
        Row(
            name=f"pack of {k}",
            kind="pack",
            trials=k,
            trial_steps=k,
            seconds=seconds,
            parameters=n,
            design=design,
        )
        for design, k, n, seconds in (
            ("LoRA", 1, 1000, (9.0, 9.0, 9.0)),
            ("LoRA", 2, 1000, (1.0, 4.0, 2.0)),
            ("DoRA", 2, 2300, (2.0, 4.0, 5.0)),
        )
    ]
    setting = {
        "base": "tiny",
        "dtype": "float32",
        "device": "cpu",
        "block_size": 4,
        "batch_size": 2,
        "r": 8,
    }
    provenance = {"device": "a CPU", "cores": 2}
    return Bench(
        setting=setting, provenance=provenance, step_operations=1, matmul_rates=(), rows=rows
    )


def test_step_times_pair_up_by_repeat(designs: Bench) -> None:
    _, lora, dora = designs.rows
    assert designs.design_rows == [lora, dora]
    assert designs.step_time_ratios(lora) == [1, 1, 1]
    assert designs.step_time_ratios(dora) == [2, 1, 2.5]
    figures = designs.figures(dora)
    assert (figures["step_time_ratio"], figures["added_parameters"]) == (2, 1300)


def test_designs_stand_in_a_table_of_their_own(designs: Bench) -> None:
    out = io.StringIO()
    print_bench(designs, Console(file=out, width=120))
    lines = [re.split(r"\s{2,}", line.strip()) for line in out.getvalue().splitlines()]
    assert [line[0] for line in lines[2:4]] == ["pack of 1", "pack of 2"]
    assert lines[4:] == [
        ["designs, pack of 2", "parameters", "step time", "middle half of repeats"],
        ["LoRA", "1,000", "1.000x", "1.000 - 1.000"],
        ["DoRA", "+1,300", "2.000x", "1.500 - 2.250"],
    ]


def test_mixed_ranks_are_compared_with_what_their_trials_take_in_equal_packs() -> None:
    """Trials 0, 1, 2 of ranks 4, 8, 4: in packs of one rank their step takes (2 a + b) / 3."""
    times = {(4,): (3.0, 6.0), (8,): (6.0, 12.0), (4, 8): (4.0, 10.0)}
    rows = [
        Row(
            name=f"pack of 3, r {ranks}",
            kind="pack",
            trials=3,
            trial_steps=3,
            seconds=seconds,
            parameters=1,
            ranks=ranks,
        )
        for ranks, seconds in times.items()
    ]
    bench = Bench(setting={}, provenance={}, step_operations=1, matmul_rates=(), rows=rows)
    assert bench.mixed_rank_ratios() == [1.0, 0.8]
    assert not bench.design_rows
    without = Bench(setting={}, provenance={}, step_operations=1, matmul_rates=(), rows=rows[1:])
    assert without.mixed_rank_ratios() == []


def test_ratio_of_mixed_ranks_follows_from_the_raw_numbers(
    measured: tuple[dict[str, Any], Path],
) -> None:
    bench, _ = measured
    (low,), (high,), (mixed,) = (
        next(r["seconds"] for r in bench["rows"] if r["ranks"] == ranks)
        for ranks in ([2], [4], [2, 4])
    )
    assert bench["mixed_rank_ratio"] == pytest.approx((2 * low + high) / 3 / mixed)
    assert bench["setting"]["ranks"] == [2, 4]


def test_memory_is_that_of_packs_of_growing_size(measured: tuple[dict[str, Any], Path]) -> None:
    memory = measured[0]["memory"]
    assert list(memory["packs"]) == ["1", "8", "16", "32"]
    assert all(m["peak"] >= m["resident"] > 0 for m in memory["packs"].values())
    growth = (memory["packs"]["32"]["peak"] - memory["packs"]["1"]["peak"]) / 31
    assert memory["peak_growth_per_seat"] == pytest.approx(growth)


def test_result_says_where_it_comes_from(measured: tuple[dict[str, Any], Path]) -> None:
    bench, profile = measured
    assert {"device", "cores", "load_average", "git_commit", "version.torch"} <= bench[
        "provenance"
    ].keys()
    assert bench["setting"]["block_size"] == 16
    assert profile.read_text().startswith("one step of a pack of 3")
    assert "aten::" in profile.read_text()


@pytest.mark.slow
def test_processes_stand_beside_packs(toy_model: str) -> None:
    options = ("--rows=plain,processes,packs", "--packs=2", "--processes=2")
    done = run_cli("bench", f"--model={toy_model}", *_TINY, *options, "--json")
    assert done.code == 0, done.err
    rows = {r["name"]: r for r in json.loads(done.out)["rows"]}
    assert (rows["2 processes"]["trials"], rows["2 processes"]["trial_steps"]) == (2, 4)
    assert rows["2 processes"]["peak_bytes"] > rows["plain loop"]["peak_bytes"]
    rates = {n: r["trial_steps"] / statistics.median(r["seconds"]) for n, r in rows.items()}
    assert rows["pack of 2"]["ratio_to_processes"] == pytest.approx(
        rates["pack of 2"] / rates["2 processes"]
    )


@pytest.mark.slow
def test_report_and_search_are_timed_whole(toy_model: str, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    options = ("--rows=report", "--search", "--trials=2", "--search-steps=2", f"--json={path}")
    done = run_cli("bench", f"--model={toy_model}", *_TINY, *options, timeout=550)
    assert done.code == 0, done.err
    bench = json.loads(path.read_text())
    report, search = bench["report"], bench["search"]
    extra = report["seconds_with"] - report["seconds_without"]
    assert report["cost_percent"] == pytest.approx(100 * extra / report["seconds_without"])
    assert (search["trials"], search["steps"]) == (2, 2)
    assert search["ratio"] == pytest.approx(
        search["processes"]["seconds"] / search["host"]["seconds"]
    )
    assert "trials/h" in done.out


@pytest.mark.faults
@pytest.mark.parametrize("search", ["processes", "host"])
def test_bench_stopped_in_a_search_leaves_no_process(toy_model: str, search: str) -> None:
    process = Command(
        "bench", f"--model={toy_model}", *_TINY, "--rows=plain", "--search", "--trials=2"
    )
    assert process.stderr is not None
    while not (line := process.stderr.readline()).endswith(f"{search}\n"):
        assert line, "it ended before its search"
    time.sleep(6)  # Ray starts, or has started
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err.splitlines()[-1]) == (130, "interrupted")
    wait_until(lambda: not process.pids(), 20)


def test_bad_options_are_told_all_at_once(refused: Callable[..., str]) -> None:
    said = refused(
        "--steps=0", "--packs=1,x", "--rows=plain,pakcs", "--dtype=float23", "--model=./nowhere"
    )
    assert said.splitlines() == [
        "hylorada: steps must be at least 1, got 0",
        "hylorada: dtype 'float23' is unknown; did you mean 'float32'?",
        "hylorada: model './nowhere': no such folder",
        "hylorada: packs must be sizes such as 1,2,4, got '1,x'",
        "hylorada: rows: unknown 'pakcs'; did you mean 'packs'?",
    ]


def test_bad_ranks_are_told(refused: Callable[..., str]) -> None:
    assert refused("--ranks=8,8").splitlines() == [
        "hylorada: ranks must be two or more, such as 4,8,16, got '8,8'"
    ]
    assert refused("--ranks=0,4,8", "--packs=2", "--rows=plain").splitlines() == [
        "hylorada: ranks: r must be at least 1, got 0",
        "hylorada: ranks are compared in packs; add packs to the rows",
        "hylorada: ranks: a pack of 2 can't mix 3 ranks; measure a larger pack",
    ]


def test_shape_takes_neither_model_nor_data(refused: Callable[..., str]) -> None:
    said = refused("--shape=gpt2", "--model=tiny", "--data=pydocs", "--block-size=2048")
    assert "model 'tiny' and shape 'gpt2' can't be given together" in said
    assert "data 'pydocs' can't be used with shape" in said
    assert "block_size 2048 exceeds model limit 1024 (gpt2)" in said


def test_json_into_a_folder_that_is_missing_is_refused(refused: Callable[..., str]) -> None:
    assert (
        refused("--json=nowhere/b.json")
        == "hylorada: json 'nowhere/b.json': its folder does not exist\n"
    )


def test_search_needs_processes(refused: Callable[..., str]) -> None:
    assert (
        refused("--search", "--no-processes")
        == "hylorada: search needs processes; leave out --no-processes\n"
    )


def test_packs_are_powers_of_two_up_to_the_largest() -> None:
    assert check(BenchOptions(max_pack=6)).packs == (1, 2, 4)
    assert check(BenchOptions(packs="8,2,2", max_pack=4)).packs == (2,)
    with pytest.raises(InputError, match=r"^packs '16': none is at most max_pack 8$"):
        check(BenchOptions(packs="16", max_pack=8))


def test_chats_are_written_by_the_template_of_the_base(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chats = tmp_path / "chats.jsonl"
    row = {"messages": [{"role": "user", "content": "Hello, how do you do? " * 4}]}
    chats.write_text(f"{json.dumps(row)}\n" * 40)
    with pytest.raises(InputError, match="the tokenizer of the base has no chat template"):
        check(BenchOptions(data=str(chats)))
    tokenizer = load_tokenizer("tiny")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    for module in ("options", "inputs"):
        monkeypatch.setattr(f"studies.bench.{module}.load_tokenizer", lambda _: tokenizer)
    plan = check(BenchOptions(data=str(chats), block_size=16))
    assert load_blocks(plan.setting)["train"].num_blocks > 0


def test_operations_count_the_tied_head_once(toy_model: str) -> None:
    base = load_base(toy_model)
    assert matmul_parameters(base) == base.num_parameters()
    setting = check(BenchOptions(model=toy_model, block_size=16, batch_size=3)).setting
    assert step_operations(base, setting) == 4 * base.num_parameters() * 48


def test_median_of_repeats_is_what_counts() -> None:
    row = Row(
        name="pack of 2",
        kind="pack",
        trials=2,
        trial_steps=10,
        seconds=(1.0, 5.0, 2.0),
        parameters=1,
    )
    setting = {"block_size": 4, "batch_size": 2}
    bench = Bench(
        setting=setting, provenance={}, step_operations=100, matmul_rates=(1000.0,), rows=(row,)
    )
    assert bench.figures(row)["trial_steps_per_s"] == 5
    assert bench.figures(row)["matmul_share"] == 0.5


@pytest.mark.parametrize(("whole", "expected"), [(1, [0]), (3, [0, 1, 2]), (16, [0, 4, 8, 12])])
def test_spread_takes_evenly(whole: int, expected: list[int]) -> None:
    assert spread(whole, 4) == expected


def test_memory_is_measured_of_all_packs_below_the_one_that_did_not_fit(
    toy_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A design that does not fit says nothing about packs without it."""
    plan = check(BenchOptions(model=toy_model, block_size=16, packs="2,16", parts="packs,designs"))
    ladder = Ladder(plan, np.zeros((4, 16), dtype=np.int32), lambda _: None)

    def measured(trials: int, design: str = LORA, *_: Any) -> Memory | None:
        return Memory(trials, trials) if trials < 16 and design == LORA else None

    monkeypatch.setattr(ladder, "measure_memory", measured)
    monkeypatch.setattr("studies.bench.ladder.time_steps", lambda *_: 0.0)
    ladder._warm_up()
    assert "pack of 2, DoRA: does not fit in memory" in ladder.notes
    assert list(_memory(ladder, lambda _: None)["packs"]) == ["1", "8"]


def test_pack_that_a_process_has_no_memory_for_has_none(
    toy_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = check(BenchOptions(model=toy_model, block_size=16)).setting

    class Full:
        def __init__(self, *_: Any, **__: Any) -> None: ...
        def __enter__(self) -> "Full":
            return self

        def __exit__(self, *_: Any) -> None: ...
        def submit(self, *_: Any) -> Any:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("studies.bench.measure.ProcessPoolExecutor", Full)
    assert cpu_memory(setting, np.zeros((4, 16), dtype=np.int32), 1, LORA) is None
