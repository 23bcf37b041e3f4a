"""An export holds the confirmed adapter and a true card, and evaluates as in the study."""

import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from study_runs import FinishedStudy, run_cli

from hylorada import HyLoRADAModel, load_base
from hylorada.training.checkpoint import _checksum
from studies.analysis.results import Results, read_results, write_results
from studies.cli.commands import main

pytestmark = pytest.mark.timeout(600)

ARMS = ("baseline", "fixed", "learnable")


@pytest.fixture(scope="session")
def results(finished: FinishedStudy) -> Results:
    return read_results(finished.folder / "results.json")


@pytest.fixture(scope="session")
def exported(finished: FinishedStudy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The learnable arm's second seed, by the real command line."""
    output = tmp_path_factory.mktemp("export") / "the adapter"
    arguments = (
        f"--storage={finished.storage}",
        "--arm=learnable",
        "--seed=1",
        f"--output={output}",
    )
    done = run_cli("export", finished.name, *arguments)
    assert done.code == 0, done.err
    assert _run(finished, "learnable", 1) in done.out
    return output


@pytest.fixture
def copy(finished: FinishedStudy, tmp_path: Path) -> Path:
    """A storage folder with the finished study, to damage."""
    shutil.copytree(finished.folder, tmp_path / "studies" / finished.name)
    return tmp_path


def _run(finished: FinishedStudy, arm: str, seed: int) -> str:
    found = read_results(finished.folder / "results.json")
    return next(a.runs[seed] for a in found.arms if a.arm == arm)


def _best_on_validation(finished: FinishedStudy) -> str:
    """The arm whose confirm runs' last reports have the lowest mean loss."""
    means = {}
    for arm in ARMS:
        names = [_run(finished, arm, seed) for seed in (0, 1)]
        lines = [
            (finished.folder / "trials" / n / "reports.jsonl").read_text().splitlines()[-1]
            for n in names
        ]
        means[arm] = np.mean([json.loads(line)["metrics"]["eval/nll"] for line in lines])
    return min(means, key=lambda a: float(means[a]))


def _stored_ppl(finished: FinishedStudy, arm: str, seed: int) -> float:
    losses = np.load(finished.folder / "trials" / _run(finished, arm, seed) / "test_block_nll.npy")
    return float(np.exp(losses.sum() / (len(losses) * 31)))


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, captured = main(arguments), capsys.readouterr()
    assert (code, captured.err) == (0, "")
    values: dict[str, Any] = json.loads(captured.out)
    return values


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("arm", ARMS)
def test_exported_adapter_has_the_perplexity_of_its_confirm_run(
    finished: FinishedStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str], arm: str, seed: int
) -> None:
    expected = _stored_ppl(finished, arm, seed)
    arguments = (
        f"--storage={finished.storage}",
        f"--arm={arm}",
        f"--seed={seed}",
        f"--output={tmp_path}",
        "--json",
    )
    found = _json(capsys, "export", finished.name, *arguments)
    assert found["test_ppl"] == pytest.approx(expected, rel=1e-12)
    assert (found["arm"], found["seed"], found["output"]) == (arm, seed, str(tmp_path))
    measured = _json(capsys, "evaluate", f"--adapter={tmp_path}", "--json")
    assert measured["ppl"] == pytest.approx(expected, rel=1e-6)
    assert measured["blocks"] == 40


def test_exported_adapter_is_measured_in_a_fresh_process(
    finished: FinishedStudy, exported: Path
) -> None:
    done = run_cli("evaluate", f"--adapter={exported}")
    assert done.code == 0
    assert all(line.startswith("hylorada: text ") for line in done.err.splitlines())
    found = re.search(r"PPL ([\d.]+)", done.out)
    assert found is not None
    assert float(found[1]) == pytest.approx(
        _stored_ppl(finished, "learnable", 1), rel=1e-6, abs=1e-4
    )


