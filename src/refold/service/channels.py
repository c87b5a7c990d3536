"""The ways in which a person is told that a Run waits for one: a program, or a web address.

Both get the same JSON object and say what went wrong, None if nothing did. They hold nothing between two calls; being
cancelled ends what is under way. What they say is fit for a log: an address can be a secret by itself (those of chat
services are), so only its host is named.

Not here: whom to tell of what, and when again (`notifier`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import ssl
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from refold.engine.agents import Tools
from refold.engine.agents.output import decoded, tail
from refold.engine.agents.process import Process
from refold.errors import ConfigInvalid

OUTPUT_BYTES: Final = 64 * 1024
"""What a program may print; it is read and dropped, and one that prints more is killed."""

STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] (\d{3})(?: |\r)")


class Channel(Protocol):
    """A way to tell somebody."""

    async def send(self, body: str, names: Mapping[str, str]) -> str | None:
        """Hands over `body`; what went wrong, None if nothing did. `names` are what it is about, as environment."""
        ...


class Program:
    """Runs a program with the body on its standard input. Exit code 0 means that it took it.

    It is started as agents of kind `subprocess` are: without a shell, in a process group of its own that the reaper
    knows, with the allow-listed part of the server's environment.
    """

    def __init__(self, argv: Sequence[str], tools: Tools) -> None:
        self._argv = argv
        self._tools = tools

    async def send(self, body: str, names: Mapping[str, str]) -> str | None:
        """As `Channel` says."""
        tools = self._tools
        try:
            process = Process(
                self._argv,
                stdin=body.encode(),
                env={**tools.environment, **names, "REFOLD_SERVER": tools.reaper.server_id},
                cwd=None,
                reaper=tools.reaper,
                output_bytes=OUTPUT_BYTES,
                tail_bytes=256,
            )
        except (OSError, ValueError) as error:
            return f"{self._argv[0]} cannot be started: {error}"
        try:
            await process.finished(tools.drain_secs)
        finally:
            await process.stop(tools.grace_secs)
        if process.exit_code == 0:
            return None
        said = decoded(tail(process.stderr, 256))[0]
        return f"{self._argv[0]} exited with {process.exit_code}: {tools.secrets.redact(said)}"


class Webhook:
    """POSTs the body as JSON. A status of 2xx means that it was taken; redirects are not followed.

    A connection of its own per message, and no proxy: a message is rare, and what it says is for one host only.
    """

    def __init__(self, url: str) -> None:
        parts = check_url(url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
        self._head = (
            f"POST {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
            "User-Agent: refold\r\nConnection: close\r\n"
        )

    async def send(self, body: str, names: Mapping[str, str]) -> str | None:
        """As `Channel` says; `names` stand in the body too."""
        data = body.encode()
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
            try:
                writer.write(f"{self._head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
                await writer.drain()
                line = await reader.readline()
            finally:
                writer.transport.abort()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
        except (OSError, ValueError) as error:  # ValueError: a first line without an end
            return f"{self._host} cannot be reached: {type(error).__name__}: {error}"
        status = STATUS_LINE.match(line)
        if status is None:
            return f"{self._host} answers with something that is not HTTP"
        return None if status[1].startswith(b"2") else f"{self._host} answers with status {status[1].decode()}"


def check_url(url: str) -> urllib.parse.SplitResult:
    """The parts of a web address that may be told. Raises ConfigInvalid, without the address in its text.

    Plain http is for this machine only: what a request shows would cross the network for everybody to read.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ConfigInvalid("notify_url is no URL") from None
    if not host or parts.scheme not in ("http", "https") or not re.fullmatch(r"[\x21-\x7e]+", url):
        raise ConfigInvalid("notify_url is no http or https URL")
    if parts.username is not None or parts.fragment:
        raise ConfigInvalid("notify_url names a user or a fragment; neither would be sent")
    if parts.scheme == "http" and not _is_loopback(host):
        raise ConfigInvalid(f"notify_url is plain http to {host}; use https, or a loopback address")
    return parts


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
