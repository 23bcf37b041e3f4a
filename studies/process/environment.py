"""Settings that Ray, MLflow and Optuna read from the environment; to be applied before Ray is imported."""

import logging
import os
import secrets
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

_QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # MLflow holds the history
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C is ours: it closes the MLflow runs too
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # Tune's own snapshots are not used: the study folder is the truth
    "TUNE_MAX_PENDING_TRIALS_PG": "1000000",  # how many wait is for our searcher to say, as nodes come and go
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # seconds; the tracker tries again by itself, and can't while a call waits
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # MLflow's own retries would make a run twice when an answer is lost
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # stdout is for results
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "TOKENIZERS_PARALLELISM": "false",
}


RAY_FILES = "r"  # Ray opens its folder to everybody, so it gets one inside the workspace, which stays closed
_WORKSPACE = "hylo-"
_LOCK = (
    "hylorada.lock"  # what has none and isn't Ray's own is not ours to remove, whatever its name
)
_UNSEEN = "new.lock"  # the same, before it is held
_AGENTS_S = 120  # Ray's agents may outlive it by a minute, and write again in the folder that it has removed
_held: list[FileLock] = []


def prepare_environment() -> None:
    """Quiet, private defaults; whatever the user has set stays."""
    _set_defaults()
    warnings.filterwarnings("ignore", module="optuna")
    for name in ("mlflow", "alembic", "optuna"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(
        logging.CRITICAL
    )  # a locked database is told in one line


def _set_defaults() -> None:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


@contextmanager
def study_environment() -> Iterator[None]:
    """Set the quiet defaults within; afterwards the calling program has its own environment variables back."""
    before = dict(os.environ)
    try:
        _set_defaults()
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def make_private(folder: Path) -> None:
    """Keep a local Ray to this machine: all its ports on loopback, behind a token that only this user can read."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"  # under `uv run` Ray packs the working folder
    os.environ["RAY_AUTH_MODE"] = "token"
    path = folder / "token"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(path)


def short_root() -> Path:
    """Return the folder for temporary files whose path is short."""
    return Path("/tmp") if os.path.isdir("/tmp") else Path(tempfile.gettempdir())


def short_folder() -> Path:
    """Make a folder with a short path (Ray's sockets allow 107 bytes), and remove those that killed processes left."""
    root = short_root()
    for left in root.glob(f"{_WORKSPACE}*"):
        with suppress(OSError, Timeout):
            if left.stat().st_uid != os.getuid():
                continue
            if (left / _LOCK).is_file():
                with FileLock(left / _LOCK, timeout=0):
                    shutil.rmtree(left, ignore_errors=True)
            elif _of_agents(left) and time.time() - left.stat().st_mtime > _AGENTS_S:
                shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_WORKSPACE, dir=root))
    lock = FileLock(folder / _UNSEEN)
    lock.acquire()
    os.rename(folder / _UNSEEN, folder / _LOCK)  # nobody sees a lock that is not held
    _held.append(lock)  # until this process ends, however it ends
    return folder


def _of_agents(folder: Path) -> bool:
    """Whether a folder holds what Ray's agents write, and nothing else."""
    names = os.listdir(folder)
    if names == [RAY_FILES]:
        return _of_agents(folder / RAY_FILES)
    return bool(names) and all(name.startswith("session_") for name in names)
