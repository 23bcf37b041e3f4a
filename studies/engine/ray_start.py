"""Ray's start and end: a private one on this machine, a cluster that is joined, or the one of the calling program."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.job_config import JobConfig

from hylorada import InputError
from studies.process.environment import RAY_FILES
from studies.process.errors import StudyStopped
from studies.process.provenance import command_line
from studies.process.signals import uninterrupted

_LOOK_S = 0.2  # between two looks at Ray's own processes
_CONNECT_S = 2.0
_RAYLET_S = 1.0  # without an answer, after which the raylet of this node is taken for dead
_HEAD_S = 50.0  # the same for the head: Ray waits 60 s for it to come back, then ends this process
_STUCK_S = (
    10.0  # for the main thread to come back from a call of Ray's, which waits for a dead head
)
_watch: "Watch | None" = None
_theirs = False  # whether Ray runs because the calling program has started it


class _Job(JobConfig):
    """Keeps the driver's folders off the workers' module path, where Ray would put them before what is installed."""

    @property
    def _py_driver_sys_path(self) -> list[str]:
        return []

    @_py_driver_sys_path.setter
    def _py_driver_sys_path(self, folders: list[str]) -> None:
        pass


class Watch:
    """Ends the work of the main thread when Ray itself is gone.

    Ray would end this process with exit code 1 instead, sooner or later. The exception is raised again every second
    until :meth:`stop`, because a library may swallow it. A call of Ray's that waits for its dead head lets no exception
    through; ``give_up`` then ends the process, which costs nothing: all state is on disk at any time.

    Args:
        gone: tells what has died; None while all is well.
        give_up: is called with the reason every second, if nobody has called :meth:`stop` in 10 seconds.
    """

    def __init__(self, gone: Callable[[], str | None], give_up: Callable[[str], None]) -> None:
        self._gone, self._give_up, self._reason = gone, give_up, ""
        self._stopped = threading.Event()
        # the default action of SIGURG is nothing, so one that comes late does no harm
        self._before: Any = signal.signal(signal.SIGURG, self._raise)
        self._thread = threading.Thread(target=self._look, name="hylorada-ray-watch", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            if reason := self._gone():
                self._reason = reason
                end = time.monotonic() + _STUCK_S
                while not self._stopped.is_set():
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGURG)
                    self._stopped.wait(1)
                    if time.monotonic() > end and not self._stopped.is_set():
                        self._give_up(reason)

    def _raise(self, *_: Any) -> None:
        if not self._stopped.is_set():
            raise StudyStopped(self._reason)

    def stop(self) -> None:
        """Raise no more."""
        self._stopped.set()
        self._thread.join()
        signal.signal(signal.SIGURG, self._before)


def _end_at_once(reason: str) -> None:
    """End this process and a private Ray's, in the words that a :class:`StudyStopped` would get."""
    node: Any = ray._private.worker._global_node
    own = [info.process.pid for processes in node.all_processes.values() for info in processes]
    for pid in own:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            for each in (
                *process.children(recursive=True),
                process,
            ):  # orphans would wait a minute for the head too
                with suppress(psutil.Error):
                    each.kill()
    cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # the panel hides it
    told = (
        f"{cursor}hylorada: {reason}\nthe study stopped; state saved. To go on: {command_line()}\n"
    )
    os.write(2, told.encode(errors="backslashreplace"))
    os._exit(3)


def _let_be(_: str) -> None:
    """Leave the calling program and its Ray alone."""


def start_ray(address: str | None, workspace: Path) -> None:
    """Join a cluster, or start a private Ray with its files in ``workspace``; one that runs already is used.

    Raises:
        InputError: it can't be reached.
    """
    global _theirs
    _theirs = ray.is_initialized()
    if not _theirs:
        _initialize(address, workspace)
    _attend()


def _initialize(address: str | None, workspace: Path) -> None:
    options: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": "ERROR",
        "job_config": _Job(),
    }
    if address is None:
        raylet: Any = ray._raylet
        if raylet.get_authentication_mode() == 0:  # Ray reads its settings when it is imported
            raise InputError(
                "this program has imported ray, so a private Ray could not be closed to others; call ray.init() first, "
                "and the study runs on that Ray, or import ray after the study"
            )
        options |= {
            "address": "local",
            "include_dashboard": False,
            "_temp_dir": str(workspace / RAY_FILES),
        }
        options["_skip_env_hook"] = True  # the user's runtime environments are for clusters
    else:
        options["address"] = address
    try:
        # broken off half-way, a private one would leave processes for a minute, or bring this one down
        with _own_start() if address is None else nullcontext():
            ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.AuthenticationError) as error:
        where = "this machine" if address is None else f"address {address!r}"
        raise InputError(
            f"{where}: Ray can't be reached: {str(error).strip().splitlines()[-1]}"
        ) from error


def _attend() -> None:
    """Tell deaths of Ray's own processes in our words: until :func:`stop_ray` Ray prints nothing on stdout."""
    global _watch
    ray._private.worker.print_to_stdstream = _print_nothing
    if threading.current_thread() is threading.main_thread():  # signals reach no other
        _watch = Watch(_Deaths(), _let_be if _theirs else _end_at_once)


def _print_nothing(*_: Any, **__: Any) -> None:
    pass


_print = ray._private.worker.print_to_stdstream


class _Deaths:
    """Tells which of the processes that this one can't do without has died."""

    def __init__(self) -> None:
        node: Any = ray._private.worker._global_node
        head, _, port = node.gcs_address.rpartition(":")
        self._node = node
        self._remote = [
            ("the raylet of this node", (node.node_ip_address, node.node_manager_port), _RAYLET_S),
            ("the head of the cluster", (head.strip("[]"), int(port)), _HEAD_S),
        ]
        self._seen = dict.fromkeys((name for name, _, _ in self._remote), time.monotonic())

    def __call__(self) -> str | None:
        if self._node.all_processes:
            return self._own()
        for name, place, patience in self._remote:
            with suppress(OSError):
                socket.create_connection(place, timeout=_CONNECT_S).close()
                self._seen[name] = time.monotonic()
            if time.monotonic() - self._seen[name] > patience:
                return f"{name} ({place[0]}:{place[1]}) has not answered for {patience:.0f} s"
        return None

    def _own(self) -> str | None:
        """Of a private Ray: its processes are this one's children."""
        for name, process in self._node.dead_processes():
            if name in ("raylet", "gcs_server"):
                code = process.returncode
                why = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                return f"Ray's own process {name!r} has died ({why})"
        return None


@contextmanager
def _own_start() -> Iterator[None]:
    """Hold back signals in every thread: Ray answers SIGTERM, taken by any of them, by ending half-way."""
    internals = ray._private.utils
    theirs, internals.set_sigterm_handler = internals.set_sigterm_handler, lambda _: None
    try:
        with uninterrupted():
            yield
    finally:
        internals.set_sigterm_handler = theirs


def stop_ray(address: str | None = None) -> None:
    """End the private Ray, or leave the cluster at ``address``; the calling program's own goes on.

    Without effect where there is none.
    """
    global _watch
    if _watch is not None:
        _watch.stop()
        _watch = None
    ray._private.worker.print_to_stdstream = _print
    if not _theirs:
        # a private one is left half ended otherwise; a cluster that doesn't answer must not hold this process
        with uninterrupted() if address is None else nullcontext():
            ray.shutdown()
        raylet: Any = ray._raylet
        raylet.AuthenticationTokenLoader.instance().reset_cache()  # the calling program may start a Ray of its own


def is_theirs() -> bool:
    """Whether Ray runs because the calling program has started it."""
    return _theirs
