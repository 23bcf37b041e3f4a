"""Printed and recorded facts about the text, and folders older than the separator field."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from hylorada import InputError
from studies.cli.commands import main
from studies.learnable_bucketing import STUDY
from studies.process.options import Options
from studies.reporting.export import RECORD
from studies.runner.evaluate import Request
from studies.runner.inputs import prepare
from studies.spec.study import Study
from studies.trials.store import Store

_FEW_BUCKETS = {"choice": [4, 8]}


def _study(**changes: object) -> Study:
    arms = {
        name: {
            **arm,
            "space": {
                **arm["space"],
                **({"num_buckets": _FEW_BUCKETS} if name != "baseline" else {}),
            },
        }
        for name, arm in STUDY["arms"].items()
    }
    defaults = {**STUDY["defaults"], "num_buckets": 8}
    return Study.from_dict(
        {**STUDY, "block_size": 32, "defaults": defaults, "arms": arms, **changes}
    )


def _rows(folder: Path) -> str:
    path = folder / "rows.parquet"
    rows = ["A line of a running text, which goes on for a while.\n", "\n"] * 400
    pq.write_table(pa.table({"id": list(range(800)), "text": rows}), path)
    return str(path)


def test_evaluate_tells_what_it_read_before_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = _rows(tmp_path)
    assert main(["evaluate", f"--data={data}", "--block-size=32", "--blocks=2"]) == 0
    first, train, _, test = capsys.readouterr().err.splitlines()
    assert first == (
        f"hylorada: text {data}: column 'text'; rows are lines of one text "
        "(document_separator newline, chosen by auto); begin token <|endoftext|> is not added"
    )
    assert (
        train
        == "hylorada: text train: 1 document, cut from the whole text (rows.parquet; 800 rows)"
    )
    assert "tokens, cut from the whole text (rows.parquet; 800 rows)" in test
    assert main(["evaluate", f"--data={data}", "--block-size=32", "--blocks=2", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    facts = {
        k: json.loads(out)[k]
        for k in ("text_column", "text_delimiter", "document_separator", "begin_token")
    }
    assert facts == dict(zip(facts, ("text", None, "newline", "not added"), strict=True))


def test_study_keeps_what_auto_stood_for(toy_model: str, tmp_path: Path) -> None:
    study = _study(model=toy_model, data=_rows(tmp_path))
    material = prepare(study, Options(storage=tmp_path / "runs"))
    assert material.settled(study).document_separator == "newline"
    assert material.provenance["document_separator"] == "newline"
    assert material.provenance["test_tokens"] > material.provenance["test_blocks"] * 32 - 32
    assert material.text_notes[0].startswith(
        f"text {study.data}: column 'text'; rows are lines of one text"
    )
    fixed = prepare(
        _study(model=toy_model, data=study.data, document_separator="eos"),
        Options(storage=tmp_path / "r"),
    )
    assert material.test_documents is None
    assert len(fixed.test_documents) == fixed.provenance["test_blocks"]
    assert len(np.unique(fixed.test_documents)) > 6
    assert fixed.provenance["test_fingerprint"] != material.provenance["test_fingerprint"]


def test_folder_from_before_the_field_resumes_by_the_old_rule(tmp_path: Path) -> None:
    Store(tmp_path / "s", _study(document_separator="eos")).close()
    path = tmp_path / "s" / "study.json"
    values = json.loads(path.read_text())
    del values["document_separator"], values["seal"], values["id"]
    path.write_text(json.dumps(values))
    Store(tmp_path / "s", _study(document_separator="eos")).close()
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match="document_separator was 'eos', now 'newline'"):
        Store(tmp_path / "s", _study(document_separator="newline"))
    old = {k: v for k, v in _study().to_dict().items() if k != "document_separator"}
    assert Study.from_dict(old).fingerprint() == _study(document_separator="eos").fingerprint()


def test_export_from_before_the_field_is_evaluated_by_the_old_rule(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text(json.dumps({"data": "pydocs", "block_size": 32}))
    assert Request.of(tmp_path, {}).document_separator == "eos"
    assert Request.of(tmp_path, {"data": "pydocs"}).document_separator == "auto"
    (tmp_path / RECORD).write_text(json.dumps({"data": "pydocs", "document_separator": "newline"}))
    assert Request.of(tmp_path, {}).document_separator == "newline"


def test_token_without_an_embedding_is_refused_before_compute(
    toy_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = shutil.copytree(toy_model, tmp_path / "base")
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_tokens(["iterable"])
    tokenizer.save_pretrained(base)
    for name, content in {"train": "some text " * 400, "test": "an iterable " * 400}.items():
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"{name}.txt").write_text(content)
    arguments = (f"--model={base}", f"--data={tmp_path / 'data'}", "--block-size=32")
    table = len(tokenizer) - 1
    message = (
        f"split 'test': token id {table} ('iterable') "
        f"is beyond the base's embedding table of {table} rows"
    )
    few = [f"--set=arms.{arm}.space.num_buckets=8" for arm in ("fixed", "learnable")]
    storage = tmp_path / "runs"
    few += ["--set=defaults.num_buckets=8", f"--storage={storage}"]
    assert main(["run", "learnable_bucketing", *arguments, *few]) == 2
    assert message in capsys.readouterr().err
    assert not storage.exists()
    assert main(["evaluate", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_git_lfs_pointer_in_a_base_is_named(
    toy_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    base = shutil.copytree(toy_model, tmp_path / "base")
    (base / name).write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 94371840\n"
    )
    assert main(["evaluate", f"--model={base}", "--block-size=32"]) == 2
    expected = (
        f"model {str(base)!r}: {name} is a Git LFS pointer, not the file itself; "
        "run `git lfs pull` in its folder"
    )
    assert capsys.readouterr().err == f"hylorada: {expected}\n"
