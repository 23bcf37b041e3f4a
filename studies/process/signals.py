"""Handlers for the signals that end a command: Ctrl-C, SIGTERM, a closed terminal."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from types import FrameType
from typing import Any

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TERMINAL = tuple(stream for stream in (1, 2) if os.isatty(stream))
# The thread whose child processes must not receive signals sent to this process's group.
_isolating_thread: int | None = None


def on_end(action: Callable[[int], None]) -> dict[signal.Signals, Any]:
    """Call ``action`` with each signal that ends a process, except ignored ones, as under nohup.

    Returns:
        The previous handlers, for :func:`restore`; empty outside the main thread, where Python
        can't set any.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}

    def handle(number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _leave_terminal()
        action(number)

    return {s: signal.signal(s, handle) for s in _ENDS if signal.getsignal(s) != signal.SIG_IGN}


def restore(handlers: dict[signal.Signals, Any]) -> None:
    """Restore handlers, including the C-level ones that Ray has replaced with its own."""
    for number, handler in handlers.items():
        signal.signal(number, handler)


def interrupt(_: int) -> None:
    """Act on a signal as Python does on Ctrl-C.

    Raises:
        KeyboardInterrupt: always.
    """
    raise KeyboardInterrupt


def ignore_ends() -> None:
    """Ignore the signals that end a process while Python shuts down.

    If Ray still runs, they keep working, because Ray's shutdown may hang.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        for number in _ENDS:
            signal.signal(number, signal.SIG_IGN)


def _leave_terminal() -> None:
    """Redirect output to the null device, because every write to a closed terminal raises."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in _TERMINAL:
            os.dup2(nowhere, stream)
        os.close(nowhere)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back signals that end a process inside this context, and raise the first one after it.

    It protects work that must not be left half done. One case is not covered: another thread
    receives SIGTERM at a moment when Ray has replaced or removed the handler.

    Processes started inside the context don't receive signals to this process's group; this process
    must end them.
    """
    global _isolating_thread
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    received: list[int] = []
    before = on_end(received.append)
    # Blocked too, because libraries replace Python's handlers: Ray sets one that aborts, or none.
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    _isolating_thread = threading.get_ident()
    _watch_forks()
    try:
        yield
    finally:
        _isolating_thread = None
        restore(before)
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
    if received:
        signal.raise_signal(received[0])


@cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    if _isolating_thread == threading.get_ident():
        os.setpgrp()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
