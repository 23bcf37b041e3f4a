"""Senseless input either runs or is refused with a clear line for each problem."""

import contextlib
import io
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fuzz_inputs as fuzz
import fuzz_texts as texts
import optuna
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hylorada import InputError
from studies.cli.commands import main
from studies.learnable_bucketing import STUDY
from studies.runner.inputs import prepare
from studies.spec.common_values import given_values
from studies.spec.plain_yaml import parse_yaml
from studies.spec.study import Study

_MANY = settings(
    max_examples=1000,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
_FEW = settings(_MANY, max_examples=50, derandomize=True)


class _Starts(BaseException):
    """Nothing is wrong with the input: the study would begin now."""


@dataclass(frozen=True)
class _Answer:
    code: int | None  # None where the study would start
    out: str
    err: str


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder to be in, no network, and studies that stop where they would start."""

    def start(study: Study, options: Any, _console: Any) -> None:
        prepare(study, options)
        raise _Starts

    for module in ("base_models.finding", "data.hub_text"):
        monkeypatch.setattr(f"hylorada.{module}.hub_is_reachable", lambda: False)
    monkeypatch.setattr("studies.runner.run.run_study", start)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")


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
        assert len(line) <= 600
    assert len(set(lines)) == len(lines), answer.err


def _assert_points_are_valid(study: Study) -> None:
    """Whatever Optuna may propose makes a configuration, and is the same after it was stored."""
    for arm in study.arms:
        study.configs(arm, given_values(study, arm, 0, 0))
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
    assert study.to_dict() == Study.from_dict(json.loads(json.dumps(study.to_dict()))).to_dict()
    _assert_points_are_valid(study)


def _check_config(content: bytes) -> None:
    path = Path("study.yaml")
    path.write_bytes(content)
    _check_show("--config=study.yaml")


def _check_run(*arguments: str) -> None:
    folder = Path.cwd()
    before = sorted(folder.rglob("*"))
    answer = _ask("run", "learnable_bucketing", *arguments)
    if answer.code is not None:
        _assert_refused_clearly(answer, folder, before)
        return
    assert (answer.out, answer.err) == ("", "")
    for path in set(folder.iterdir()) - set(before):
        shutil.rmtree(path)


def _check_text(suffix: str, content: bytes, named: bool) -> None:
    path = Path(f"text{suffix}")
    path.write_bytes(content)
    few = [f"--set=arms.{arm}.space.num_buckets=8" for arm in ("fixed", "learnable")]
    column = ["--text-column=text"] if named else []
    _check_run(f"--data=./{path}", "--block-size=16", "--set=defaults.num_buckets=8", *few, *column)
    path.unlink()


@given(fuzz.config_files)
@_FEW
def test_config_files(content: bytes) -> None:
    _check_config(content)


@pytest.mark.slow
@pytest.mark.timeout(900)
@given(fuzz.config_files)
@_MANY
def test_a_thousand_config_files(content: bytes) -> None:
    _check_config(content)


@pytest.mark.parametrize("content", fuzz.SNIPPETS, ids=range(len(fuzz.SNIPPETS)))
def test_odd_yaml(content: str) -> None:
    _check_config(content.encode())


@given(st.lists(fuzz.assignments, min_size=1, max_size=3))
@_FEW
def test_assignments(assignments: list[str]) -> None:
    _check_show(*(f"--set={a}" for a in assignments))


@given(fuzz.options())
@settings(_FEW, max_examples=30)
def test_options(arguments: list[str]) -> None:
    _check_run(*arguments)


@pytest.mark.slow
@pytest.mark.timeout(900)
@given(fuzz.options())
@_MANY
def test_a_thousand_options(arguments: list[str]) -> None:
    _check_run(*arguments)


@pytest.mark.parametrize(
    "uri", ["sqlite:///" + "x" * 300, "http://" + "x" * 300, "sqlite:///\udcff", "mysql"]
)
def test_tracking_addresses_that_nothing_can_be_at(uri: str) -> None:
    _check_run(f"--tracking-uri={uri}")


@given(texts.files, st.booleans())
@settings(_FEW, max_examples=15)
def test_text_files(file: tuple[str, bytes], named: bool) -> None:
    _check_text(*file, named)


@pytest.mark.slow
@pytest.mark.timeout(900)
@given(texts.files, st.booleans())
@settings(_MANY, max_examples=200)
def test_two_hundred_text_files(file: tuple[str, bytes], named: bool) -> None:
    _check_text(*file, named)


@given(st.lists(fuzz.near_valid_spaces(), min_size=1, max_size=4))
@_FEW
def test_spaces_that_are_accepted_have_valid_points_alone(spaces: list[dict[str, Any]]) -> None:
    """Check that values valid by themselves are refused together, or that no proposal fails."""
    for space in spaces:
        values = STUDY | {"arms": {"one": {"space": space}}, "comparisons": []}
        with contextlib.suppress(InputError):
            _assert_points_are_valid(Study.from_dict(values))
