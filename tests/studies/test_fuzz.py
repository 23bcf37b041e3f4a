"""Input as nobody means it: it runs, or it is refused with one clear line a problem, and nothing is written."""

import contextlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fuzz_inputs as fuzz
import optuna
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from studies._cli import main
from studies._overrides import parse_yaml
from studies._run import prepare
from studies._study import Study

_MANY = settings(
    max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
_FEW = settings(_MANY, max_examples=60, derandomize=True)


class _Starts(BaseException):
    """Nothing is wrong with the input: the study would begin now."""


@dataclass(frozen=True)
class _Answer:
    code: int | None  # None where the study would start
    out: str
    err: str


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder to be in, no network, and studies that stop where they would start."""

    def start(study: Study, options: Any, _console: Any) -> None:
        prepare(study, options)
        raise _Starts

    for module in ("_bases", "_text"):
        monkeypatch.setattr(f"hylorada.{module}.hub_is_reachable", lambda: False)
    monkeypatch.setattr("studies._run.run_study", start)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    yield


def _ask(*arguments: str) -> _Answer:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: int | None = main(list(arguments))
        except _Starts:
            code = None
        except SystemExit as error:  # argparse
            code = int(str(error.code))
            assert err.getvalue().startswith("usage: hylorada")
    return _Answer(code, out.getvalue(), err.getvalue())


def _assert_refused_clearly(answer: _Answer, folder: Path, before: list[Path]) -> None:
    assert (answer.code, answer.out) == (2, "")
    assert sorted(folder.rglob("*")) == before, "something was written"
    if answer.err.startswith("usage: "):
        return
    lines = answer.err.removesuffix("\n").split("\n")
    for line in lines:
        assert line.startswith("hylorada: "), answer.err
        assert line.isprintable(), ascii(line)
        assert len(line) <= 700
    assert len(set(lines)) == len(lines), answer.err
    if log := os.environ.get("FUZZ_LOG"):
        with open(log, "a") as f:
            f.write(answer.err)


def _assert_points_are_valid(study: Study) -> None:
    """Whatever Optuna may propose makes a configuration, and is the same after it was stored."""
    for arm in study.arms:
        study.configs(arm, study.start(arm))
        sampler = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        for _ in range(8):
            params = study.arms[arm].space.sample(sampler.ask())
            assert json.loads(json.dumps(params)) == params
            assert study.configs(arm, params) == study.configs(arm, json.loads(json.dumps(params)))


def _check_show(*arguments: str) -> None:
    folder = Path.cwd()
    before = sorted(folder.rglob("*"))
    answer = _ask("show", "learnable_bucketing", *arguments)
    if answer.code != 0:
        _assert_refused_clearly(answer, folder, before)
        return
    assert answer.err == ""
    study = Study.from_dict(parse_yaml(answer.out))
    assert study.to_dict() == Study.from_dict(yaml.safe_load(json.dumps(study.to_dict()))).to_dict()
    _assert_points_are_valid(study)


def _check_config(content: bytes) -> None:
    path = Path("study.yaml")
    path.write_bytes(content)
    _check_show("--config=study.yaml")


def _check_options(arguments: list[str]) -> None:
    folder = Path.cwd()
    before = sorted(folder.rglob("*"))
    answer = _ask("run", *arguments)
    if answer.code is not None:
        _assert_refused_clearly(answer, folder, before)
    else:
        assert (answer.out, answer.err) == ("", "")
        shutil.rmtree(folder)
        folder.mkdir()
        os.chdir(folder)


_options = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(
                ["--name", "--model", "--data", "--storage", "--tracking-uri", "--address", "--text-column", "--config"]
                + ["--seats", "--trials", "--seeds", "--seed", "--block-size"]
            ),
            fuzz.argument,
        ).map("=".join),
        fuzz.assignments.map(lambda a: f"--set={a}"),
    ),
    min_size=1,
    max_size=3,
)


@given(fuzz.config_files)
@_FEW
def test_config_files(content: bytes) -> None:
    _check_config(content)


@given(fuzz.config_files)
@_MANY
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_config_files(content: bytes) -> None:
    _check_config(content)


@given(st.lists(fuzz.assignments, min_size=1, max_size=3))
@_FEW
def test_assignments(assignments: list[str]) -> None:
    _check_show(*(f"--set={a}" for a in assignments))


@given(_options)
@_FEW
def test_options(arguments: list[str]) -> None:
    _check_options(["learnable_bucketing", *arguments])
