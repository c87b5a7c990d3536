"""One Session as a client of the protocol sees it: a fold that outlives its connections.

`Wire` is one WebSocket: calls, and the notifications that arrive meanwhile. `SessionClient` is the state of one
Session: it folds what is pushed, pages what is missing, and comes back over another wire with its cursor.

Law: after every method the state is the fold of a whole prefix of the Session's view, whatever was cut off where.
Blocking, for commands and scripts. Not here: the fold itself (`view.fold`), HTTP (`client.api`).
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import uuid_utils
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import connect

from refold import __version__
from refold.canonical import decode, encode
from refold.client.api import Unreachable
from refold.errors import RefoldError
from refold.view import Outcome, ViewState, apply, fold_digest, seed

Json = Any

CALL_SECS: Final = 30.0
"""How long an answer may take before the server counts as gone."""
PAGE: Final = 500
"""Frames of one page."""
_MOVED: Final = frozenset({Outcome.APPLIED, Outcome.UNKNOWN})
"""What became of a frame that took the state one event further."""


class CallRefused(RefoldError):
    """The host answered a call with an error. `kind` and `data` are the host's."""

    def __init__(self, method: str, error: Json) -> None:
        data = {name: value for name, value in (error.get("data") or {}).items() if name != "kind"}
        kind = (error.get("data") or {}).get("kind", "internal")
        super().__init__(f"{method}: {error.get('message', 'refused')}", kind=kind, **data)


class Wire:
    """One initialised connection to the host at `url`. Raises Unreachable, also later, when it breaks."""

    def __init__(self, url: str, token: str, client: str = "refold") -> None:
        self._where = url.replace("http://", "ws://", 1) + "/v1/msp"
        self._ids = itertools.count(1)
        self._arrived: deque[Json] = deque()
        self._open = contextlib.ExitStack()
        headers = {"Authorization": f"Bearer {token}"}
        try:
            self._socket = self._open.enter_context(
                connect(
                    self._where,
                    additional_headers=headers,
                    max_size=None,
                    compression=None,
                    proxy=None,
                    ping_interval=None,
                )
            )
        except (OSError, InvalidHandshake) as error:
            raise Unreachable(f"the server at {self._where} does not answer: {error!r}") from error
        self.call("initialize", {"clientInfo": {"name": client, "version": __version__}})
        self._send({"method": "initialized"})

    def call(self, method: str, params: Json) -> Json:
        """The result of a call; what else arrives until then is kept. Raises CallRefused, Unreachable."""
        request = next(self._ids)
        self._send({"id": request, "method": method, "params": params})
        deadline = time.monotonic() + CALL_SECS
        while (frame := self._receive(deadline - time.monotonic())) is not None:
            if "method" in frame or frame.get("id") != request:
                self._arrived.append(frame)
            elif "error" in frame:
                raise CallRefused(method, frame["error"])
            else:
                return frame["result"]
        raise Unreachable(f"the server at {self._where} did not answer {method} within {CALL_SECS:g} s")

    def command(self, method: str, params: Json) -> Json:
        """As `call`, under a command id of its own."""
        return self.call(method, {"commandId": str(uuid_utils.uuid7()), **params})

    def next(self, secs: float) -> Json:
        """The next frame that is no answer, waiting up to `secs` for it; None if there is none. Raises Unreachable."""
        return self._arrived.popleft() if self._arrived else self._receive(secs)

    def close(self) -> None:
        """Hangs up."""
        self._open.close()

    def _send(self, frame: Json) -> None:
        try:
            self._socket.send(encode({"jsonrpc": "2.0", **frame}))
        except (OSError, ConnectionClosed) as error:
            raise self._gone(error) from error

    def _receive(self, secs: float) -> Json:
        try:
            return decode(self._socket.recv(max(0.0, secs)))
        except TimeoutError:
            return None
        except (OSError, ConnectionClosed) as error:
            raise self._gone(error) from error

    def _gone(self, error: Exception) -> Unreachable:
        return Unreachable(f"the server at {self._where} went away: {error!r}")


class SessionClient:
    """The state of one Session, and how many events it folded. `wire` is the connection at this moment."""

    def __init__(self, wire: Wire, session_id: str) -> None:
        self.session_id = session_id
        self.state = ViewState()
        self.folded = 0
        self._wire = wire

    @classmethod
    def start(cls, wire: Wire, model: str) -> SessionClient:
        """Creates a Session for the Blueprint `model` and follows it from its first event."""
        answer = wire.command("session/start", {"modelId": model})
        client = cls(wire, answer["session"]["sessionId"])
        client.catch_up()  # the events that session/start itself wrote are covered by its answer, and not pushed
        return client

    @property
    def digest(self) -> str:
        """The fold digest of the state."""
        return fold_digest(self.state)

    def turn(self, text: str, display: str | None = None) -> str:
        """Starts a turn with `text` as input; its turn id."""
        shown = {} if display is None else {"displayText": display}
        params = {"sessionId": self.session_id, "input": [{"type": "text", "text": text}], **shown}
        return self._wire.command("turn/start", params)["turnId"]

    def resume(self, wire: Wire, history: str = "auto") -> Json:
        """Comes back over `wire`: with the cursor if there is a state, else for a form of history. What was served."""
        self._wire = wire
        cursor = {} if self.state.cursor is None else {"cursor": self.state.cursor}
        params = {"sessionId": self.session_id, "history": history, **cursor}
        served = wire.command("session/resume", params)["history"]
        if served["mode"] != "none" or served.get("noneReason") != "cursorSuffix":
            self._begin_anew(served.get("snapshot"))
        return served

    def receive(self, secs: float) -> bool:
        """Folds all that has arrived, waiting up to `secs` for the first frame; False if nothing came."""
        frame = self._wire.next(secs)
        if frame is None:
            return False
        while frame is not None:
            self._take(frame)
            frame = self._wire.next(0)
        return True

    def catch_up(self) -> None:
        """Folds every event between the state and the head of the view."""
        for frame in self._pages():
            self.folded += apply(self.state, frame) in _MOVED

    def _take(self, frame: Json) -> None:
        outcome = apply(self.state, frame)
        self.folded += outcome in _MOVED
        if outcome is Outcome.GAP:
            self.catch_up()

    def _begin_anew(self, snapshot: Json) -> None:
        """Seeds the state. What was elided, or came in a form that is not known here, is paged from the first event."""
        if snapshot is not None:
            self.state = seed(snapshot)
            if self.digest == snapshot["foldDigest"]:
                return
        self.state, self.folded = ViewState(), 0
        self.catch_up()

    def _pages(self) -> Iterator[Json]:
        cursor = self.state.cursor
        while True:
            after = {} if cursor is None else {"cursor": cursor}
            page = self._wire.call("view/page", {"sessionId": self.session_id, "limit": PAGE, **after})
            yield from page["events"]
            cursor = page["nextCursor"]
            if cursor is None:
                return
