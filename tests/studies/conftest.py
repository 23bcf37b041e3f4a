"""A base that trains in milliseconds, a whole study shared by many tests, and MLflow stores."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import mlflow
import optuna
import pytest
import torch
from campaigns import Folder
from mlflow_records import Mlflow
from study_runs import SMALL, FinishedStudy, run_cli
from transformers import LlamaConfig, LlamaForCausalLM

from hylorada.base_models.loading import load_tokenizer
from studies.process.options import default_uri


@pytest.fixture(scope="session")
def toy_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a random two-layer Llama with the built-in base's tokenizer."""
    folder = tmp_path_factory.mktemp("toy") / "toy-llama"
    tokenizer = load_tokenizer("tiny")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=True,
        )
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def finished(toy_model: str, tmp_path_factory: pytest.TempPathFactory) -> FinishedStudy:
    """Return a whole study, shared by all tests that only read it."""
    storage = tmp_path_factory.mktemp("finished") / "my runs"  # a folder with a space
    done = run_cli(
        "run",
        "learnable_bucketing",
        "--name=été 1",
        f"--model={toy_model}",
        f"--storage={storage}",
        *SMALL,
    )
    assert done.code == 0, done.err
    return FinishedStudy(storage, "été 1", done)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mlflow]:
    """Return MLflow in an SQLite file, in a folder with a space and an accent."""
    folder = tmp_path_factory.mktemp("ml flow é")
    opened = Mlflow(default_uri(folder), folder)
    yield opened
    opened.client._tracking_client.store.engine.dispose()
    assert mlflow.active_run() is None


@pytest.fixture(autouse=True, scope="session")
def _no_mlflow_of_the_users() -> Iterator[None]:
    """Keep a variable of the user's shell from sending the tests' studies to another MLflow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set MLflow's limits as ``prepare_environment`` does, but shorter."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


@pytest.fixture
def said() -> list[str]:
    """Return the list of a tracker's messages to the user."""
    return []


@pytest.fixture(scope="session")
def optuna_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return Optuna's empty tables, because making them takes longer than most tests."""
    path = tmp_path_factory.mktemp("database") / "optuna.db"
    optuna.storages.RDBStorage(f"sqlite:///{path}").engine.dispose()
    return path


@pytest.fixture
def folder(tmp_path: Path, optuna_tables: Path) -> Iterator[Folder]:
    (tmp_path / "try").mkdir()
    shutil.copy(optuna_tables, tmp_path / "try")
    opened = Folder(tmp_path / "try")
    yield opened
    opened.close()
