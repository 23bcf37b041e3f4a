"""What can go wrong outside a trial: storage, processes and machines. None of it counts against the trial."""

import errno
import re
from collections.abc import Iterator
from traceback import walk_tb

HOST_TRIES = 4  # deaths of hosts in a row, without a report in between
_COLOURS = re.compile("\x1b\\[[0-9;]*m")  # Ray colours its tracebacks

# what a disk or a share answers when it can't take a file, now or at all; anything else is a fault of ours
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

_DATABASE = {  # by SQLAlchemy's names, which would have to be imported
    "OperationalError": "can't be written",
    "DatabaseError": "is damaged",
}


class StudyStopped(Exception):
    """The study can't go on for now: its state is on disk, and the same command goes on with it."""


class StorageFault(StudyStopped):
    """Storage takes no more files."""


class SeatLost(Exception):
    """The host has no seat for this trial, which may take one again."""


class DeviceLost(Exception):
    """The host's device takes no more work from its process, only from a new one."""


class HostGone(Exception):
    """The host has lost its device over another trial, and is to be replaced."""


class Superseded(Exception):
    """A newer process of the same trial holds its seat."""


def own(error: BaseException) -> BaseException:
    """What was raised in another process, of the RayTaskError that it comes as, whose own text is a traceback."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error


def is_storage_error(error: BaseException) -> bool:
    """Whether an error is the disk's, not the program's."""
    return isinstance(error, OSError) and error.errno in _STORAGE


def as_stop(error: BaseException) -> StudyStopped | None:
    """What stopped the study, if it was a fault outside it, wherever in the chain of causes it stands."""
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
    """Return which database an error of SQLAlchemy's is about: the one whose library has asked."""
    frames = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    return "mlflow.db" if any(name.startswith("mlflow.") for name in frames) else "optuna.db"


def host_died(error: Exception) -> str:
    """Why a study stops whose host dies again and again."""
    lines = uncoloured(str(own(error))).strip().splitlines()
    why = (
        lines[-1:] if getattr(error, "actor_init_failed", False) else lines
    )  # that one holds a whole traceback
    return f"the process that trains on a device died {HOST_TRIES} times in a row without a report: {' '.join(why)}"


def uncoloured(text: str) -> str:
    """Text without the colours of a terminal."""
    return _COLOURS.sub("", text)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        error = own(error)
        yield error
        error = error.__cause__ or error.__context__
