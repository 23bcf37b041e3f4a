"""Environment settings of Ray, MLflow and Optuna, which must be set before Ray is imported."""

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
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # our own handler also closes the MLflow runs
    # Tune's own snapshots are not used: a study resumes from its folder.
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",
    # Our searcher limits how many trials wait, because nodes join and leave.
    "TUNE_MAX_PENDING_TRIALS_PG": "1000000",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    # In seconds. The tracker retries by itself, but not while a call still waits.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    # MLflow's own retries would create a run twice when an answer is lost.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # stdout is for results
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "TOKENIZERS_PARALLELISM": "false",
}

# For a process that trains on CPUs, unless the user has set them. By default glibc returns a step's
# memory to the system and gets it back page by page in the next step. 1 << 25 is the largest value
# that glibc accepts for the first.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 25),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
}

# Ray makes its folder readable for everybody, so it gets one inside the workspace, which stays
# closed.
RAY_FILES = "r"
_WORKSPACE = "hylo-"
# Never delete a folder without this lock file unless Ray created it, even if its name matches.
_LOCK = "hylorada.lock"
_NEW_LOCK = "new.lock"  # name of the lock file until it is held
# Ray's agents may outlive Ray by a minute and write again into the folder that was removed.
_AGENTS_S = 120
_held: list[FileLock] = []


def prepare_environment() -> None:
    """Set quiet, private defaults for what the user has not set."""
    _set_defaults()
    warnings.filterwarnings("ignore", module="optuna")
    for name in ("mlflow", "alembic", "optuna"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # We report a locked database in one line of our own.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)


def _set_defaults() -> None:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


@contextmanager
def study_environment() -> Iterator[None]:
    """Set the quiet defaults inside this context, and restore the caller's environment after it."""
    before = dict(os.environ)
    try:
        _set_defaults()
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def make_private(folder: Path) -> None:
    """Close a local Ray to others: ports on loopback, and a token that only this user can read."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    # By default Ray starts a process for each core that runs no trial and no host.
    os.environ["RAY_prestart_worker_first_driver"] = "0"  # noqa: SIM112 (Ray's own name)
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
    """Create a folder with a short path, and remove those of killed processes.

    Ray puts sockets there, whose paths may have at most 107 bytes.
    """
    root = short_root()
    for leftover in root.glob(f"{_WORKSPACE}*"):
        with suppress(OSError, Timeout):
            if leftover.stat().st_uid != os.getuid():
                continue
            if (leftover / _LOCK).is_file():
                with FileLock(leftover / _LOCK, timeout=0):
                    shutil.rmtree(leftover, ignore_errors=True)
            elif _only_of_agents(leftover) and time.time() - leftover.stat().st_mtime > _AGENTS_S:
                shutil.rmtree(leftover, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_WORKSPACE, dir=root))
    lock = FileLock(folder / _NEW_LOCK)
    lock.acquire()
    os.rename(folder / _NEW_LOCK, folder / _LOCK)  # no other process sees a lock that is not held
    _held.append(lock)  # held until this process ends, however it ends
    return folder


def _only_of_agents(folder: Path) -> bool:
    """Return whether a folder holds only what Ray's agents write, and at least something."""
    names = os.listdir(folder)
    if names == [RAY_FILES]:
        return _only_of_agents(folder / RAY_FILES)
    return bool(names) and all(name.startswith("session_") for name in names)
