"""A real MLflow server that can hang, die and come back, and a proxy that loses its answers."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from study_runs import wait_until


class Server:
    """``mlflow server`` on SQLite, on loopback, in its own process group.

    Args:
        folder: folder for its database, artifacts and log.
        options: further options of its command line.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self._options = folder, options
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "mlflow",
            "server",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
        ]
        command += [
            "--workers",
            "1",
            "--backend-store-uri",
            f"sqlite:///{self.folder / 'server.db'}",
        ]
        command += self._options or ("--artifacts-destination", str(self.folder / "artifacts"))
        quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, **quiet},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._healthy, 90)

    def _healthy(self) -> bool:
        assert self._process.poll() is None, (self.folder / "log").read_text()
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def hang(self) -> None:
        """Accept connections and answer none, until :meth:`wake`."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def lives(self) -> bool:
        return self._process.poll() is None

    def wake(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Wire:
    """A proxy that loses chosen answers of a server, which has then carried out the requests.

    Args:
        server: port of the server.
    """

    def __init__(self, server: int) -> None:
        self._server = server
        self._path, self._count, self.lost = "", 0, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def lose(self, path: str, count: int) -> None:
        """Lose the next answers to requests for a path."""
        self._path, self._count = path, count

    def _loses(self, path: str) -> bool:
        if self.lost >= self._count or self._path not in path:
            return False
        self.lost += 1
        return True

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                self._pass_on(client)

    def _pass_on(self, client: socket.socket) -> None:
        """Pass on one request, and close the connection so that every request has its own."""
        request = _read_message(client)
        path = request.split(b" ", 2)[1].decode() if request else ""
        if not path:
            return
        with socket.create_connection(("127.0.0.1", self._server)) as server:
            head, _, body = request.partition(b"\r\n\r\n")
            lines = [
                line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")
            ]
            server.sendall(b"\r\n".join([*lines, b"Connection: close"]) + b"\r\n\r\n" + body)
            answer = b"".join(iter(lambda: server.recv(1 << 16), b""))
        if not self._loses(path):
            client.sendall(answer)


def _read_message(source: socket.socket) -> bytes:
    """Read a request with its body, whose length is in its head."""
    message = b""
    while b"\r\n\r\n" not in message:
        if not (more := source.recv(1 << 16)):
            return b""
        message += more
    head, _, body = message.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while len(body) < sum(int(line.split(b":")[1]) for line in lengths):
        body += source.recv(1 << 16)
    return head + b"\r\n\r\n" + body


def wait_for_line(said: list[str], part: str, timeout: float = 30) -> None:
    """Wait until a tracker has printed a line with this text."""
    wait_until(lambda: any(part in line for line in said), timeout)


def timed(call: Callable[[], None]) -> float:
    """Return the seconds that a call takes."""
    began = time.monotonic()
    call()
    return time.monotonic() - began
