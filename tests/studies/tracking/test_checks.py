"""Which addresses of MLflow are accepted, before any compute and without side effects."""

import json
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from gateway import Gateway, basic, write_certificate
from mlflow.tracking._tracking_service.utils import _tracking_store_registry

from studies.files.paths import unwritable
from studies.process.mlflow_address import heed_environment, redact, shown
from studies.process.provenance import command_line
from studies.tracking.checks import check_server, check_tracking

pytestmark = pytest.mark.usefixtures("short_waits")

_UNKNOWN = {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no experiment of this name"}
_DEFAULT = {"experiment_id": "0", "name": "Default", "artifact_location": "mlflow-artifacts:/0"}
Answer = Callable[[str], tuple[int, str]]


def _like_mlflow(path: str) -> tuple[int, str]:
    """Return the response of an MLflow server without studies."""
    if path.startswith("/api/2.0/mlflow/experiments/get-by-name?"):
        return 404, json.dumps(_UNKNOWN)
    if path.startswith("/api/2.0/mlflow/experiments/search"):
        return 200, json.dumps({"experiments": [_DEFAULT]})
    return 404, "not MLflow's"


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], int]]:
    """A function that starts a server with the given responses, and returns its port."""
    servers: list[HTTPServer] = []

    def start(answer: Answer) -> int:
        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, body = answer(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            do_GET = do_POST = _answer  # noqa: N815 - the library's names

            def log_message(self, *_: object) -> None:
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, args=[0.05], daemon=True).start()
        return servers[-1].server_port

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def gateway(serve: Callable[[Answer], int]) -> Iterator[Gateway]:
    """A gateway that passes on all requests until a test restricts it."""
    opened = Gateway(serve(_like_mlflow))
    yield opened
    opened.close()


# --- kinds of addresses ---


@pytest.mark.parametrize(
    "uri", ["./mlruns", "mlruns", "/tmp/mlruns", "file:///tmp/mlruns", "file:mlruns", ""]
)
def test_folders_are_refused_with_the_way_out(uri: str) -> None:
    (problem,) = check_tracking(uri)
    assert problem.startswith(f"tracking_uri {uri!r}: MLflow no longer supports folders of files")
    assert "sqlite:///PATH" in problem
    assert "mlflow migrate-filestore" in problem


@pytest.mark.parametrize(
    ("uri", "hint"),
    [
        ("htp://host:5000", "did you mean 'http'?"),
        ("postgres://u@h/db", "did you mean 'postgresql'?"),
        ("databricks-uc", "did you mean 'databricks'?"),
        ("s3://bucket", "one of: databricks, http, https, mssql, mysql, postgresql, sqlite"),
    ],
)
def test_unknown_kinds_are_refused_with_the_nearest(uri: str, hint: str) -> None:
    (problem,) = check_tracking(uri)
    assert problem.startswith(f"tracking_uri {shown(uri)!r} has an unknown scheme; {hint}")


def test_databases_and_databricks_are_accepted(tmp_path: Path) -> None:
    there = tmp_path / "there.db"
    with closing(sqlite3.connect(there)) as database:
        database.execute("CREATE TABLE runs (id)")
    for uri in (f"sqlite:///{there}", f"sqlite:///{tmp_path / 'new.db'}", "sqlite:///new.db"):
        assert check_tracking(uri) == []
    assert check_tracking("databricks") == check_tracking("databricks://profile") == []
    assert list(tmp_path.iterdir()) == [there]


def test_kinds_that_mlflow_has_a_plugin_for_are_asked_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gateway: Gateway
) -> None:
    """The plugin is a package with an entry point, as MLflow's manual describes it."""
    (tmp_path / "lab_store.py").write_text(
        "from mlflow.store.tracking.rest_store import RestStore\n"
        "from mlflow.utils.rest_utils import MlflowHostCreds\n"
        f"def Lab(**_): return RestStore(lambda: MlflowHostCreds({gateway.uri!r}))\n"
    )
    info = tmp_path / "lab_store-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-store\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mlflow.tracking_store]\nlab = lab_store:Lab\n")
    assert "has an unknown scheme" in check_tracking("lab://here")[0]
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        _tracking_store_registry, "_registry", dict(_tracking_store_registry._registry)
    )
    _tracking_store_registry.register_entrypoints()  # type: ignore[no-untyped-call]
    assert check_tracking("lab://here") == []
    assert check_server("lab://here", "new") == []
    assert "did you mean 'lab'?" in check_tracking("lap://here")[0]


