"""Starting and stopping Ray: a private one, a joined cluster, or the calling program's own."""

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
from studies.process.phases import phase
from studies.process.provenance import command_line
from studies.process.signals import uninterrupted

_POLL_S = 0.2  # between two checks of Ray's own processes
_CONNECT_S = 2.0
_RAYLET_S = 1.0  # without an answer, after which the raylet of this node counts as dead
# Seconds without an answer after which the head counts as dead. Ray would wait 60 s for it to come
# back and then end this process.
_HEAD_S = 50.0
# Seconds that the main thread has to return from a Ray call, which may wait for a dead head.
_STUCK_S = 10.0
# Seconds that Ray's processes have to end by themselves after Ray was shut down.
_ORPHAN_S = 1.0
_watch: "Watch | None" = None
_theirs = False  # whether the calling program has started the Ray that runs


class _Job(JobConfig):
    """A job config that keeps the driver's folders off the workers' module path.

    Ray would put them in front of the installed packages.
    """

    @property
    def _py_driver_sys_path(self) -> list[str]:
        return []

    @_py_driver_sys_path.setter
    def _py_driver_sys_path(self, folders: list[str]) -> None:
        pass


class Watch:
    """A thread that raises `StudyStopped` in the main thread when Ray itself has died.

    Without it Ray would end this process with exit code 1 sooner or later. The exception is raised
    again every second until :meth:`stop`, because a library may swallow it. A call of Ray's that
    waits for its dead head lets no exception through; ``give_up`` then ends the process, which
    loses nothing: all state is on disk at any time.

    Args:
        gone: returns what has died, or None while nothing has.
        give_up: called with the reason every second once 10 seconds have passed without
            :meth:`stop`.
    """

    def __init__(self, gone: Callable[[], str | None], give_up: Callable[[str], None]) -> None:
        self._gone, self._give_up, self._reason = gone, give_up, ""
        self._stopped = threading.Event()
        # The default action of SIGURG is to ignore it, so a late one does no harm.
        self._before: Any = signal.signal(signal.SIGURG, self._raise)
        self._thread = threading.Thread(target=self._poll, name="hylorada-ray-watch", daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._stopped.wait(_POLL_S):
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
        """Stop watching and raising, and restore the signal handler."""
        self._stopped.set()
        self._thread.join()
        signal.signal(signal.SIGURG, self._before)


def _end_at_once(reason: str) -> None:
    """End a private Ray and this process, with the message that a `StudyStopped` would print."""
    _kill(_private_processes())
    cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # the panel hides the cursor
    message = (
        f"{cursor}hylorada: {reason}\n"
        f"the study stopped; state saved. Resume with: {command_line()}\n"
    )
    os.write(2, message.encode(errors="backslashreplace"))
    os._exit(3)


def _private_processes() -> list[psutil.Process]:
    """Return the processes of the Ray that this process has started, children first."""
    node: Any = ray._private.worker._global_node
    processes = []
    for infos in node.all_processes.values() if node is not None else []:
        for info in infos:
            with suppress(psutil.Error):
                process = psutil.Process(info.process.pid)
                processes += [*process.children(recursive=True), process]
    return processes


def _kill(processes: list[psutil.Process]) -> None:
    """Kill those that still run: orphans of a dead raylet would wait a minute for a dead head."""
    for process in processes:
        with suppress(psutil.Error):
            process.kill()


def _ignore(_: str) -> None:
    """Do nothing: the calling program and its Ray are not ours to end."""


def start_ray(address: str | None, workspace: Path) -> None:
    """Join a cluster or start a private Ray with its files in ``workspace``, unless a Ray runs.

    Raises:
        InputError: Ray can't be reached.
    """
    global _theirs
    _theirs = ray.is_initialized()
    if not _theirs:
        _initialize(address, workspace)
    _start_watch()


@phase("Ray start")
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
                "this program has imported ray, so a private Ray could not be closed to others; "
                "call ray.init() first, and the study runs on that Ray, or import ray after "
                "the study"
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
        # An interrupted start would leave processes for a minute, or crash this one.
        with _own_start() if address is None else nullcontext():
            ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.AuthenticationError) as error:
        where = "this machine" if address is None else f"address {address!r}"
        raise InputError(
            f"{where}: Ray can't be reached: {str(error).strip().splitlines()[-1]}"
        ) from error


def _start_watch() -> None:
    """Report deaths of Ray's processes in our own messages, and keep Ray from writing to stdout."""
    global _watch
    ray._private.worker.print_to_stdstream = _print_nothing
    if threading.current_thread() is threading.main_thread():  # signals reach no other thread
        _watch = Watch(_Deaths(), _ignore if _theirs else _end_at_once)


def _print_nothing(*_: Any, **__: Any) -> None:
    pass


_print = ray._private.worker.print_to_stdstream


class _Deaths:
    """A check that returns which of the processes that this one depends on has died, or None."""

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
        """Check a private Ray, whose processes are children of this one."""
        for name, process in self._node.dead_processes():
            if name in ("raylet", "gcs_server"):
                code = process.returncode
                why = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                return f"Ray's own process {name!r} has died ({why})"
        return None


@contextmanager
def _own_start() -> Iterator[None]:
    """Hold back signals in every thread: a SIGTERM in any of them would end Ray half-way."""
    internals = ray._private.utils
    theirs, internals.set_sigterm_handler = internals.set_sigterm_handler, lambda _: None
    try:
        with uninterrupted():
            yield
    finally:
        internals.set_sigterm_handler = theirs


@phase("Ray shutdown")
def stop_ray(address: str | None = None) -> None:
    """Stop the private Ray, or leave the cluster at ``address``.

    The calling program's own Ray keeps running. Does nothing if no Ray runs.
    """
    global _watch
    if _watch is not None:
        _watch.stop()
        _watch = None
    ray._private.worker.print_to_stdstream = _print
    if not _theirs:
        # An interruption would leave a private Ray half stopped. Leaving a cluster stays
        # interruptible, because a cluster that doesn't answer must not block this process.
        with uninterrupted() if address is None else nullcontext():
            processes = _private_processes()
            ray.shutdown()
            _, alive = psutil.wait_procs(processes, timeout=_ORPHAN_S)
            _kill(alive)
        raylet: Any = ray._raylet
        # The calling program may start a Ray of its own later.
        raylet.AuthenticationTokenLoader.instance().reset_cache()


def is_theirs() -> bool:
    """Return whether the calling program has started the Ray that runs."""
    return _theirs
