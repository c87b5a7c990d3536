"""The HTTP door on a real socket: what only bytes on a wire show."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from http_kit import Server, launching

from refold.canonical import encode
from refold.server.host import _bind
from refold.server.reading import BODY_BYTES


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("home")).serving() as server:
        yield server


def said(server: Server, text: str) -> bytes:
    """What the server answers to these bytes, up to the end of the connection."""
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), 20) as wire:
        wire.sendall(text.replace("\n", "\r\n").encode())
        wire.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: wire.recv(65536), b""))


def test_a_client_that_sends_first_and_reads_later_gets_its_413(server: Server) -> None:
    where = urlsplit(server.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=20)
    body = encode(launching(goal="x" * BODY_BYTES)).encode()
    connection.request("POST", "/v1/tasks", body, server.headers() | {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert (response.status, b"body_too_large" in response.read()) == (413, True)
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200, "and the connection goes on"
    connection.close()


def test_head_has_the_headers_and_no_body(server: Server) -> None:
    with httpx.Client(base_url=server.url, headers=server.headers(), trust_env=False) as client:
        whole, head = client.get("/v1/status"), client.head("/v1/status")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(whole.content))


def test_the_host_is_given_once(server: Server) -> None:
    host = urlsplit(server.url).netloc
    end = "Connection: close\n\n"
    assert said(server, f"GET /healthz HTTP/1.1\nHost: {host}\n{end}").startswith(b"HTTP/1.1 200")
    assert said(server, f"GET /healthz HTTP/1.1\nHost: {host}\nHost: {host}\n{end}").startswith(b"HTTP/1.1 400")
    assert said(server, f"GET /healthz HTTP/1.0\n{end}").split(b" ")[1] in (b"400", b"403")
    assert said(server, f"GET http://{host}/healthz HTTP/1.1\nHost: evil.example\n{end}").split(b" ")[1] == b"403"


def test_what_is_sent_does_not_wait_for_what_was_sent_before() -> None:
    """A push behind an answer would leave 40 ms later. Measured here, it would be luck; so the option is asked for."""
    with _bind("127.0.0.1:0") as listener, socket.create_connection(listener.getsockname(), 20):
        listener.setblocking(True)
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_server_on_ipv6_knows_its_own_name(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no ::1")
    with Server(tmp_path, "[::1]:0").serving() as server:
        assert server.url.startswith("http://[::1]:")
        with httpx.Client(base_url=server.url, headers=server.headers(), trust_env=False) as client:
            assert client.get("/v1/status").status_code == 200
            port = urlsplit(server.url).port
            for host, status in ((f"localhost:{port}", 200), (f"[::1]:{port}", 200), (f"::1:{port}", 403)):
                assert client.get("/healthz", headers={"Host": host}).status_code == status
