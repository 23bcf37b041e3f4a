"""``hylorada ui``: MLflow's own page over the studies of a storage folder."""

import argparse
import ipaddress
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

from hylorada import InputError
from studies.files.folder_files import require_database, require_readable
from studies.process.mlflow_address import is_server, shown
from studies.process.options import default_uri
from studies.tracking.artifacts import follow_storage, owns_database

_LOCAL = ("localhost", "127.0.0.1", "[::1]")


def serve_page(args: argparse.Namespace) -> int:
    """Serve MLflow's page until Ctrl-C.

    Returns:
        The exit code.
    """
    uri = args.tracking_uri or default_uri(args.storage)
    if is_server(uri):
        raise InputError(f"MLflow at {shown(uri)} serves a page of its own: open it in a browser")
    own = owns_database(args.storage, uri)
    if own:
        _prepare_database(args)
    listening = _try_address(args.host, args.port)
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "ui",
        "--host",
        args.host,
        "--port",
        str(args.port),
        "--workers",
        "1",
    ]
    if own:
        command += [
            "--artifacts-destination",
            str(args.storage.resolve() / "artifacts"),
        ]  # else the working folder
    if not ipaddress.ip_address(listening).is_loopback:
        print(
            f"hylorada: warning: the page asks for no password: everybody who can reach {args.host}:{args.port} "
            "can read, change and delete these runs; without --host, only this machine can",
            file=sys.stderr,
        )
    # without the last part it opens on traces of agents
    page = f"http://{_bracketed(args.host)}:{args.port}/#/experiments?workflowType=machine_learning"
    print(f"MLflow: {page} (Ctrl-C ends it)", flush=True)
    settings = {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_BACKEND_STORE_URI": uri,
    }  # `ps` shows arguments
    environment = {**_names(args.host, listening, args.port), **os.environ, **settings}
    return _wait_for(subprocess.Popen(command, env=environment, start_new_session=True))


def _wait_for(server: "subprocess.Popen[bytes]") -> int:
    """Wait for the server's end, and end it on Ctrl-C, with the workers that it would leave behind."""
    try:
        return server.wait()
    except KeyboardInterrupt:  # SIGTERM and a closed terminal too
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()
        return 0


def _prepare_database(args: argparse.Namespace) -> None:
    """Refuse a database that is missing or damaged, and let it find its artifacts where they are now."""
    database = args.storage / "mlflow.db"
    require_readable(args.storage)
    if not database.exists():
        raise InputError(
            f"storage {str(args.storage)!r} has no mlflow.db yet; run a study first, or give --storage"
        )
    if database.stat().st_size:
        require_database(database)
        follow_storage(args.storage)


def _try_address(host: str, port: int) -> str:
    """Return the numeric address of a host on which a port is free: MLflow would end as if all were well.

    Raises:
        InputError: it can't be listened on.
    """
    try:
        if not host:
            raise OSError("no address given")
        family, kind, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as MLflow's server does
            taken.bind((address[0], port, *address[2:]))
    except (
        OSError,
        OverflowError,
        UnicodeError,
    ) as error:  # the last of names that can't be looked up
        raise InputError(
            f"can't serve on {host}:{port}: {error}; choose another --port or --host"
        ) from error
    return str(address[0]).partition("%")[0]


def _names(host: str, listening: str, port: int) -> Mapping[str, str]:
    """Return MLflow's settings that let the page answer by the names of the host, by default only those of loopback.

    A request that names another host is refused, so that a foreign web page can't reach this one through its own name.
    """
    if host in ("localhost", "127.0.0.1", "::1"):
        return {}
    names = {host, listening}
    if ipaddress.ip_address(listening).is_unspecified:
        names |= {socket.gethostname(), socket.getfqdn(), *_own_addresses()}
    shown_names = sorted(
        {_bracketed(name) for name in names} | {name.lower() for name in names if ":" not in name}
    )
    hosts = [f"{name}{end}" for name in (*_LOCAL, *shown_names) for end in ("", f":{port}")]
    origins = [
        f"http://{name}:{port}" for name in shown_names
    ]  # browsers send it with what the page asks for
    return {
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(hosts),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(origins),
    }


def _own_addresses() -> set[str]:
    """Return this machine's addresses, as far as its name and its route to elsewhere tell them."""
    found = set()
    with suppress(OSError):
        found |= {
            str(entry[4][0]).partition("%")[0]
            for entry in socket.getaddrinfo(socket.gethostname(), None)
        }
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        route.connect(("192.0.2.1", 9))  # an address for documentation; sends nothing
        found.add(str(route.getsockname()[0]))
    return found


def _bracketed(host: str) -> str:
    """Return a host as it stands in a page's address."""
    return f"[{host}]" if ":" in host else host
