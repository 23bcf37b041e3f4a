"""``hylorada ui``: serve MLflow's own UI for the studies in a storage folder."""

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
from studies.files.paths import database_path
from studies.process.mlflow_address import is_server, shown
from studies.process.options import default_uri
from studies.tracking.artifacts import follow_storage, owns_database

# A line for each request would scroll the addresses of the pages away.
_QUIET = ("--uvicorn-opts", "--no-access-log --log-level=warning")
_LOCAL = ("localhost", "127.0.0.1", "[::1]")


def serve_page(args: argparse.Namespace) -> int:
    """Serve MLflow's page until Ctrl-C.

    Returns:
        The exit code.
    """
    uri = args.tracking_uri or default_uri(args.storage)
    own = owns_database(args.storage, uri)
    if own:
        _prepare_database(args)
    else:
        _check_address(uri)
    places = _places(uri, args)
    listening = _try_address(args.host, args.port)
    address = ["--host", args.host, "--port", str(args.port)]
    command = [sys.executable, "-m", "mlflow", "ui", *address, "--workers", "1", *_QUIET]
    if own:  # MLflow would otherwise look for artifacts in the working folder
        command += ["--artifacts-destination", str(args.storage.resolve() / "artifacts")]
    if not ipaddress.ip_address(listening).is_loopback:
        print(
            "hylorada: warning: the page has no password: anyone who can reach "
            f"{args.host}:{args.port} can read, change and delete these runs; without --host, only "
            "this machine can",
            file=sys.stderr,
        )
    for what, place in places.items():
        print(f"{what}: http://{_bracketed(args.host)}:{args.port}/{place}")
    print("Press Ctrl-C to stop.", flush=True)
    settings = {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_BACKEND_STORE_URI": uri,  # not an argument, because `ps` shows arguments
    }
    quiet = {
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        "MLFLOW_REGISTRY_STORE_URI": uri,  # otherwise MLflow prints that it takes this one
        "PYTHONWARNINGS": "ignore",
    }
    names = _names(args.host, listening, args.port)
    environment = {**names, **quiet, **os.environ, **settings}
    return _wait_for(subprocess.Popen(command, env=environment, start_new_session=True))


def _places(uri: str, args: argparse.Namespace) -> dict[str, str]:
    """Return what to open on the page, by what it shows."""
    if args.study is None:
        # Without the query, experiments of earlier versions open on traces of agents.
        return {"MLflow": "#/experiments?workflowType=machine_learning"}
    from studies.tracking.shown.page_places import find_shown  # slow to import

    study = find_shown(uri, args.storage, args.study)
    return {"MLflow": study.trials, "answer": study.answer}


def _check_address(uri: str) -> None:
    """Raise for an address whose runs can't be shown from here.

    Raises:
        InputError: It names the address, without its password.
    """
    from studies.tracking.mlflow_service import MlflowService  # slow to import
    from studies.tracking.services import service_for

    service = service_for(uri)
    if not isinstance(service, MlflowService):
        raise InputError(
            f"tracking_uri {shown(uri)!r} is not MLflow's; `hylorada ui` shows runs in MLflow alone"
        )
    if is_server(uri) or uri.startswith("databricks"):
        raise InputError(f"MLflow at {shown(uri)} has its own web UI: open it in a browser")
    path = database_path(uri)
    if path is not None and path.parent.is_dir() and not path.exists():
        raise InputError(f"tracking_uri {uri!r}: no file {path}; run a study first")
    if problems := service.check_address(uri):
        raise InputError(problems)


def _wait_for(server: "subprocess.Popen[bytes]") -> int:
    """Wait until the server exits; on Ctrl-C, end it and the workers that it would leave behind."""
    try:
        return server.wait()
    except KeyboardInterrupt:  # also raised for SIGTERM and a closed terminal
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()
        return 0


def _prepare_database(args: argparse.Namespace) -> None:
    """Raise for a missing or damaged database, and point it to the artifacts' present location."""
    database = args.storage / "mlflow.db"
    require_readable(args.storage)
    if not database.exists():
        raise InputError(
            f"storage {str(args.storage)!r} has no mlflow.db yet; run a study first, or give "
            "--storage"
        )
    if database.stat().st_size:
        require_database(database)
        follow_storage(args.storage)


def _try_address(host: str, port: int) -> str:
    """Return the numeric address of a host after checking that the port is free.

    On a port that is in use, MLflow would exit without an error.

    Raises:
        InputError: The address can't be listened on.
    """
    try:
        if not host:
            raise OSError("no address given")
        family, kind, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as MLflow does
            listener.bind((address[0], port, *address[2:]))
    # Some names that can't be looked up raise UnicodeError.
    except (OSError, OverflowError, UnicodeError) as error:
        raise InputError(
            f"can't serve on {host}:{port}: {error}; choose another --port or --host"
        ) from error
    return str(address[0]).partition("%")[0]


def _names(host: str, listening: str, port: int) -> Mapping[str, str]:
    """Return the MLflow settings that make the page accept requests addressed to its host's names.

    By default it accepts only those of loopback. Requests to any other host are rejected, so that a
    foreign web page can't reach this one through its own name.
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
    origins = [f"http://{name}:{port}" for name in shown_names]  # of the page's own requests
    return {
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(hosts),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(origins),
    }


def _own_addresses() -> set[str]:
    """Return this machine's addresses, as found through its name and its default route."""
    addresses = set()
    with suppress(OSError):
        for entry in socket.getaddrinfo(socket.gethostname(), None):
            addresses.add(str(entry[4][0]).partition("%")[0])
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        route.connect(("192.0.2.1", 9))  # an address reserved for documentation; sends nothing
        addresses.add(str(route.getsockname()[0]))
    return addresses


def _bracketed(host: str) -> str:
    """Return a host as it is written in a URL."""
    return f"[{host}]" if ":" in host else host
