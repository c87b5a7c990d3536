"""`refold watch events`: a Session's events in a terminal, over server restarts, never repeated and never skipped."""

from __future__ import annotations

import http.client
import sys
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final

from cyclopts import Parameter

from refold.canonical import decode, encode
from refold.cli.doors import configured, database, holder, say
from refold.client.api import Api, Refusal, Unreachable
from refold.server.config import store_path

Json = Any
Flag = Annotated[bool, Parameter(negative=())]

AGAIN_SECS: Final = 0.2
"""Between two looks for a server, while there is none."""


def events(session: str, *, after: str | None = None, store: str | None = None) -> int:
    """Prints a Session's events as JSON lines: those that are there, after a cursor if one is given.

    Parameters
    ----------
    session
        The Session, or a Run of it.
    after
        A cursor, as events carry it.
    store
        The store's file; default $REFOLD_HOME/store/refold.db.
    """
    home, config = configured(store)
    api = holder(home, config)
    if api is None:
        _peek().events(database(home, config), session, after, lambda frame: _print(encode(frame)))
        return 0
    for frame in _stream(api, _session_of(api, session), after, follow=False):
        _print(encode(frame))
    return 0


def watch(
    session: str,
    *,
    after: str | None = None,
    cursor_file: Path | None = None,
    store: str | None = None,
    jsonl: Flag = False,
) -> int:
    """Follows a Session until the Run or turn that is watched has ended, also over restarts of the server.

    Of an imported copy, in which nothing will ever happen, it shows what there is.

    Parameters
    ----------
    session
        The Session, or a Run of it; a Run is watched to its end.
    after
        A cursor to begin after.
    cursor_file
        Keeps the cursor of the last line that was printed; a later watch goes on from there.
    store
        The store's file; default $REFOLD_HOME/store/refold.db.
    jsonl
        One JSON object a line, as `events` prints them.
    """
    home, config = configured(store)
    if cursor_file is not None and cursor_file.exists():
        after = cursor_file.read_text().strip() or after
    session_id: str | None = None
    waiting = False
    while True:
        api = holder(home, config)
        if api is None:
            if not waiting:
                path = store_path(config, home)
                if path.exists() and _peek().is_copy(path):
                    _peek().events(path, session, after, lambda frame: _print(encode(frame) if jsonl else _line(frame)))
                    return 0
                say("nobody serves this store; waiting for a server")
            waiting = True
            time.sleep(AGAIN_SECS)
            continue
        waiting = False
        try:
            session_id = session_id or _session_of(api, session)
            over = session.startswith("R-") and _has_ended(api, session)  # then there is nothing to wait for
            for frame in _stream(api, session_id, after, follow=not over):
                _print(encode(frame) if jsonl else _line(frame))
                after = frame["params"].get("viewCursor", after)
                if cursor_file is not None and after is not None:
                    _keep(cursor_file, after)
                if _is_the_end(api, session, frame):
                    return 0
            if over:
                return 0
        except Unreachable as gone:
            say(f"{gone.message}; going on from the last cursor")
            time.sleep(AGAIN_SECS)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _peek() -> ModuleType:
    from refold.cli import peek  # here: a store is loaded only where there is no server that has loaded one

    return peek


def _stream(api: Api, session_id: str, after: str | None, *, follow: bool) -> Iterator[Json]:
    query = {"follow": "true" if follow else "false"} | ({"after": after} if after else {})
    parts = urllib.parse.urlsplit(api.url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=60)
    headers = {"Authorization": f"Bearer {api.token}", "Accept": "application/x-ndjson"}
    try:
        connection.request("GET", f"/v1/sessions/{session_id}/events?{urllib.parse.urlencode(query)}", headers=headers)
        response = connection.getresponse()
        if response.status >= 400:
            raise Refusal(response.status, decode(response.read()))
        for line in response:
            if not line.endswith(b"\n"):
                break  # cut off in the middle: it comes again
            if line.strip():
                yield decode(line)
        if follow:
            raise Unreachable("the server ended the stream")
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"the server went away ({type(error).__name__})") from error
    finally:
        connection.close()


def _session_of(api: Api, name: str) -> str:
    return api.get(f"/v1/runs/{name}")["session_id"] if name.startswith("R-") else name


def _is_the_end(api: Api, watched: str, frame: Json) -> bool:
    """Whether a watched Run has ended by this event; a Session is watched until Ctrl-C."""
    if not watched.startswith("R-") or frame["method"] != "turn/completed":
        return False
    return _has_ended(api, watched)


def _has_ended(api: Api, run_id: str) -> bool:
    return api.get(f"/v1/runs/{run_id}")["status"] not in ("running", "pending")


def _keep(file: Path, cursor: str) -> None:
    draft = file.with_suffix(file.suffix + ".new")
    draft.write_text(cursor + "\n")
    draft.replace(file)


def _line(frame: Json) -> str:
    """One event as a person reads it."""
    params = frame["params"]
    item = params.get("item", {})
    about = {
        "turn": params.get("turnId"),
        "terminal": params.get("terminal"),
        "kind": item.get("kind"),
        "tool": item.get("tool"),
        "status": item.get("status"),
        "text": (item.get("text") or item.get("visibleOutput") or "")[:80],
    }
    shown = "  ".join(f"{value}" for value in about.values() if value)
    return f"{frame['method']:<18} {shown}".replace("\n", " ")
