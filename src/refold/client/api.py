"""HTTP calls to the holder of a store, with its typed errors raised again on this side."""

from __future__ import annotations

import http.client
import urllib.parse
from typing import Any

from refold.canonical import decode, encode
from refold.errors import RefoldError

Json = Any


class Unreachable(RefoldError):
    """The server does not answer, or went away in the middle of an answer."""

    kind = "server_unreachable"


class Refusal(RefoldError):
    """The server said no. `kind` and `data` are the server's, `status` the HTTP status."""

    def __init__(self, status: int, body: dict[str, Json]) -> None:
        data = {name: value for name, value in body.items() if name not in ("error", "kind")}
        super().__init__(str(body.get("error", f"HTTP {status}")), kind=str(body.get("kind", "internal")), **data)
        self.status = status


class Api:
    """One server, under one token. Loopback only, so proxies of the environment are never asked."""

    def __init__(self, url: str, token: str, timeout: float | None = None) -> None:
        self.url = url
        self.token = token
        parts = urllib.parse.urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._timeout = timeout

    def get(self, path: str) -> Json:
        """The body of a GET; raises Refusal, Unreachable."""
        return decode(self._call("GET", path, None))

    def get_bytes(self, path: str) -> bytes:
        """The body of a GET that is no JSON, as it is; raises Refusal, Unreachable."""
        return self._call("GET", path, None)

    def post(self, path: str, body: Json = None) -> Json:
        """The body of a POST; raises Refusal, Unreachable."""
        return decode(self._call("POST", path, body))

    def _call(self, method: str, path: str, body: Json) -> bytes:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, b"" if body is None else encode(body).encode(), headers)
            response = connection.getresponse()
            status, said = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"the server at {self._host}:{self._port} went away: {error!r}") from error
        finally:
            connection.close()
        if status >= 400:
            raise Refusal(status, decode(said))
        return said
