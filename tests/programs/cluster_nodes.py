"""Real Ray nodes on this machine: each is a ``ray start`` with its own loopback address."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from unittest.mock import patch

from study_runs import wait_until

_STARTED = "Ray runtime started."
_SESSIONS = "sessions"
_OBJECT_STORE = 100_000_000  # bytes; Ray's least is 75 MiB


class Node:
    """A running node.

    Attributes:
        name: its name in messages.
        process: process of ``ray start --block``, leader of a session with raylet and workers.
    """

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self.name, self.process = name, process

    def hosts(self) -> list[int]:
        """Return the ids of host processes that have loaded their base."""
        titles = {pid: _title(pid) for pid in _session(self.process.pid)}
        return [
            pid
            for pid, title in titles.items()
            if title.startswith("ray::Host") and "__init__" not in title
        ]

    def kill(self) -> None:
        """Kill all its processes at once, as a power cut would."""
        _kill_session(self.process.pid)
        self.process.wait(10)
        wait_until(lambda: not _session(self.process.pid), 10)


def _session(leader: int) -> list[int]:
    """Return the live processes of a session, also those whose parents are gone."""
    pids = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == leader and state != "Z":
                    pids.append(int(folder.name))
    return pids


def _kill_session(leader: int) -> None:
    for pid in _session(leader):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


class Nodes:
    """A cluster that leaves no process behind at its end, nor at the death of this process.

    Args:
        cpus: CPUs of the head node, named ``head``.

    Attributes:
        address: address for ``--address``.
        environment: environment of processes that join: the token, and settings that make them join
            a cluster instead of starting a private Ray.
    """

    def __init__(self, cpus: int = 1) -> None:
        # A short path, because paths of sockets may have at most 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="hn-", dir="/tmp"))
        token = self._folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        self.environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_health_check_period_ms": "500",  # a dead node is noticed in seconds
            "RAY_health_check_failure_threshold": "3",
        }
        self.environment.pop("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", None)
        self.nodes: list[Node] = []
        # Not 127.0.0.1, which Ray replaces by the machine's own address, open to the network.
        self.address = f"127.0.0.2:{_free_port('127.0.0.2')}"
        self._cpus = cpus
        watch = [sys.executable, __file__, str(self._folder)]
        self._watchdog = subprocess.Popen(watch, stdin=subprocess.PIPE, start_new_session=True)

    def __enter__(self) -> "Nodes":
        port = self.address.rpartition(":")[2]
        try:
            self._start(
                "head", "--head", f"--port={port}", "--include-dashboard=false", cpus=self._cpus
            )
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def add(
        self,
        name: str,
        *,
        cpus: int = 1,
        hidden: Path | None = None,
        packages: Path | None = None,
        hub: Path | None = None,
    ) -> Node:
        """Add a node.

        Args:
            name: name of the node.
            cpus: CPUs that it offers.
            hidden: a folder that this node sees as empty.
            packages: a folder of packages that this node prefers.
            hub: folder of its Hugging Face cache; it downloads nothing.
        """
        if hub is not None:
            own = {"HF_HOME": str(hub), "HF_HUB_OFFLINE": "1"}
            with patch.dict(self.environment, own):
                return self._start(
                    name, f"--address={self.address}", cpus=cpus, hidden=hidden, packages=packages
                )
        return self._start(
            name, f"--address={self.address}", cpus=cpus, hidden=hidden, packages=packages
        )

    def _start(
        self,
        name: str,
        *options: str,
        cpus: int,
        hidden: Path | None = None,
        packages: Path | None = None,
    ) -> Node:
        log = self._folder / f"{name}.log"
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *options),
            f"--node-ip-address=127.0.0.{len(self.nodes) + 2}",
            f"--node-name={name}",
            f"--num-cpus={cpus}",
            "--num-gpus=0",
            f"--object-store-memory={_OBJECT_STORE}",
            "--include-log-monitor=false",
            "--dashboard-agent-listen-port=0",
            f"--temp-dir={self._folder / name}",
        ]
        if hidden is not None:
            command = hiding(hidden, command)
        paths = (
            [str(packages), os.environ.get("PYTHONPATH", "")]
            if packages
            else [os.environ.get("PYTHONPATH", "")]
        )
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self._folder,  # another working folder than that of the study
                env={**self.environment, "PYTHONPATH": os.pathsep.join(paths)},
            )
        with (self._folder / _SESSIONS).open("a") as sessions:
            sessions.write(f"{process.pid}\n")
        node = Node(name, process)
        self.nodes.append(node)
        wait_until(lambda: _STARTED in log.read_text() or process.poll() is not None, 60)
        assert process.poll() is None, log.read_text()
        return node

    def close(self) -> None:
        """Kill every node, the head last, and remove their files."""
        for node in reversed(self.nodes):
            node.kill()
        self._watchdog.communicate()


def hiding(folder: Path, command: list[str]) -> list[str]:
    """Return the command wrapped so that it sees an empty folder in place of ``folder``."""
    return [
        "unshare",
        "--mount",
        "sh",
        "-c",
        'mount -t tmpfs none "$0" && exec "$@"',
        str(folder),
        *command,
    ]


def can_hide() -> bool:
    """Return whether this user may create a mount namespace."""
    folder = tempfile.mkdtemp()
    try:
        return (
            subprocess.run(
                hiding(Path(folder), ["true"]), capture_output=True, check=False
            ).returncode
            == 0
        )
    except FileNotFoundError:  # `unshare` is not installed
        return False
    finally:
        os.rmdir(folder)


def _free_port(address: str) -> int:
    with socket.socket() as listener:
        listener.bind((address, 0))
        port: int = listener.getsockname()[1]
        return port


def _watch(folder: Path) -> None:
    """Wait for the end of the parent process, then kill all nodes and remove their files."""
    sys.stdin.read()
    for leader in (folder / _SESSIONS).read_text().split() if (folder / _SESSIONS).exists() else ():
        _kill_session(int(leader))
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _watch(Path(sys.argv[1]))