def test_unusable_sqlite_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a database")
    for uri, message in (
        (f"sqlite:///{tmp_path}", "is a folder; name a file in it"),
        (f"sqlite:///{tmp_path / 'text'}", "is not a SQLite database"),
        (
            f"sqlite:///{tmp_path / 'text' / 'x.db'}",
            f"can't be written: {tmp_path / 'text'} is a file",
        ),
        (f"sqlite:///{tmp_path / 'new' / 'x.db'}", f"no folder {tmp_path / 'new'}"),
        ("sqlite:////proc/x.db", "can't be written: no file can be created in /proc"),
        ("sqlite://", "names no file"),
        ("sqlite:///?mode=ro", "names no file"),
        ("postgresql+nope://u@h/db", "needs a driver that is not installed"),
        ("mysql", "is not a database address"),
        ("postgresql://u@h:port/db", "is not a database address"),
        ("http://[", "is not an address: Invalid IPv6 URL"),
    ):
        (problem,) = check_tracking(uri)
        assert message in problem
    assert [p.name for p in tmp_path.iterdir()] == ["text"]


def test_unwritable_leaves_no_trace(tmp_path: Path) -> None:
    assert unwritable(tmp_path / "a" / "b") is None
    assert unwritable(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


# --- responses of a server ---


@pytest.mark.parametrize(
    "uri", ["http://127.0.0.1:9", "https://127.0.0.1:9/x", "http://", "http://no.such.host.invalid"]
)
def test_unreachable_server_is_refused_within_seconds(uri: str) -> None:
    began = time.monotonic()
    (problem,) = check_server(uri, "new")
    assert problem.startswith(f"tracking_uri {uri!r} can't be reached: ")
    assert time.monotonic() - began < 8


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (
            401,
            "Sign in first.\n\nThen come back.",
            "401: Sign in first. Then come back.; MLFLOW_TRACKING_USERNAME",
        ),
        (
            403,
            '{"error_code": "PERMISSION_DENIED", "message": "not yours"}',
            "PERMISSION_DENIED: not yours; MLFLOW_TR",
        ),
        (404, "<title>nginx</title><style>a{}</style><p>No \x1b[31mpage", "404: nginx No [31mpage"),
        (200, "<h1>Log in</h1>", "no JSON: Log in"),
        (500, "", "too many 500 error responses"),
        (404, "", "404: empty response"),
    ],
)
def test_refusal_quotes_the_server(
    serve: Callable[[Answer], int], status: int, body: str, reason: str
) -> None:
    uri = f"http://127.0.0.1:{serve(lambda _: (status, body))}"
    (problem,) = check_server(uri, "new")
    kind = "can't be reached" if status == 500 else "rejects the request"
    assert problem.startswith(f"tracking_uri {uri!r} {kind}: {reason}")
    assert problem.isprintable()


def test_server_that_hides_its_first_experiment_is_accepted(serve: Callable[[Answer], int]) -> None:
    answer: Answer = lambda path: (200, "{}") if "search" in path else _like_mlflow(path)  # noqa: E731
    assert check_server(f"http://127.0.0.1:{serve(answer)}", "new") == []


def test_gateway_that_passes_on_the_api_alone_is_accepted(gateway: Gateway) -> None:
    gateway.only = "/api/"
    assert check_server(gateway.uri + "/", "new") == []
    assert gateway.refused == []


def test_login_is_the_one_of_mlflows_variables(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.authorization = basic("ada", "p@ss/word")
    (problem,) = check_server(gateway.uri, "new")
    assert problem.startswith(
        f"tracking_uri {gateway.uri!r} rejects the request: 401: You are not authenticated. "
        "Ask the admin.; "
    )
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wrong")
    assert check_server(gateway.uri, "new") == [problem]
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "p@ss/word")
    assert check_server(gateway.uri, "new") == []


