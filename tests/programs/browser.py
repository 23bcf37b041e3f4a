"""A headless Chromium, driven through chromedriver's own HTTP interface, and pictures of pages."""

import base64
import io
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from PIL import Image

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    # As with a mouse; otherwise every chart shows its tools.
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,"
    "availablePointerTypes=4",
)
# MLflow's own assistant opens beside the first page, and stays closed once it was closed.
_CLOSE_ASSISTANT = """
const button = document.querySelector('[data-component-id="mlflow.assistant.chat_panel.close"]');
if (button) button.click();
"""
_COLORS = 128  # of a stored picture: MLflow's page has few


def find_browser() -> tuple[str, str] | None:
    """Return the paths of Chromium and of chromedriver; None without them."""
    chromium = next((path for name in _NAMES if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    return (chromium, driver) if chromium and driver else None


class Browser:
    """A browser's only window.

    Args:
        session: Address of chromedriver's session.
    """

    def __init__(self, session: str) -> None:
        self._session = session

    def open(self, address: str, awaited: str, timeout: float = 90) -> str:
        """Open a page, wait until it shows a text and stands still, and return its whole text."""
        ask(f"{self._session}/url", {"url": "about:blank"})  # a new fragment alone loads nothing
        ask(f"{self._session}/url", {"url": address})
        end, before, still = time.monotonic() + timeout, "", 0
        while still < 4:
            assert time.monotonic() < end, f"{awaited!r} is not on {address}:\n{before}"
            time.sleep(0.5)
            self.run(_CLOSE_ASSISTANT)
            text = self.run("return document.body.innerText")
            still = still + 1 if text == before and awaited in text else 0
            before = text
        return before

    def run(self, script: str) -> Any:
        """Run JavaScript in the page and return its result."""
        return ask(f"{self._session}/execute/sync", {"script": script, "args": []})

    def picture(self, path: Path) -> None:
        """Store a picture of the window as a small PNG."""
        content = base64.b64decode(ask(f"{self._session}/screenshot"))
        with Image.open(io.BytesIO(content)) as shot:
            shot.convert("RGB").quantize(_COLORS).save(path, optimize=True)


def ask(address: str, body: object = None, method: str | None = None) -> Any:
    """Return the value that chromedriver answers with."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, method=method)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.loads(response.read())["value"]


@contextmanager
def browser(width: int, height: int) -> Iterator[Browser]:
    """Start a browser with a window of this size and a fresh profile."""
    paths = find_browser()
    assert paths is not None
    chromium, driver = paths
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    root = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as profile:
        process = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL)
        try:
            _await(root)
            flags = [*_FLAGS, f"--window-size={width},{height}", f"--user-data-dir={profile}"]
            options = {"browserName": "chrome", "goog:chromeOptions": {"binary": chromium}}
            options["goog:chromeOptions"]["args"] = flags  # type: ignore[index]
            session = ask(f"{root}/session", {"capabilities": {"alwaysMatch": options}})
            address = f"{root}/session/{session['sessionId']}"
            try:
                yield Browser(address)
            finally:
                ask(address, method="DELETE")
        finally:
            process.terminate()
            process.wait(timeout=30)


def _await(root: str) -> None:
    for _ in range(200):
        with suppress(OSError):
            if ask(f"{root}/status")["ready"]:
                return
        time.sleep(0.1)
    raise TimeoutError("chromedriver does not answer")
