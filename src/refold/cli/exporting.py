"""`refold export`: a Run as a file to be sent away, or as a document to be read.

Where nobody holds the store, an export reads it as it is (`peek`): to look must not change what is looked at.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from refold.canonical import encode
from refold.cli.doors import configured, database, holder, say
from refold.errors import InvalidRequest
from refold.records import parse_id

Json = Any
Flag = Annotated[bool, Parameter(negative=())]


def export(run_id: str, *, output: Path | None = None, store: str | None = None, json: Flag = False) -> int:
    """Writes a Run as a file that `refold import` takes: all stored rows of it and its Session.

    Parameters
    ----------
    run_id
        The Run.
    output
        A file; stdout without it.
    store
        The store's file; default $REFOLD_HOME/store/refold.db.
    json
        One JSON document to be read instead: the record, the replay log and the trace. No import takes it.
    """
    parse_id(run_id, "R")
    data = (encode(_document(run_id, store)) + "\n").encode() if json else _file(run_id, store)
    if output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        _write(output, data)
        say(f"{run_id} written to {output}")
    return 0


def _file(run_id: str, store: str | None) -> bytes:
    home, config = configured(store)
    api = holder(home, config)
    if api is not None:
        return api.get_bytes(f"/v1/runs/{run_id}/export")
    from refold.cli import peek  # here: a store is loaded only where there is no server that has loaded one

    return peek.export(database(home, config), run_id)


def _document(run_id: str, store: str | None) -> Json:
    home, config = configured(store)
    api = holder(home, config)
    if api is None:
        from refold.cli import peek

        return peek.document(database(home, config), run_id)
    return {
        "format": "refold.run/1",
        "run": api.get(f"/v1/runs/{run_id}"),
        "replay": _every(api, f"/v1/runs/{run_id}/replay?ctx=true&all=true&"),
        "trace": _every(api, f"/v1/runs/{run_id}/trace?"),
    }


def _every(api: Any, path: str) -> list[Json]:
    """The items of all pages of a list."""
    items, cursor = list[Json](), ""
    while True:
        page = api.get(f"{path}limit=1000{cursor}")
        items += page["items"]
        if page["next_cursor"] is None:
            return items
        cursor = f"&cursor={page['next_cursor']}"


def _write(output: Path, data: bytes) -> None:
    try:
        output.write_bytes(data)
    except OSError as error:
        raise InvalidRequest(f"cannot write {output}: {error.strerror}") from None
