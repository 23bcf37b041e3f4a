"""A reverse proxy in front of an MLflow server, with a login, TLS, or only some paths."""

import base64
import datetime
import ipaddress
import ssl
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_DROPPED = ("host", "connection", "transfer-encoding", "content-length", "authorization")
NOT_FOUND = (
    b"<html><head><style>p {}</style></head><body><h1>404</h1>\n"
    b"<p>No such page\x1b[31m here</p></body></html>"
)


class Gateway:
    """A proxy that refuses some requests, which never reach the server.

    Args:
        server: port of the server behind it, on loopback.
        authorization: header that it requires; see :func:`basic`.
        only: beginning of the paths that it passes on.
        certificate: PEM file with key and certificate, for TLS.
    """

    def __init__(
        self,
        server: int,
        *,
        authorization: str = "",
        only: str = "/",
        certificate: Path | None = None,
    ):
        self.authorization, self.only, self._server = authorization, only, server
        self.refused: list[str] = []
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def _pass_on(self) -> None:
                gateway.answer(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on  # noqa: N815 - the library's names

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self.host = f"127.0.0.1:{self._http.server_port}"
        self.uri = f"{'http' if certificate is None else 'https'}://{self.host}"
        threading.Thread(target=self._http.serve_forever, args=[0.05], daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        if self.authorization and request.headers.get("Authorization") != self.authorization:
            self._refuse(request, 401, b"You are not authenticated.\nAsk the admin.")
        elif not request.path.startswith(self.only):
            self._refuse(request, 404, NOT_FOUND)
        else:
            self._forward(request, body)

    def _refuse(self, request: BaseHTTPRequestHandler, status: int, text: bytes) -> None:
        self.refused.append(request.path)
        _send(request, status, {}, text)

    def _forward(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        connection = HTTPConnection("127.0.0.1", self._server, timeout=60)
        kept = {k: v for k, v in request.headers.items() if k.lower() not in _DROPPED}
        connection.request(request.command, request.path, body or None, kept)
        answer = connection.getresponse()
        _send(request, answer.status, dict(answer.getheaders()), answer.read())
        connection.close()


def _send(
    request: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes
) -> None:
    request.send_response(status)
    for name, value in headers.items():
        if name.lower() not in _DROPPED:
            request.send_header(name, value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def basic(user: str, password: str) -> str:
    """Return the header of HTTP's basic authentication."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def write_certificate(path: Path) -> Path:
    """Write a key and a self-signed certificate for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mlflow")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(
        now + datetime.timedelta(days=9)
    )
    certificate = builder.add_extension(address, critical=False).sign(key, hashes.SHA256())
    kind, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(kind, form, serialization.NoEncryption())
    path.write_bytes(secret + certificate.public_bytes(kind))
    return path
