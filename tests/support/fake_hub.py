"""A Hugging Face hub on this machine: the part that uploads and downloads of a repository need."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from huggingface_hub import constants

COMMIT = "0" * 40


class FakeHub(ThreadingHTTPServer):
    """Holds what has been pushed.

    Attributes:
        files: contents by name, of each repository.
        summaries: the messages of all commits.
        tokens: the authorization of each request that changes something.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.summaries: list[str] = []
        self.tokens: set[str | None] = set()

    @property
    def address(self) -> str:
        """Address of the hub."""
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def fake_hub(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[FakeHub]:
    """Serve a hub that huggingface_hub uses from now on, with an empty cache of its own."""
    hub = FakeHub()
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    template = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    yield hub
    hub.shutdown()
    hub.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.tokens.add(self.headers["Authorization"])
        place = f"{self.server.address}/me/adapter"
        answer: dict[str, Any] = {
            "url": place,
            "commitUrl": f"{place}/commit/{COMMIT}",
            "commitOid": COMMIT,
        }
        if "/preupload/" in self.path:
            answer["files"] = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                for f in json.loads(body)["files"]
            ]
        elif "/commit/" in self.path:
            self._commit(self.path.removeprefix("/api/models/").partition("/commit/")[0], body)
        self._answer(answer)

    def _commit(self, repository: str, body: bytes) -> None:
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "header":
                self.server.summaries.append(line["value"]["summary"])
            else:
                content = base64.b64decode(line["value"]["content"])
                files = self.server.files.setdefault(repository, {})
                files[line["value"]["path"]] = content

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path.startswith("/api/models/"):
            self._describe(path.removeprefix("/api/models/"))
        elif "/resolve/" in path:
            repository, _, rest = path[1:].partition("/resolve/")
            self._send(self.server.files[repository][rest.partition("/")[2]])
        else:
            self._answer({})

    def _describe(self, path: str) -> None:
        repository = "/".join(path.split("/")[:2])
        files = self.server.files.get(repository, {})
        if "/tree/" in path:
            self._answer(
                [
                    {"type": "file", "path": name, "size": len(content), "oid": _oid(content)}
                    for name, content in files.items()
                ]
            )
        elif files or "/revision/" not in path:
            self._answer({"id": repository, "sha": COMMIT, "siblings": []})
        else:
            self._answer({"error": "Repository not found"}, 404)

    def _answer(self, values: Any, status: int = 200) -> None:
        self._send(json.dumps(values).encode(), status, "application/json")

    def _send(
        self, content: bytes, status: int = 200, kind: str = "application/octet-stream"
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{_oid(content)}"')
        self.send_header(constants.HUGGINGFACE_HEADER_X_REPO_COMMIT, COMMIT)
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


def _oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
