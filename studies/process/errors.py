"""All exceptions of `studies` and the faults outside a trial that stop a study.

```
Exception
├── StudyStopped      The study can't continue for now. Raised by the engine (`cluster`, `registry`,
│   │                 `ray_start`, `tune_loop`) and `search.stages`, and made by `as_stop` from
│   │                 faults of storage. A trial's process returns it as text (`engine.trainable`),
│   │                 and `tune_loop` raises it again in the driver. Caught by `cli.commands`, which
│   │                 prints it and exits with 3; `cli.study_runs` prints the command that resumes.
│   └── StorageFault  Raised by `files.folder_files.patiently` and made by `as_stop`; caught as
│                     `StudyStopped`.
├── SeatLost          Raised by `engine.host`. Caught by `engine.trainable`, which attaches again.
├── DeviceLost        Raised by `engine.host` when its device fails. Caught by `engine.trainable`,
│                     which continues alone on a new host and fails the trial at the fourth loss,
│                     and by `engine.cluster`, which uses a new host.
├── HostGone          Raised by `engine.host` in all other calls after the loss of its device.
│                     Caught by `engine.trainable` and `engine.cluster`, which use a new host.
├── TimeUp            Raised by `search.time_limit` at the end of a run's time limit. Passes through
│                     `engine.tune_loop` and `engine.cluster`; caught by `search.stages`, which
│                     reports what there is.
└── Superseded        Raised by `engine.host`. Passes through `engine.trainable`: Tune has stopped
                      listening to that process.
KeyboardInterrupt
└── Interrupted       Raised by `search.open_study` on Ctrl-C, SIGTERM, SIGHUP or `hylorada stop`,
                      and again after the MLflow runs are closed. Caught by `cli.commands`, which
                      exits with 130.
```

Bad input is `hylorada.InputError`, which `cli.commands` turns into exit code 2. None of these
exceptions except a repeated `DeviceLost` counts against a trial.
"""

import errno
import re
from collections.abc import Iterator
from traceback import walk_tb

HOST_TRIES = 4  # deaths of hosts in a row, without a report in between
_COLOURS = re.compile("\x1b\\[[0-9;]*m")  # Ray colours its tracebacks

# The errors of a disk or a network file system that can't take a file, now or at all. Any other
# OSError is a bug of ours.
_STORAGE = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EACCES,
    errno.EPERM,
    errno.ENOLCK,
    errno.EMFILE,
    errno.ENFILE,
}

_DATABASE = {  # by name, because importing SQLAlchemy for its exceptions is slow
    "OperationalError": "can't be written",
    "DatabaseError": "is damaged",
}


class StudyStopped(Exception):
    """The study can't continue for now: its state is on disk, and the same command resumes it."""


class StorageFault(StudyStopped):
    """The storage takes no more files."""


class SeatLost(Exception):
    """The host has no seat for this trial, which may attach again."""


class DeviceLost(Exception):
    """The host's process can't use its device any more; a new process may."""


class HostGone(Exception):
    """The host has lost its device in another call and must be replaced."""


class Superseded(Exception):
    """A newer process of the same trial holds its seat."""


class TimeUp(Exception):
    """The run's time limit has come; what has finished can be reported."""


class Interrupted(KeyboardInterrupt):
    """The user or the system has ended the process: Ctrl-C, SIGTERM or a closed terminal."""


def own(error: BaseException) -> BaseException:
    """Return the exception raised in another process instead of the `RayTaskError` around it.

    The text of a `RayTaskError` is a whole traceback. Any other exception is returned as it is.
    """
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error


def is_storage_error(error: BaseException) -> bool:
    """Return whether an error comes from the storage, not from the program."""
    return isinstance(error, OSError) and error.errno in _STORAGE


def as_stop(error: BaseException) -> StudyStopped | None:
    """Return the outside fault that caused an error as a `StudyStopped`, or None.

    The whole chain of causes is searched.
    """
    for cause in _chain(error):
        if isinstance(cause, StudyStopped):
            return cause
        if is_storage_error(cause):
            return StorageFault(str(cause))
        if type(cause).__module__.startswith("sqlalchemy") and (
            problem := _DATABASE.get(type(cause).__name__)
        ):
            return StorageFault(f"{_database_of(cause)} {problem}: {str(cause).splitlines()[0]}")
    return None


def _database_of(error: BaseException) -> str:
    """Return the database file that a SQLAlchemy error concerns, judging by its traceback."""
    frames = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    return "mlflow.db" if any(name.startswith("mlflow.") for name in frames) else "optuna.db"


def host_died(error: Exception) -> str:
    """Return the message for a study that stops after its host died `HOST_TRIES` times in a row."""
    lines = uncoloured(str(own(error))).strip().splitlines()
    # An error of the actor's start holds a whole traceback, whose last line is the reason.
    why = lines[-1:] if getattr(error, "actor_init_failed", False) else lines
    died = f"the process that trains on a device died {HOST_TRIES} times in a row without a report"
    return f"{died}: {' '.join(why)}"


def uncoloured(text: str) -> str:
    """Return a text without the escape codes for a terminal's colours."""
    return _COLOURS.sub("", text)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        error = own(error)
        yield error
        error = error.__cause__ or error.__context__
