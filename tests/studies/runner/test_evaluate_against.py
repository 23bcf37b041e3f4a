"""`hylorada evaluate`: its intervals, and two adapters compared on the same blocks."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from hylorada import (
    Adapter,
    HyLoRADAConfig,
    HyLoRADAModel,
    Pack,
    build_blocks,
    evaluate,
    load_adapter,
    load_base,
    load_text,
    load_tokenizer,
)
from hylorada.config import LandmarkBucketing
from studies.cli.commands import main
from studies.reporting.export import RECORD
from studies.statistics.differences import Floats

SIZE, BLOCKS = 32, 12
OPTIONS = (f"--block-size={SIZE}", f"--blocks={BLOCKS}")


@pytest.fixture(scope="module")
def adapters(
    scramble: Callable[..., Adapter], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Return two saved adapters of the built-in base with different landmarks and ranks."""
    folders = []
    kinds: tuple[tuple[int, LandmarkBucketing], ...] = ((2, "fixed"), (4, "learnable"))
    for rank, bucketing in kinds:
        config = HyLoRADAConfig(
            r=rank, landmark_bucketing=bucketing, num_buckets=4, max_positions=SIZE
        )
        model = HyLoRADAModel(load_base("tiny"), config)
        scramble(model.adapter, seed=rank)
        folders.append(tmp_path_factory.mktemp(bucketing))
        model.save_pretrained(folders[-1])
    return folders[0], folders[1]


def _measured(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["evaluate", *OPTIONS, *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def _block_losses(folder: Path) -> Floats:
    """Return [N] losses per token of an adapter, on the first blocks of the built-in text."""
    base, tokenizer = load_base("tiny"), load_tokenizer("tiny")
    text = load_text("pydocs").splits["test"]
    blocks = build_blocks(text, tokenizer, SIZE, split="test").head(BLOCKS)
    evaluation = evaluate(Pack(base), [load_adapter(base, folder)], blocks)[0]
    return np.asarray(evaluation.block_nll / (SIZE - 1))


def test_intervals_are_students_over_the_blocks(
    adapters: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    measured = _measured(capsys, f"--adapter={adapters[0]}")
    nll = _block_losses(adapters[0])
    low, high = stats.t.interval(0.95, BLOCKS - 1, nll.mean(), stats.sem(nll))
    assert measured["nll"] == pytest.approx(nll.mean())
    assert measured["nll_error"] == pytest.approx(stats.sem(nll))
    assert (measured["nll_low"], measured["nll_high"]) == pytest.approx((low, high))
    assert (measured["ppl_low"], measured["ppl_high"]) == pytest.approx(
        (math.exp(low), math.exp(high))
    )
    assert measured["interval_over"] == "independent"


def test_difference_is_paired_by_block(
    adapters: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = adapters
    measured = _measured(capsys, f"--adapter={ours}", f"--against={theirs}")
    found = measured["difference"]
    expected = stats.ttest_rel(_block_losses(ours), _block_losses(theirs))
    low, high = expected.confidence_interval(0.95)
    assert found["p"] == pytest.approx(expected.pvalue)
    assert (found["nll_low"], found["nll_high"]) == pytest.approx((low, high))
    assert found["ppl_percent"] == pytest.approx(
        100 * (measured["ppl"] / measured["against"]["ppl"] - 1)
    )
    assert found["ppl_percent_low"] == pytest.approx(100 * math.expm1(low))


def test_each_is_measured_as_it_is_alone(
    adapters: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = adapters
    pair = _measured(capsys, f"--adapter={ours}", f"--against={theirs}")
    alone = _measured(capsys, f"--adapter={theirs}")
    assert {k: pair[k] for k in alone} == _measured(capsys, f"--adapter={ours}")
    assert pair["against"] == {k: alone[k] for k in pair["against"]}


def test_adapter_does_not_differ_from_itself(
    adapters: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = adapters[0]
    assert main(["evaluate", f"--adapter={adapter}", f"--against={adapter}", *OPTIONS]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"{adapter} against {adapter}: +0.000 % PPL [+0.000, +0.000], NLL +0.000000 "
        "(standard error 0.000000, p = 1): no difference is shown"
    )


def test_one_block_gives_no_interval(
    adapters: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (f"--adapter={adapters[0]}", f"--against={adapters[1]}", "--blocks=1")
    measured = _measured(capsys, *arguments)
    assert measured["nll_error"] is None
    assert sorted(measured["difference"]) == ["nll", "ppl_percent"]


def _refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["evaluate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_second_adapter_needs_a_first(
    adapters: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    message = "--against compares two adapters; name the first one with --adapter"
    assert message in _refused(capsys, f"--against={adapters[0]}")


@pytest.mark.parametrize("field", ["model", "model_fingerprint", "model_config_fingerprint"])
def test_adapters_of_different_bases_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str
) -> None:
    for name, value in (("a", "tiny"), ("b", "gpt2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / RECORD).write_text(json.dumps({field: value}))
    err = _refused(capsys, f"--adapter={tmp_path / 'a'}", f"--against={tmp_path / 'b'}")
    assert err.endswith("can't be compared: their bases differ, tiny and gpt2\n")


def test_adapters_of_different_tokenizers_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(json.dumps({"model": name}))
    err = _refused(capsys, f"--adapter={tmp_path / 'a'}", f"--against={tmp_path / 'b'}")
    assert err.endswith("can't be compared: their tokenizers differ (tokenizer.json)\n")