def test_defaults_are_the_best_arm_and_the_first_seed(
    finished: FinishedStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = _json(
        capsys,
        "export",
        finished.name,
        f"--storage={finished.storage}",
        f"--output={tmp_path / 'new'}",
        "--json",
    )
    assert found["seed"] == 0
    assert found["arm"] == _best_on_validation(finished)


def test_test_split_has_no_say_in_what_is_exported(
    finished: FinishedStudy, copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The arm of the best test figures is another here, as it may be by chance."""
    path = copy / "studies" / finished.name / "results.json"
    results = read_results(path)
    chosen = _best_on_validation(finished)
    arms = [replace(a, ppl=9999.0 if a.arm == chosen else 1.0) for a in results.arms]
    write_results(path, replace(results, arms=tuple(arms)))
    arguments = (f"--storage={copy}", f"--output={tmp_path / 'new'}", "--json")
    assert _json(capsys, "export", finished.name, *arguments)["arm"] == chosen


def _read_checkpoint(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    with safe_open(path, framework="pt") as file:
        return load_file(path), file.metadata()


def _parameters(
    tensors: dict[str, torch.Tensor], metadata: dict[str, str]
) -> dict[str, torch.Tensor]:
    """Return a checkpoint's parameters: views of its vectors, one a group, in layout order."""
    layout = json.loads(metadata["layout"])
    found: dict[str, torch.Tensor] = {}
    places = dict.fromkeys(("matrices", "scalars", "boundaries"), 0)
    for name, shape in layout.items():
        group = (
            "boundaries"
            if name.endswith("boundaries")
            else "matrices"
            if len(shape) >= 2
            else "scalars"
        )
        start, places[group] = places[group], places[group] + math.prod(shape)
        found[name] = tensors[f"{group}/values"][start : places[group]].view(shape)
    assert all(places[g] == len(tensors.get(f"{g}/values", ())) for g in places)
    return found


def test_exported_tensors_are_the_checkpoints_bits(finished: FinishedStudy, exported: Path) -> None:
    folder = finished.folder / "trials" / _run(finished, "learnable", 1)
    stored = _parameters(*_read_checkpoint(folder / "checkpoint.safetensors"))
    lora, other = (
        load_file(exported / f) for f in ("adapter_model.safetensors", "hylorada_model.safetensors")
    )
    assert len(stored) == len(lora) + len(other)
    for name, tensor in other.items():
        assert torch.equal(tensor, stored[name])
    for name, tensor in lora.items():
        path = name.removeprefix("base_model.model.").removesuffix(".weight")
        path, _, factor = path.rpartition(".")
        assert torch.equal(tensor, stored[f"lora.{path.replace('.', '/')}.{factor}"])


def test_card_says_what_the_results_say(
    finished: FinishedStudy, results: Results, exported: Path
) -> None:
    card = (exported / "README.md").read_text(encoding="utf-8")
    comparison = results.comparison("learnable", "baseline")
    assert comparison is not None
    ends = f"[{comparison.low:+.2f}, {comparison.high:+.2f}]"
    interval = f"{comparison.change:+.2f} % PPL, 95 % interval {ends}"
    assert f"`learnable` vs `baseline`: {interval}" in card
    assert results.verdict in card
    assert f"**{_stored_ppl(finished, 'learnable', 1):,.4f}**" in card
    provenance = results.provenance
    for expected in (
        finished.name,
        "pydocs",
        "32 tokens",
        "0, 1; this one 1",
        f"torch {provenance['version.torch']}",
    ):
        assert expected in card
    for key in ("model_fingerprint", "data_fingerprint", "git_commit"):
        if key in provenance:
            assert f"`{provenance[key]}`" in card
    assert "which has no position bias and no landmarks and so computes the LoRA part alone" in card
    command = re.search(r"`hylorada (evaluate .*)` measures", card)
    assert command is not None
    assert shlex.split(command[1]) == ["evaluate", "--adapter", "."]
    _, head, _ = card.split("---\n", 2)
    assert yaml.safe_load(head)["library_name"] == "peft"


def test_code_of_the_card_runs_and_gives_the_two_models(exported: Path, toy_model: str) -> None:
    card = (exported / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)\n```", card, flags=re.S)
    assert len(blocks) == 2
    ids = torch.arange(1, 25)[None]
    model = HyLoRADAModel.from_pretrained(load_base(toy_model), exported).eval()
    whole = model(ids).logits[0, -1, :5].tolist()
    # The LoRA part by hand: W + 16/sqrt(8) B A in each adapted module of a plain base.
    base, tensors = load_base(toy_model), load_file(exported / "adapter_model.safetensors")
    with torch.no_grad():
        for name in (n for n in tensors if "lora_A" in n):
            path = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            delta = tensors[name.replace("lora_A", "lora_B")] @ tensors[name]
            base.get_parameter(f"{path}.weight").add_(delta, alpha=16 / 8**0.5)
    lora = base(ids).logits[0, -1, :5].tolist()
    tail = "\nimport torch\nids = torch.arange(1, 25)[None]\n"
    tail += "print(model(input_ids=ids).logits[0, -1, :5].tolist())"
    for block, expected in zip(blocks, (whole, lora), strict=True):
        command = [sys.executable, "-c", block + tail]
        run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=exported)
        assert run.returncode == 0, run.stderr
        assert json.loads(run.stdout) == pytest.approx(expected, abs=1e-5)
    assert whole != pytest.approx(lora, abs=1e-5)


def test_options_of_evaluate_stand_above_the_export(
    exported: Path, toy_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = f"--adapter={exported}"
    assert _json(capsys, "evaluate", adapter, "--blocks=3", "--json")["blocks"] == 3
    every = _json(capsys, "evaluate", f"--model={toy_model}", "--block-size=32", "--json")["blocks"]
    assert _json(capsys, "evaluate", adapter, "--block-size=32", "--json")["blocks"] == every > 40
    (tmp_path / "text.txt").write_text("one two three four five six seven eight nine ten\n" * 200)
    assert (
        _json(capsys, "evaluate", adapter, f"--data={tmp_path / 'text.txt'}", "--json")["blocks"]
        > 1
    )
    bare = tmp_path / "bare"
    shutil.copytree(exported, bare)
    (bare / "export.json").unlink()
    arguments = ("--block-size=32", "--blocks=40", f"--model={toy_model}", "--json")
    same = _json(capsys, "evaluate", f"--adapter={bare}", *arguments)
    assert same == _json(capsys, "evaluate", adapter, "--blocks=40", "--json")
    assert same["ppl"] != _json(capsys, "evaluate", *arguments)["ppl"]


def test_other_base_or_text_than_the_exports_is_told(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(exported, tmp_path / "moved")
    path = tmp_path / "moved" / "export.json"
    changes = {"model_fingerprint": "0" * 16, "data_fingerprint": "1" * 16}
    changes["model_config_fingerprint"] = "2" * 16
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    assert main(["evaluate", f"--adapter={path.parent}", "--json"]) == 0
    err = capsys.readouterr().err
    assert (
        "the adapter was trained on another base: fingerprint 0000000000000000, this one has "
        in err
    )
    assert (
        "the adapter was trained on a base of another config.json: fingerprint 2222222222222222, "
        "this one " in err
    )
    assert (
        "the adapter was trained on another text: fingerprint 1111111111111111, this one has "
        in err
    )


def test_export_again_replaces_the_export(
    finished: FinishedStudy, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "again"
    shutil.copytree(exported, output)
    _json(
        capsys,
        "export",
        finished.name,
        f"--storage={finished.storage}",
        "--arm=fixed",
        f"--output={output}",
        "--json",
    )
    measured = _json(capsys, "evaluate", f"--adapter={output}", "--json")
    assert measured["ppl"] == pytest.approx(_stored_ppl(finished, "fixed", 0), rel=1e-6)


def _refused(capsys: pytest.CaptureFixture[str], message: str, *arguments: str) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert re.search(message, captured.err), captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--arm=learnabel", "arm 'learnabel' has no confirmed winner; did you mean 'learnable'"),
        ("--seed=2", r"seed 2 of arm '\w+' has not finished; one of: 0, 1"),
    ],
)
def test_unknown_arm_and_seed_are_refused(
    finished: FinishedStudy,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    option: str,
    message: str,
) -> None:
    output = tmp_path / "new"
    _refused(
        capsys,
        message,
        "export",
        finished.name,
        f"--storage={finished.storage}",
        option,
        f"--output={output}",
    )
    assert not output.exists()


def test_unfinished_and_unknown_studies_are_refused(
    finished: FinishedStudy, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / "studies" / finished.name / "results.json").unlink()
    options = (f"--storage={copy}", f"--output={copy / 'new'}")
    _refused(capsys, "has not finished", "export", finished.name, *options)
    _refused(capsys, "no study 'x' has been run", "export", "x", *options)


def test_places_that_hold_something_else_are_left_alone(
    finished: FinishedStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    no_export = f"is not empty and holds no export of study '{finished.name}'"
    for output, message in ((tmp_path, no_export), (tmp_path / "thesis.tex", "is a file")):
        _refused(
            capsys,
            message,
            "export",
            finished.name,
            f"--storage={finished.storage}",
            f"--output={output}",
        )
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    assert (tmp_path / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize("record", [None, {"study": "another"}])
def test_other_adapters_are_left_alone(
    finished: FinishedStudy,
    exported: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    record: dict[str, str] | None,
) -> None:
    """One that was saved from Python, and an export of another study."""
    output = tmp_path / "mine"
    shutil.copytree(exported, output)
    (output / "export.json").unlink()
    if record is not None:
        (output / "export.json").write_text(json.dumps(record))
    before = {p.name: p.read_bytes() for p in output.iterdir()}
    message = f"is not empty and holds no export of study '{finished.name}'"
    _refused(
        capsys,
        message,
        "export",
        finished.name,
        f"--storage={finished.storage}",
        f"--output={output}",
    )
    assert {p.name: p.read_bytes() for p in output.iterdir()} == before


@pytest.mark.parametrize(
    "arguments", [("export", "x", "--output="), ("evaluate", "--adapter="), ("list", "--storage=")]
)
def test_no_text_is_no_folder(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "must name a folder, got ''" in capsys.readouterr().err


def _write_checkpoint(
    path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]
) -> None:
    """One whose checksum is right, so that what else is wrong with it is seen."""
    save_file(tensors, path, metadata={**metadata, "crc32": _checksum(tensors, metadata)})


def _lose_checkpoint(folder: Path, name: str) -> None:
    (folder / "trials" / name / "checkpoint.safetensors").unlink()


def _cut_checkpoint(folder: Path, name: str) -> None:
    path = folder / "trials" / name / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def _clear_updates(folder: Path, name: str) -> None:
    path = folder / "trials" / name / "checkpoint.safetensors"
    tensors, metadata = _read_checkpoint(path)
    for name, parameter in _parameters(tensors, metadata).items():
        if name.endswith("lora_B"):
            parameter.zero_()
    _write_checkpoint(path, tensors, metadata)


def _take_earlier_checkpoint(folder: Path, name: str) -> None:
    path = folder / "trials" / name / "checkpoint.safetensors"
    tensors, metadata = _read_checkpoint(path)
    _write_checkpoint(path, tensors, {**metadata, "step": "6"})


def _swap_checkpoints(folder: Path, name: str) -> None:
    path, other = (
        folder / "trials" / n / "checkpoint.safetensors" for n in (name, name[:-1] + "1")
    )
    ours = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(ours)


def _swap_checkpoints_of_an_earlier_version(folder: Path, name: str) -> None:
    _swap_checkpoints(folder, name)
    path = folder / "trials" / name / "checkpoint.safetensors"
    tensors, metadata = _read_checkpoint(path)
    extra = json.loads(metadata["extra"])
    del extra["job"]
    _write_checkpoint(path, tensors, {**metadata, "extra": json.dumps(extra)})


def _change_base(folder: Path, _: str, part: str = "model_fingerprint") -> None:
    path = folder / "results.json"
    values = json.loads(path.read_text())
    assert len(values["provenance"][part]) == 16
    values["provenance"][part] = "0" * 16
    del values["seal"]
    path.write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            _lose_checkpoint,
            r"checkpoint\.safetensors is missing; restore it from a backup, or export another seed",
        ),
        (_cut_checkpoint, r"checkpoint\.safetensors is damaged"),
        (
            _swap_checkpoints,
            r"checkpoint\.safetensors is damaged "
            r"\(it does not hold the end of fixed-\S+-confirm-00\)",
        ),
        (
            _swap_checkpoints_of_an_earlier_version,
            r"damaged \(it does not hold the end of fixed-\S+-confirm-00\)",
        ),
        (_clear_updates, "adapter has no effect"),
        (_take_earlier_checkpoint, "holds step 6, but the run ended at 8"),
        (
            _change_base,
            "is not the study's: weights of fingerprint [0-9a-f]{16}, was 0{16}$",
        ),
        (
            partial(_change_base, part="model_config_fingerprint"),
            "is not the study's: config.json of fingerprint ",
        ),
    ],
)
def test_damaged_study_is_refused_and_nothing_is_written(
    finished: FinishedStudy,
    copy: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path, str], None],
    message: str,
) -> None:
    damage(copy / "studies" / finished.name, _run(finished, "fixed", 0))
    options = (f"--storage={copy}", "--arm=fixed", f"--output={copy / 'new'}")
    _refused(capsys, message, "export", finished.name, *options)
    assert not (copy / "new").exists()


def test_evaluate_refuses_an_adapter_that_is_not_there_or_does_not_fit(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _refused(
        capsys,
        "nowhere': no such folder",
        "evaluate",
        f"--adapter={tmp_path / 'nowhere'}",
        "--block-size=32",
    )
    arguments = (f"--adapter={exported}", "--model=tiny", "--blocks=1")
    _refused(capsys, r"hidden_size 32, this one has \d+", "evaluate", *arguments)