def test_login_is_the_one_of_the_address_or_a_token(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.authorization = basic("ada", "p@ss/word")
    assert check_server(f"http://ada:p%40ss%2Fword@{gateway.host}", "new") == []
    (problem,) = check_server(f"http://ada:secret@{gateway.host}", "new")
    assert problem.startswith(
        f"tracking_uri 'http://***@{gateway.host}' rejects the request: 401: "
    )
    assert "secret" not in problem
    gateway.authorization = "Bearer of-a-token"
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "of-a-token")
    assert check_server(gateway.uri, "new") == []


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_certificate_is_trusted_by_mlflows_variables(
    serve: Callable[[Answer], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = write_certificate(tmp_path / "server.pem")
    gateway = Gateway(serve(_like_mlflow), certificate=certificate)
    (problem,) = check_server(gateway.uri, "new")
    assert problem.startswith(
        f"tracking_uri {gateway.uri!r} can't be trusted: certificate verify failed: self-signed "
        "certificate; MLFLOW_TRACKING_SERVER_CERT_PATH"
    )
    for name, value in (("SERVER_CERT_PATH", str(certificate)), ("INSECURE_TLS", "true")):
        with monkeypatch.context() as patch:
            patch.setenv(f"MLFLOW_TRACKING_{name}", value)
            assert check_server(gateway.uri, "new") == []
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", "/no/such.pem")
    assert "/no/such.pem" in check_server(gateway.uri, "new")[0]
    gateway.close()


# --- passwords, and the choice of the address ---


@pytest.mark.parametrize(
    ("uri", "safe"),
    [
        ("http://ada:secret@host:5000/x", "http://***@host:5000/x"),
        ("https://secret@host", "https://***@host"),
        ("http://ada:s/ec?r#e t@secret@host", "http://***@host"),
        ("postgresql://ada:sec/ret@host:5/db", "postgresql://***@host:5/db"),
        ("mssql+pyodbc://host/db?odbc_connect=PWD=secret", "mssql+pyodbc://host/db?***"),
        ("--tracking-uri=http://ada:secret@host", "--tracking-uri=http://***@host"),
        ("sqlite:////home/ada@lab/x.db?timeout=3", "sqlite:////home/ada@lab/x.db?timeout=3"),
        ("http://host:5000/x", "http://host:5000/x"),
        ("databricks://profile", "databricks://profile"),
        ("ada@host", "ada@host"),
    ],
)
def test_no_password_is_shown(uri: str, safe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(uri) == safe
    monkeypatch.setattr(sys, "argv", ["hylorada", "run", uri])
    assert "secret" not in command_line()


def test_no_password_is_shown_within_a_message() -> None:
    text = (
        "API request to http://ada:secret@host/api failed, see https://docs.host/x or ask root@host"
    )
    assert (
        redact(text)
        == "API request to http://***@host/api failed, see https://docs.host/x or ask root@host"
    )


@pytest.mark.parametrize(
    ("option", "variable", "taken", "note"),
    [
        (None, None, None, ""),
        ("sqlite:///x.db", None, "sqlite:///x.db", ""),
        (None, "", None, ""),
        ("http://b", "http://b", "http://b", ""),
        (
            None,
            "http://u:p@b",
            "http://u:p@b",
            "MLflow at http://***@b, from MLFLOW_TRACKING_URI\n",
        ),
        (
            "http://a",
            "http://u:p@b",
            "http://a",
            "MLflow at http://a, from --tracking-uri; "
            "MLFLOW_TRACKING_URI (http://***@b) is ignored\n",
        ),
    ],
)
def test_option_goes_before_mlflows_variable(
    option: str | None,
    variable: str | None,
    taken: str | None,
    note: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if variable is not None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", variable)
    assert heed_environment(option) == taken
    assert capsys.readouterr().err == (f"hylorada: note: {note}" if note else "")
