"""What asks a command to end: Ctrl-C, SIGTERM, a terminal that is closed."""

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
_apart: int | None = (
    None  # the thread that starts what signals to this process's group must not reach
)


def on_end(action: Callable[[int], None]) -> dict[signal.Signals, Any]:
    """Call ``action`` with each signal that asks to end; those that the user has had ignored, as nohup does, stay so.

    Returns:
        The handlers before, for :func:`restore`; none off the main thread, where Python sets none.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}

    def handle(number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _leave_terminal()
        action(number)

    return {s: signal.signal(s, handle) for s in _ENDS if signal.getsignal(s) != signal.SIG_IGN}


def restore(handlers: dict[signal.Signals, Any]) -> None:
    """Set them again; below Python too, where Ray puts its own."""
    for number, handler in handlers.items():
        signal.signal(number, handler)


def interrupt(_: int) -> None:
    """What Ctrl-C does.

    Raises:
        KeyboardInterrupt: always.
    """
    raise KeyboardInterrupt


def ignore_ends() -> None:
    """At the very end, while Python takes down what it has loaded; not where Ray's own end may still hang."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        for number in _ENDS:
            signal.signal(number, signal.SIG_IGN)


def _leave_terminal() -> None:
    """Write nowhere: a terminal that is gone answers every word with an error."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in _TERMINAL:
            os.dup2(nowhere, stream)
        os.close(nowhere)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Within it what asks to end is held back, and comes afterwards: for what must not be left half done.

    Not SIGTERM in the moment in which Ray has set its own answer to it, or none, if another thread takes it.

    What is started within it is out of reach of signals to this process's group: it is for this process to end it.
    """
    global _apart
    if (
        threading.current_thread() is not threading.main_thread()
    ):  # signals come to the main thread alone
        yield
        return
    came: list[int] = []
    before = on_end(came.append)
    # from libraries too, which set handlers of their own below Python's: Ray's abort, or are none
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    _apart = threading.get_ident()
    _watch_forks()
    try:
        yield
    finally:
        _apart = None
        restore(before)
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
    if came:
        signal.raise_signal(came[0])


@cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    if _apart == threading.get_ident():
        os.setpgrp()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
