"""``hylorada ui``: the hosts that the page accepts, and the artifacts of a moved folder."""

import argparse
import json
import shutil
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from mlflow.server.security_utils import is_allowed_host_header, should_block_cors_request
from mlflow_records import make_record
from study_runs import Command, wait_until

from hylorada import InputError
from studies.process.options import default_uri
from studies.tracking import services
from studies.tracking.experiment import open_runs
from studies.tracking.page import _names, serve_page


def _arguments(storage: Path, **changes: object) -> argparse.Namespace:
    return argparse.Namespace(
        **{
            "storage": storage,
            "tracking_uri": None,
            "host": "127.0.0.1",
            "port": 1,
            "study": None,
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("host", "listening", "header"),
    [
        ("gpu-box.lab", "10.1.2.3", "gpu-box.lab"),
        ("GPU-Box", "10.1.2.3", "gpu-box"),  # in the spelling of browsers
        ("203.0.113.5", "203.0.113.5", "203.0.113.5"),
        ("fd00::5", "fd00::5", "[fd00::5]"),
        ("0.0.0.0", "0.0.0.0", socket.gethostname().lower()),
        ("::", "::", socket.gethostname().lower()),
    ],
)
def test_page_answers_by_the_name_that_it_is_served_under(
    host: str, listening: str, header: str
) -> None:
    """MLflow's own rules check the host that a request names, and the page that it comes from."""
    settings = _names(host, listening, 5000)
    hosts = settings["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    origins = settings["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"].split(",")
    for name in (header, f"{header}:5000", "localhost:5000", "127.0.0.1:5000"):
        assert is_allowed_host_header(hosts, name)
    assert not should_block_cors_request(f"http://{header}:5000", "POST", origins)
    assert not is_allowed_host_header(hosts, "evil.example:5000")
    assert should_block_cors_request("http://evil.example:5000", "POST", origins)


def test_page_on_loopback_keeps_mlflows_own_rules() -> None:
    assert _names("127.0.0.1", "127.0.0.1", 5000) == _names("localhost", "127.0.0.1", 5000) == {}


@pytest.mark.parametrize("host", ["", "no.such.host.invalid", "203.0.113.5", "a" * 300])
def test_host_that_is_not_this_machine_is_refused(host: str, tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").touch()
    with pytest.raises(InputError, match=r"can't serve on .*; choose another --port or --host"):
        serve_page(_arguments(tmp_path, host=host))


def test_page_of_a_server_is_its_own(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"MLflow at http://\*\*\*@lab:5000 has its own web UI: open it"
    ):
        serve_page(_arguments(tmp_path, tracking_uri="http://ada:secret@lab:5000"))


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        ("jsonl:runs", "tracking_uri 'jsonl:runs': MLflow no longer supports folders of files"),
        ("htp://lab:5000", "tracking_uri 'htp://lab:5000' has an unknown scheme"),
        ("databricks", "MLflow at databricks has its own web UI"),
        ("sqlite:///{}/none.db", "no file .*none.db; run a study first"),
    ],
)
def test_address_that_can_not_be_served_is_one_error(
    tmp_path: Path, uri: str, problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        serve_page(_arguments(tmp_path, tracking_uri=uri.format(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_runs_of_another_service_are_not_mlflows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "_SERVICES", {"jsonl": object()})
    with pytest.raises(InputError, match="'jsonl:runs' is not MLflow's; `hylorada ui` shows runs"):
        serve_page(_arguments(tmp_path, tracking_uri="jsonl:runs"))


def test_damaged_database_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"garbage" * 100)
    with pytest.raises(InputError, match=r"mlflow\.db is damaged \(not an SQLite database\)"):
        serve_page(_arguments(tmp_path))


# --- the real page ---


@dataclass(frozen=True)
class Page:
    """A page that is being served, and the folder above its storage."""

    host: str
    port: int
    run: str
    folder: Path

    def ask(self, path: str, body: object = None, **headers: str) -> tuple[int, str]:
        """Return status and text of a response."""
        where = "127.0.0.1" if self.host == "0.0.0.0" else self.host
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{where}:{self.port}{path}", data, headers)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture(scope="module", params=["0.0.0.0", "127.0.0.2"])
def page(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Page]:
    """The page of a storage folder that was moved after its study."""
    folder = tmp_path_factory.mktemp("ui é")
    before = folder / "before"
    (before / "studies" / "a study").mkdir(parents=True)
    runs = open_runs(default_uri(before), "a study", before, "0123", print)
    runs.update(make_record(state="complete"))
    (before / "report.html").write_text("<p>the report")
    runs.finish({before / "report.html": ""}, {}, 1)
    storage = Path(shutil.move(before, folder / "after"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = Command("ui", f"--storage={storage}", f"--host={request.param}", f"--port={port}")
    opened = Page(request.param, port, runs.parent, folder)

    def answers() -> bool:
        assert command.poll() is None
        with suppress(OSError):
            return opened.ask("/health")[0] == 200
        return False

    wait_until(answers, 100)
    yield opened
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=60)
    assert command.returncode == 0
    assert f"MLflow: http://{request.param}:{port}/#/experiments" in out
    warning = f"warning: the page has no password: anyone who can reach 0.0.0.0:{port} can read, "
    assert (warning in err) == (request.param == "0.0.0.0")


@pytest.mark.faults
@pytest.mark.timeout(240)
def test_page_of_a_moved_folder_shows_artifacts(page: Page) -> None:
    assert page.ask(f"/get-artifact?path=report.html&run_uuid={page.run}") == (200, "<p>the report")
    assert not (page.folder / "before").exists()


@pytest.mark.faults
@pytest.mark.timeout(240)
def test_page_answers_and_works_by_its_hosts_name(page: Page) -> None:
    name = socket.gethostname().lower() if page.host == "0.0.0.0" else page.host
    search = "/ajax-api/2.0/mlflow/experiments/search"
    for host, status in ((f"{name}:{page.port}", 200), (f"evil.example:{page.port}", 403)):
        assert page.ask("/", Host=host)[0] == status
        assert page.ask(search, {"max_results": 5}, Host=host, Origin=f"http://{host}")[0] == status
    origin = f"http://evil.example:{page.port}"
    assert page.ask(search, {"max_results": 5}, Host=f"{name}:{page.port}", Origin=origin)[0] == 403
